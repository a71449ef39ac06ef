"""A barrier that names the missing ranks on any backend, and a wait that a guard can report.

Each rank checks in at the store, then waits in the group's own barrier, which also notices at once
when a peer dies. The check-ins are read only if that barrier fails. Both functions announce their
name and group, so that a guard reports "barrier over dp" or "wait over dp".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from ...core.errors import CALL, CollectiveError, RankTimeoutError
from ...core.report.hang import REBUILD_ADVICE
from ...core.text import format_ranks
from ...launch.agreement.consensus import next_round
from ...launch.agreement.missing_ranks import missing_ranks_error
from ...launch.agreement.proposal import Participants
from ...launch.store.check_in import CheckIn, ProcessIdentity, read_check_ins
from ...launch.store.deadline import (
    STORE_GRACE,
    DeadlineExceededError,
    run_with_deadline,
    store_call,
)
from ...launch.store.rank_lease import LeaseHolder, read_lease_holders
from .current import in_collective


def barrier(
    participants: Participants | None,
    group: dist.ProcessGroup,
    limit: timedelta | None,
    device_ids: list[int] | None,
    format_coordinate: Callable[[int], str],
) -> None:
    """Wait until every rank of a group has called this. Collective over the group.

    Cost: one store operation per rank, beside the group's own barrier.
    """
    with in_collective("barrier", group):
        round_store = None
        if participants is not None:
            round_store = store_call(
                participants.world, STORE_GRACE, partial(_check_in, participants)
            )
        began = time.monotonic()
        try:
            work = dist.barrier(group, async_op=True, device_ids=device_ids)
            work.wait(*[limit] if limit else [])
        except RuntimeError as error:
            if limit is None or time.monotonic() - began < limit.total_seconds():
                raise _broken_error(participants, round_store, error, format_coordinate) from error
            if participants is None or round_store is None:
                raise _unknown_error((), limit) from error
            look = partial(
                _missing_error, participants.ranks, round_store, limit, format_coordinate
            )
            raise store_call(participants.world, STORE_GRACE, look) from error


def wait(work: dist.Work | None, group: dist.ProcessGroup) -> None:
    """Wait for a collective that was started earlier. A guard reports it as ``"wait over dp"``."""
    if work is not None:
        with in_collective("wait", group):
            work.wait()


def _check_in(participants: Participants) -> dist.Store:
    """Write this rank's name to the next barrier of its group. Cost: one store operation."""
    _, round_store = next_round(participants)
    CheckIn(ProcessIdentity()).post(round_store, participants.world.rank)
    return round_store


def _broken_error(
    participants: Participants | None,
    round_store: dist.Store | None,
    error: RuntimeError,
    format_coordinate: Callable[[int], str],
) -> CollectiveError:
    """Return the error of a barrier that broke before its timeout, with the dead ranks."""
    line = str(error).partition("\n")[0]
    known: dict[int, LeaseHolder] = {}
    arrived: dict[int, CheckIn] = {}
    if participants is not None and round_store is not None:
        with suppress(RuntimeError, DeadlineExceededError):
            known = run_with_deadline(
                STORE_GRACE, partial(read_lease_holders, participants.store, participants.ranks)
            )
            arrived = run_with_deadline(
                STORE_GRACE, partial(read_check_ins, round_store, participants.ranks)
            )
    ended = [rank for rank, holder in known.items() if holder.runs() is False]
    # a rank that reached this barrier may have ended because of one that did not
    gone = [rank for rank in ended if rank not in arrived] or ended
    lines = [f"Rank {rank} ({format_coordinate(rank)}) has ended: {known[rank]}." for rank in gone]
    noun = "rank" if len(gone) == 1 else "ranks"
    look = (
        f"look at the logs of {noun} {format_ranks(gone)} first"
        if gone
        else "look at all ranks' logs"
    )
    return CollectiveError(
        f"{CALL} broke: {line}",
        *lines,
        fix=f"{look}; then {REBUILD_ADVICE}.",
        missing_ranks=tuple(gone),
    )


def _missing_error(
    ranks: Sequence[int],
    round_store: dist.Store,
    limit: timedelta,
    format_coordinate: Callable[[int], str],
) -> RankTimeoutError:
    """Return the error that names the ranks that did not check in, if there are any."""
    arrived = read_check_ins(round_store, ranks)
    missing = [rank for rank in ranks if rank not in arrived]
    if not missing:
        return _unknown_error(ranks, limit)
    return missing_ranks_error("", limit.total_seconds(), arrived, missing, format_coordinate)


def _unknown_error(ranks: Sequence[int], limit: timedelta) -> RankTimeoutError:
    """Return the error of a timed-out barrier whose missing ranks are unknown."""
    evidence = "torch exposes no store, so the missing ranks are unknown."
    if ranks:
        evidence = f"All ranks of the group have checked in by now: {format_ranks(sorted(ranks))}."
    return RankTimeoutError(
        f"{CALL} did not complete within {limit.total_seconds():g} s.",
        evidence,
        fix="look at the logs of the ranks of this group, or pass a longer timeout.",
    )
