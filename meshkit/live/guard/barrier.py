"""Wait at a barrier, and name the missing ranks if the job has a store.

Each rank checks in at the store, then waits in the group's own barrier. On gloo that barrier fails
as soon as a peer dies. The check-ins are read only if that barrier fails. :func:`barrier` and
:func:`wait` announce their name and group, so a guard reports "barrier over dp" or "wait over dp".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from ...core.errors import CALL, CollectiveError, RankTimeoutError
from ...core.hang import REBUILD_ADVICE, Life
from ...core.text import format_ranks
from ...launch.agreement.consensus import next_round
from ...launch.agreement.missing_ranks import MAX_NAMES, missing_ranks_error
from ...launch.agreement.proposal import Participants
from ...launch.agreement.verdict import MAX_LOOKED
from ...launch.store.check_in import CheckIn, ProcessIdentity, read_check_ins
from ...launch.store.deadline import (
    STORE_GRACE,
    DeadlineExceededError,
    run_with_deadline,
    store_call,
)
from ...launch.store.rank_lease import LeaseHolder, read_lease_holders
from ...launch.torch_internals import timeout_of
from .current import in_collective

ARRIVED = "at"  # when a rank came, in seconds of the monotonic clock of its host


def barrier(
    participants: Participants | None,
    group: dist.ProcessGroup,
    limit: timedelta | None,
    device_ids: list[int] | None,
    format_coordinate: Callable[[int], str],
) -> None:
    """Wait until every rank of a group has called this. Collective over the group.

    Cost: one store operation per rank, two if someone else created the default group. The barrier
    of the group comes on top.
    """
    with in_collective("barrier", group):
        round_store = None
        if participants is not None:
            round_store = store_call(
                participants.world, STORE_GRACE, partial(_check_in, participants)
            )
        began, bound = time.monotonic(), _smaller(limit, timeout_of(group))
        try:
            work = dist.barrier(group, async_op=True, device_ids=device_ids)
            work.wait(*[limit] if limit else [])
        except RuntimeError as error:
            if bound is None or time.monotonic() - began < bound.total_seconds():
                raise _broken_error(participants, round_store, error, format_coordinate) from error
            if participants is None or round_store is None:
                raise _unknown_error((), bound) from error
            look = partial(_missing_error, participants, round_store, bound, format_coordinate)
            raise store_call(participants.world, STORE_GRACE, look) from error


def _smaller(limit: timedelta | None, other: timedelta | None) -> timedelta | None:
    """Return the smaller of two limits, of which each may be unknown."""
    return min((time for time in (limit, other) if time is not None), default=None)


def wait(work: dist.Work | None, group: dist.ProcessGroup) -> None:
    """Wait for a collective that was started earlier. A guard reports it as ``"wait over dp"``."""
    if work is not None:
        with in_collective("wait", group):
            work.wait()


def _check_in(participants: Participants) -> dist.Store:
    """Post the host and pid of this rank in the next round of its group."""
    _, round_store = next_round(participants)
    check_in = CheckIn(ProcessIdentity.current(), seconds={ARRIVED: time.monotonic()})
    check_in.post(round_store, participants.world.rank)
    return round_store


def _broken_error(
    participants: Participants | None,
    round_store: dist.Store | None,
    error: RuntimeError,
    format_coordinate: Callable[[int], str],
) -> CollectiveError:
    """Return the error of a barrier that failed before the timeout, with the dead ranks."""
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
    lives = {rank: holder.life() for rank, holder in known.items()}
    ended = [rank for rank, life in lives.items() if life is Life.ENDED]
    # name dead ranks that never checked in; the death of the others may be a consequence
    gone = [rank for rank in ended if rank not in arrived] or ended
    lines = [f"Rank {rank} ({format_coordinate(rank)}) has ended: {known[rank]}." for rank in gone]
    if not gone and participants is not None and arrived:
        gone, lines = _absent(participants, arrived, known, format_coordinate)
    noun = "rank" if len(gone) == 1 else "ranks"
    look = (
        f"look at the logs of {noun} {format_ranks(gone)} first"
        if gone
        else "look at all ranks' logs"
    )
    return CollectiveError(
        f"{CALL} broke: {line}",
        *lines[:MAX_NAMES],
        fix=f"{look}; then {REBUILD_ADVICE}.",
        missing_ranks=tuple(gone),
    )


def _absent(
    participants: Participants,
    arrived: Mapping[int, CheckIn],
    known: Mapping[int, LeaseHolder],
    format_coordinate: Callable[[int], str],
) -> tuple[list[int], list[str]]:
    """Return the ranks that are not at the barrier, the stopped ones alone if there are any."""
    lives = {
        rank: known[rank].life() if rank in known else Life.UNKNOWN
        for rank in participants.ranks
        if rank not in arrived
    }
    stopped = [rank for rank, life in lives.items() if life is Life.STOPPED]
    ranks = stopped or [*lives]
    state = "is stopped" if stopped else "has not arrived at the barrier"
    lines = [
        f"Rank {rank} ({format_coordinate(rank)}) {state}: {known.get(rank, 'process unknown')}."
        for rank in ranks
    ]
    return ranks, lines


def _missing_error(
    participants: Participants,
    round_store: dist.Store,
    limit: timedelta,
    format_coordinate: Callable[[int], str],
) -> RankTimeoutError:
    """Return the error of a timed-out barrier, with the ranks that did not check in, if any."""
    ranks = participants.ranks
    arrived = read_check_ins(round_store, ranks)
    missing = [rank for rank in ranks if rank not in arrived]
    if not missing:
        return _unknown_error(ranks, limit, _late(arrived, limit))
    holders = read_lease_holders(participants.store, missing[:MAX_LOOKED])
    seconds = limit.total_seconds()
    return missing_ranks_error("", seconds, arrived, missing, format_coordinate, holders=holders)


def _late(arrived: Mapping[int, CheckIn], limit: timedelta) -> dict[int, float]:
    """Return the ranks that came when the barrier was over, with the seconds after the first.

    Ranks of other hosts are left out, as their clocks differ.
    """
    host = ProcessIdentity.current().host
    times = {r: c.seconds[ARRIVED] for r, c in arrived.items() if c.process.host == host}
    first = min(times.values())
    waits = {rank: time - first for rank, time in times.items()}
    return {rank: wait for rank, wait in waits.items() if wait >= 0.95 * limit.total_seconds()}


def _unknown_error(
    ranks: Sequence[int], limit: timedelta, came_late: Mapping[int, float] | None = None
) -> RankTimeoutError:
    """Return the error of a timed-out barrier whose missing ranks are unknown."""
    late = [*(came_late or {}).items()][:MAX_NAMES]
    evidence = "torch exposes no store, so the missing ranks are unknown."
    if ranks:
        evidence = f"All ranks of the group have checked in by now: {format_ranks(sorted(ranks))}."
    return RankTimeoutError(
        f"{CALL} did not complete within {limit.total_seconds():g} s.",
        evidence,
        *[f"Rank {rank} was late: it came {wait:.1f} s after the first." for rank, wait in late],
        fix="look at the logs of the ranks of this group, or pass a longer timeout.",
    )
