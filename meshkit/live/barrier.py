"""A barrier that names who did not come, on any backend.

Each rank checks in at the store and then waits in the group's own barrier, which also notices at
once where a peer has died. Only where that fails are the check-ins looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist

from ..core.call import Call
from ..core.errors import RankTimeoutError, told
from ..launch.meet import Party
from ..launch.verdict import Presence, absent, present


def barrier(
    call: Call,
    party: Party | None,
    group: dist.ProcessGroup,
    limit: timedelta | None,
    device_ids: list[int] | None,
    place: Callable[[int], str],
) -> None:
    """Wait until every rank of a group is here. Collective over the group.

    Args:
        call: the call to quote.
        party: the store and the ranks of the group; None where torch tells no store.
        group: the process group.
        limit: how long to wait; None is the group's own timeout.
        device_ids: the device that the backend must use, where it needs one.
        place: a rank's coordinate in words.

    Raises:
        RankTimeoutError: where ranks did not come in time, with their coordinates.
    """
    meeting = None if party is None else _checked_in(party)
    began = time.monotonic()
    try:
        work = dist.barrier(group, async_op=True, device_ids=device_ids)
        work.wait(*[limit] if limit else [])
    except RuntimeError as error:
        if limit is None or time.monotonic() - began < limit.total_seconds():
            raise  # a peer that died, told by torch
        missing = _missing(call, party, meeting, limit, place)
        raise missing or _nobody_known(call, party, limit) from error


def _checked_in(party: Party) -> dist.Store:
    """This rank's next barrier of the group, with its name on it. Two store operations."""
    _, meeting = party.next_meeting()
    meeting.set(f"here/{party.world.rank}", Presence.here({}).written())
    return meeting


def _missing(
    call: Call,
    party: Party | None,
    meeting: dist.Store | None,
    limit: timedelta,
    place: Callable[[int], str],
) -> RankTimeoutError | None:
    """The error that names who did not check in; None where nobody can be named."""
    if party is None or meeting is None:
        return None
    came = present(meeting, party.ranks)
    missing = [rank for rank in party.ranks if rank not in came]
    return absent(call, limit.total_seconds(), came, missing, place) if missing else None


def _nobody_known(call: Call, party: Party | None, limit: timedelta) -> RankTimeoutError:
    ranks: Sequence[int] = () if party is None else party.ranks
    text = told(
        f"{call}: not all of its group came through within {limit.total_seconds():g} s.",
        f"The group holds ranks {', '.join(map(str, ranks)) or 'that are not known here'}.",
        fix="look at the logs of these ranks.",
    )
    return RankTimeoutError(text)
