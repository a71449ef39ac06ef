"""Wait at a barrier that names the missing ranks, and check and time every group of a mesh.

Each rank leaves its time in a round, then waits in the group's own barrier. On gloo that barrier
fails as soon as a peer dies. The round is read only if that barrier fails::

    rank 0   arrives in the round, barrier of the group ... fails, reads: rank 2 is missing
    rank 1   arrives in the round, barrier of the group ... fails, reads: rank 2 is missing
    rank 2   sleeps

    key                                    written by              goes
    mesh/<id>/barrier/<group>/round/<n>/   the ranks of a group    two barriers later, or after the
      arrived, count                                               end of the mesh
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from ..call import quotes_call
from ..errors import CALL, CollectiveError, MeshkitError, RankTimeoutError, SpecError
from ..groups.groups import all_gather
from ..groups.live_mesh import LiveMesh
from ..groups.status import in_collective
from ..launch.agreement import Agreement
from ..launch.disagreement import REBUILD_ADVICE, describe_coordinate
from ..launch.judges import MAX_NAMES, Arrivals, Describe, RankState, missing_error
from ..launch.process import current_process, state_of
from ..launch.times import Time, meant_seconds, parse_timeout
from ..launch.torch_aborts import timeout_of, wait_in_time
from ..launch.torch_rehearsal import BACKEND
from ..layout.axes import Names
from ..layout.group_plan import Axes
from ..layout.layout import Layout
from ..synonyms import guess_seconds
from ..text import format_ranks, plural
from .guard import guard
from .state import GuardedMesh
from .verification import Verification, summarize_timings

ARRIVAL_TIME = "at"  # when a rank came, in seconds of the monotonic clock of its host
REPEATS = 5
STATES = {RankState.ENDED: "has ended since", RankState.STOPPED: "is stopped"}
WRONG = -1.0  # instead of seconds, if a group holds other ranks than the layout


@quotes_call("mesh.barrier")
def barrier(self: LiveMesh, *axes: Names, timeout: Time | None = None) -> None:
    """Wait until every rank of this rank's group over the axes has called this.

    Collective over that group; without axes, over the whole mesh. It names missing ranks on any
    backend. None as the timeout is that of the group.

    Raises:
        RankTimeoutError: with the coordinates of missing ranks. The group is then unusable.
        CollectiveError: if the barrier broke earlier because a rank died.

    Cost: one store operation per rank, beside the group's own barrier.
    """
    mesh, job = self._groups, self._proposal.job
    for axis in axes:
        if guess_seconds(axis) is not None:
            raise SpecError(f"{axis!r} is no axis.", fix=f"timeout={meant_seconds(axis)}.")
    layout, group, device = mesh.plan.layout, mesh.collective_group(axes), job.world.device
    timeout_of_group = timeout_of(group)
    limit = parse_timeout("timeout", timeout) or timeout_of_group
    if job.plays_one_rank:
        return
    device_ids = [device.index] if device is not None and device.index is not None else None
    ranks = sorted(layout.peers(mesh.rank, *axes).tolist())
    digest = hashlib.sha256(str(ranks).encode()).hexdigest()[:16]  # one part for equal groups
    with in_collective("barrier", group):
        part = f"mesh/{mesh.round_id}/barrier/{digest}"
        # without a wait, which is that of the group's own barrier
        agreement = job.agreement("mesh.barrier", ranks=ranks, part=part, limit=timedelta(0))
        if agreement is not None:
            agreement.arrive({ARRIVAL_TIME: time.monotonic()}, same=False)
        began = time.monotonic()
        limits = [seconds for seconds in (limit, timeout_of_group) if seconds is not None]
        bound = min(limits, default=None)
        try:
            work = dist.barrier(group, async_op=True, device_ids=device_ids)
            wait_in_time(work, group, limit)
        except RuntimeError as error:
            describe = partial(describe_coordinate, layout)
            if bound is None or time.monotonic() - began < bound.total_seconds():
                raise _broken_error(agreement, error, describe) from error
            raise _late_error(agreement, bound, describe) from error


def _broken_error(
    agreement: Agreement | None, error: RuntimeError, describe: Describe
) -> CollectiveError:
    """Return the error of a barrier that failed before the timeout, with the dead ranks.

    It names dead ranks that did not arrive first, since the death of others may be a consequence.
    """
    seen = Arrivals((), {})
    if agreement is not None:
        with suppress(MeshkitError):  # the store is lost
            seen = agreement.round.arrivals()
    processes = {rank: state_of(arrival.process) for rank, arrival in seen.arrived.items()}
    ended = [rank for rank, state in seen.states.items() if state is RankState.ENDED]
    ended = ended or [rank for rank, state in processes.items() if state is RankState.ENDED]
    stopped = [rank for rank, state in seen.states.items() if state is RankState.STOPPED]
    gone, state = seen.missing, "has not arrived at the barrier"
    if ended:
        gone, state = ended, "has ended"
    elif stopped:
        gone, state = stopped, "is stopped"
    texts = {rank: str(arrival.process) for rank, arrival in seen.arrived.items()}
    texts |= {rank: sight.text for rank, sight in seen.seen.items()}
    lines = [
        f"Rank {rank} ({describe(rank)}) {state}: {texts.get(rank, 'process unknown')}."
        for rank in gone[:MAX_NAMES]
    ]
    ranks = f"look at the logs of {plural('rank', len(gone))} {format_ranks(gone)} first"
    return CollectiveError(
        f"{CALL} broke: {str(error).partition(chr(10))[0]}",
        *lines,
        fix=f"{ranks if gone else 'look at the logs of all ranks'}; then {REBUILD_ADVICE}.",
        missing_ranks=tuple(gone),
    )


def _late_error(
    agreement: Agreement | None, limit: timedelta, describe: Describe
) -> RankTimeoutError:
    """Return the error of a timed-out barrier, with the ranks that did not arrive, if any."""
    seconds, lines = limit.total_seconds(), list[str]()
    stopped: tuple[int, ...] = ()
    evidence = "torch exposes no store, so the missing ranks are unknown."
    if agreement is not None:
        seen = agreement.round.arrivals()
        if seen.missing:
            return missing_error(seen._replace(expired=True), seconds, describe=describe)
        evidence = f"All ranks of the group have arrived by now: {format_ranks(seen.expected)}."
        states = {rank: state_of(arrival.process) for rank, arrival in seen.arrived.items()}
        stopped = tuple(rank for rank, state in states.items() if state.is_certain)
        lines = [
            f"Rank {rank} ({describe(rank)}) {STATES[states[rank]]}: {seen.arrived[rank].process}."
            for rank in stopped
        ]
        lines += [
            f"Rank {rank} was late: it came {wait:.1f} s after the first."
            for rank, wait in _late_ranks(seen, seconds).items()
        ]
    return RankTimeoutError(
        f"{CALL} did not complete within {seconds:g} s.",
        evidence,
        *lines[:MAX_NAMES],
        fix="look at the logs of the ranks of this group, or pass a longer timeout.",
        missing_ranks=stopped,
    )


def _late_ranks(seen: Arrivals, limit: float) -> dict[int, float]:
    """Return the ranks that came when the barrier was over, with the seconds after the first.

    Ranks of other hosts are left out, as their clocks differ.
    """
    here = current_process().machine
    times = {
        rank: float(arrival.facts[ARRIVAL_TIME])
        for rank, arrival in seen.arrived.items()
        if arrival.process.machine == here
    }
    waits = {rank: time - min(times.values()) for rank, time in times.items()}
    return {rank: wait for rank, wait in waits.items() if wait >= 0.95 * limit}


@quotes_call("mesh.verify")
def verify(self: GuardedMesh, *, timeout: Time | None = None) -> Verification:
    """Check each group with one collective, and time some more.

    Collective over the mesh. On every group, ranks gather their numbers, which must arrive in
    the order of the coordinate. Then the call is timed. ``timeout`` is as in :meth:`guard`.

    Returns:
        The time of each group, the slowest group, and the rank for which others waited most.

    Raises:
        CollectiveError: if a collective failed or did not complete, with the ranks behind.
        MeshkitError: if a group holds other ranks than the layout.

    Cost: six collectives of a few bytes per group, and one over all ranks.
    """
    mesh = self._groups
    with guard(self, timeout=timeout):
        return verify_groups(mesh.plan.layout, mesh.rank, mesh.groups.by_key, self.device)


def verify_groups(
    layout: Layout, rank: int, groups: Mapping[Axes, dist.ProcessGroup], device: torch.device
) -> Verification:
    """Check and time each group. Collective over the layout.

    Cost: six collectives of a few bytes per group, and one over all ranks.
    """
    keys = [key for key in groups if key]
    matches = [_has_members(layout.peers(rank, *key).tolist(), groups[key], device) for key in keys]
    timed = [  # even if a check has failed
        median(_time_gather(groups[key], device) for _ in range(REPEATS)) for key in keys
    ]
    own = [seconds if ok else WRONG for seconds, ok in zip(timed, matches, strict=True)]
    seconds = np.zeros((1, 0))
    if keys:
        whole = tuple(axis for axis in layout.axes if layout.size(axis) > 1)
        rows = all_gather(torch.tensor(own, dtype=torch.float64, device=device), groups[whole])
        seconds = torch.stack(rows).cpu().numpy()  # (num_ranks, num_keys)
    for key, column in zip(keys, seconds.T, strict=True):
        wrong = sorted(int(rank) for rank in layout.grid.ravel()[column == WRONG])
        if wrong:
            raise MeshkitError(
                f"the group over {' '.join(key)} does not hold the ranks of the layout.",
                "A gather over it returned other ranks, or another order, on ranks "
                f"{format_ranks(wrong)}.",
                fix="close the mesh and build it again; report this with the version of torch.",
            )
    return summarize_timings(layout, keys, seconds)


def _has_members(members: list[int], group: dist.ProcessGroup, device: torch.device) -> bool:
    """Return whether a gather over the group returns exactly these ranks, in this order."""
    if dist.get_backend(group) == BACKEND:  # the ranks of a rehearsal hold equal values
        return dist.get_process_group_ranks(group) == members
    ranks = all_gather(torch.tensor(dist.get_rank(), device=device), group)
    return [int(rank) for rank in ranks] == members


def _time_gather(group: dist.ProcessGroup, device: torch.device) -> float:
    """Return the seconds of one gather, the copy to the host included."""
    began = time.perf_counter()
    for tensor in all_gather(torch.zeros((), device=device), group):
        tensor.cpu()
    return time.perf_counter() - began
