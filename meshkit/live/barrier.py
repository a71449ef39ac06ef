"""A barrier that names who did not come, on any backend.

Each rank checks in at the store and then waits in the group's own barrier, which also notices at
once where a peer has died. Only where that fails are the check-ins looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from ..core.call import Call
from ..core.errors import CollectiveError, RankTimeoutError, told
from ..core.hang import AGAIN
from ..core.runs import format_ranks
from ..launch.deadline import OverdueError, within
from ..launch.meet import Party
from ..launch.seat import Holder, holders
from ..launch.store import SILENCE, asked
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
        CollectiveError: where it broke before that, as a rank died; naming those known to have.
    """
    meeting = None
    if party is not None:
        meeting = asked(call, party.world, SILENCE, partial(_checked_in, party))
    began = time.monotonic()
    try:
        work = dist.barrier(group, async_op=True, device_ids=device_ids)
        work.wait(*[limit] if limit else [])
    except RuntimeError as error:
        if limit is None or time.monotonic() - began < limit.total_seconds():
            # a peer that died, told by torch
            raise _broken(call, party, meeting, error, place) from error
        if party is None or meeting is None:
            raise _nobody_known(call, (), limit) from error
        look = partial(_missing, call, party.ranks, meeting, limit, place)
        raise asked(call, party.world, SILENCE, look) from error


def _checked_in(party: Party) -> dist.Store:
    """This rank's next barrier of the group, with its name on it. One store operation."""
    _, meeting = party.next_meeting()
    meeting.set(f"here/{party.world.rank}", Presence.here({}).written())
    return meeting


def _broken(
    call: Call,
    party: Party | None,
    meeting: dist.Store | None,
    error: RuntimeError,
    place: Callable[[int], str],
) -> CollectiveError:
    """The error of a barrier that broke before its time, with the ranks known to have ended."""
    line = str(error).partition("\n")[0]
    known: dict[int, Holder] = {}
    came: dict[int, Presence] = {}
    if party is not None and meeting is not None:
        with suppress(RuntimeError, OverdueError):
            known = within(SILENCE, partial(holders, party.store, party.ranks))
            came = within(SILENCE, partial(present, meeting, party.ranks))
    ended = [rank for rank, holder in known.items() if holder.runs() is False]
    # who came to this barrier may have ended because of who did not
    gone = [rank for rank in ended if rank not in came] or ended
    lines = [f"Rank {rank} ({place(rank)}) has ended: {known[rank]}." for rank in gone]
    where = "rank" if len(gone) == 1 else "ranks"
    look = (
        f"look at the logs of {where} {format_ranks(gone)} first"
        if gone
        else "look at all ranks' logs"
    )
    text = told(f"{call} broke: {line}", *lines, fix=f"{look}; then {AGAIN}.")
    return CollectiveError(text, missing_ranks=tuple(gone))


def _missing(
    call: Call,
    ranks: Sequence[int],
    meeting: dist.Store,
    limit: timedelta,
    place: Callable[[int], str],
) -> RankTimeoutError:
    """The error that names who did not check in, where that was it."""
    came = present(meeting, ranks)
    missing = [rank for rank in ranks if rank not in came]
    if not missing:
        return _nobody_known(call, ranks, limit)
    return absent(call, limit.total_seconds(), came, missing, place)


def _nobody_known(call: Call, ranks: Sequence[int], limit: timedelta) -> RankTimeoutError:
    text = told(
        f"{call}: not all of its group came through within {limit.total_seconds():g} s.",
        f"The group holds ranks {', '.join(map(str, ranks)) or 'that are not known here'}.",
        fix="look at the logs of these ranks.",
    )
    return RankTimeoutError(text)
