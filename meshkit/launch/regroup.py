"""Decide who lives after a loss, which mesh they form, and who sends the state to whom.

:func:`who_lives` decides one round of a recovery. :func:`regroup` forms as many whole replicas as
the ranks that live can fill. Data axes shrink, the outermost first, and all other axes stay whole.
A rank keeps its coordinate if the new grid has it. The others fill the holes that lost ranks leave,
and the rest are spares::

    dp=4 tp=2, ranks 1 and 4 are lost       dp=3 tp=2

              tp=0   tp=1                             tp=0   tp=1
      dp=0     0      x                       dp=0     0      7     7 was at dp=3, tp=1
      dp=1     2      3                       dp=1     2      3
      dp=2     x      5                       dp=2     6      5     6 was at dp=3, tp=0
      dp=3     6      7

The new ranks are numbered by position, and spares come last. Rank 0, which may host the store,
keeps its number. Newcomers are numbered after all other ranks. With them data axes grow again, and
no rank of the mesh moves.

:func:`find_sources` finds the step from which all ranks go on. Ranks may be one step apart, since a
collective may have ended on some of them only. The most advanced step wins that is held for each
part of the state, which is a coordinate along the axes that stay whole::

    dp=3 tp=2      steps of tp=0: 5 5 4      steps of tp=1: x 4 4      all go on from step 4
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import Any, NamedTuple, cast

from ..errors import DisagreementError, MeshkitError, RankTimeoutError, SpecError
from ..layout.axes import axis_role
from ..layout.layout import Layout
from ..layout.ranks import RankPositions
from ..text import count_noun, format_ranks, format_sizes, group_by, plural
from .judges import MAX_NAMES, Arrivals, Decision, Judge, RankState

Coordinate = dict[str, int]
# which part of the state a rank holds: its index along each shard axis. With dp=4 tp=2, where only
# dp may shrink, the ranks with tp=1 all hold the shard (1,)
ShardIndex = tuple[int, ...]


class RecoveryFacts(NamedTuple):
    """The record of one rank in a recovery round. A newcomer states nothing: all defaults."""

    mesh: str | None = None  # the mesh before the loss, as text; equal on all ranks that state it
    min_ranks: str | None = None  # the argument of ``mesh.recover``, as text; equal likewise
    failed: bool = False  # whether a collective has failed on this rank, or a guard has reported
    holds_state: bool = False  # whether the rank has weights that it can send to others
    step: int | None = None  # ``step=`` of the call: the optimizer steps that the weights have seen
    committed: int | None = None  # calls of ``mesh.commit()`` that succeeded; None on gloo

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> RecoveryFacts:
        """Return the record that a rank has posted."""
        kinds: dict[str, Any] = {"mesh": str, "min_ranks": str, "failed": bool}
        kinds |= {"holds_state": bool, "step": int, "committed": int}
        given = {name: kind(facts[name]) for name, kind in kinds.items() if facts[name] is not None}
        return cls(**given)

    def to_facts(self) -> dict[str, Any]:
        """Return the record as a rank posts it."""
        return self._asdict()


def check_committed(requests: Mapping[int, RecoveryFacts]) -> None:
    """Raise on every rank if one recovers from a step that it has not committed."""
    for rank, request in requests.items():
        step, committed = request.step, request.committed
        if step is None or committed is None or step <= committed:
            continue
        raise SpecError(
            f"step is {step} on rank {rank}, which has committed {committed}.",
            "On NCCL an optimizer step without mesh.commit() may have applied partial sums.",
            fix="call mesh.commit() before each optimizer.step(), and count steps from 0 at the "
            "start of this job.",
        )


class RecoveryWaits(NamedTuple):
    """How many seconds a recovery round waits for missing ranks, by the kind of rank.

    ::

        0 s       newcomers        silent           whole
        |-------------|---------------|---------------|
         all are       newcomers no    silent ranks    the ranks that have arrived live,
         awaited       longer          no longer       the others are lost
    """

    whole: float  # for every rank; errors show this number
    silent: float  # for ranks that did not answer the roll call of the failure
    newcomers: float  # for newcomers: their processes wait at the store already


def who_lives(
    waits: RecoveryWaits, silent: Collection[int] = (), newcomers: Collection[int] = ()
) -> Judge:
    """Return the judge of a recovery round: the ranks that have arrived live, the others are lost.

    The judge waits for a missing rank until the deadline, but less for silent ranks and newcomers,
    and not at all for a process that has ended. The decision holds the record of each rank that
    lives. It is an error if no rank has seen a failure and no newcomer is admitted.
    """

    def judge(seen: Arrivals) -> Decision | None:
        arrived = sorted(seen.arrived.items())
        requests = {rank: RecoveryFacts.from_facts(a.facts) for rank, a in arrived}
        ended = {rank for rank in seen.missing if seen.states.get(rank) is RankState.ENDED}
        awaited = {*seen.missing} - ended
        awaited -= {*silent} if seen.waited >= waits.silent else set()
        awaited -= {*newcomers} if seen.waited >= waits.newcomers else set()
        if awaited and not seen.expired:
            return None
        error = _disagreement(requests)
        if error is None and not (ended or newcomers or any(r.failed for r in requests.values())):
            error = _no_failure_error(len(requests), seen.missing, waits.whole)
        if error is not None:
            return Decision(error)
        return Decision(members={rank: request.to_facts() for rank, request in requests.items()})

    return judge


def _disagreement(requests: Mapping[int, RecoveryFacts]) -> MeshkitError | None:
    """Return the error of ranks that recover different meshes, if they do."""
    for name in ("mesh", "min_ranks"):
        texts = {rank: getattr(request, name) for rank, request in sorted(requests.items())}
        given = {rank: text for rank, text in texts.items() if text is not None}
        if len({*given.values()}) > 1:
            lines = [f"Rank {rank}: {name} {text}." for rank, text in given.items()]
            return DisagreementError(
                "ranks recover different meshes.",
                *lines[:MAX_NAMES],
                fix="call recover on the same mesh, with the same min_ranks, on all ranks.",
                requests=given,
            )
    return None


def _no_failure_error(arrived: int, missing: Sequence[int], timeout: float) -> MeshkitError:
    """Return the error of a round that has nothing to recover from."""
    fix = "call it after a CollectiveError, for example of mesh.guard(timeout=60)."
    if not missing:
        summary = f"the mesh is healthy: all {count_noun(arrived, 'rank')} are here."
        return MeshkitError(summary, "No rank has seen a collective fail.", fix=fix)
    return RankTimeoutError(
        f"{plural('rank', len(missing))} {format_ranks(missing)} did not call it within "
        f"{timeout:g} s.",
        "No rank has seen a collective fail, so the mesh is unchanged.",
        fix=fix,
        missing_ranks=tuple(missing),
    )


def held_steps(requests: Mapping[int, RecoveryFacts]) -> dict[int, int | None]:
    """Return the completed steps of each rank that holds a state; None if it gives no step."""
    return {rank: request.step for rank, request in requests.items() if request.holds_state}


class Reassignment(NamedTuple):
    """A rank whose coordinate changes."""

    rank: int  # its new rank
    old_rank: int  # its rank before
    before: Coordinate | None  # the coordinate before; None outside the mesh
    after: Coordinate | None  # the new coordinate; None for a spare


@dataclass(frozen=True, eq=False)
class Regrouping:
    """The mesh before and after a loss, and the rank that each process had before.

    Axes are of two kinds. Along a replica axis, such as dp, ranks hold copies of the state, so the
    axis may shrink. Along a shard axis, such as tp, ranks hold different parts, so it keeps its
    size. A replica has one rank for each shard. Ranks that fill no whole replica are spares.
    """

    before: Layout  # the lost ranks included
    after: Layout  # in the new numbers of the ranks that live
    old_ranks: tuple[int, ...]  # new rank to old rank, the spares at the end
    replica_axes: tuple[str, ...]  # the axes that may shrink or grow

    @property
    def shard_axes(self) -> tuple[str, ...]:
        """The axes that keep their size: along them ranks hold different parts of the state."""
        return tuple(axis for axis in self.before.axes if axis not in self.replica_axes)

    @cached_property
    def new_rank_of(self) -> Mapping[int, int]:
        """The new rank of each old rank that lives."""
        return {old: rank for rank, old in enumerate(self.old_ranks)}

    @property
    def spares(self) -> tuple[int, ...]:
        """The new ranks outside the mesh."""
        return tuple(rank for rank in range(len(self.old_ranks)) if rank not in self.after)

    @cached_property
    def moves(self) -> tuple[Reassignment, ...]:
        """The ranks whose coordinate changes, spares that stay spares left out. O(ranks)."""
        moves = (
            Reassignment(rank, old, _coordinate(self.before, old), _coordinate(self.after, rank))
            for rank, old in enumerate(self.old_ranks)
        )
        return tuple(move for move in moves if move.before != move.after)


def shrink_sizes(sizes: Mapping[str, int], num_ranks: int) -> dict[str, int] | None:
    """Return the largest sizes that so many ranks can fill; None if not even one replica fits.

    Data axes shrink, the outermost first. An inner one shrinks only if the outer ones have size 1.

    Example:
        >>> shrink_sizes({"pp": 2, "dp": 4, "tp": 2}, 13)
        {'pp': 2, 'dp': 3, 'tp': 2}
    """
    new = dict(sizes)
    for axis in (axis for axis in sizes if axis_role(axis) == "data"):
        others = math.prod(size for other, size in new.items() if other != axis)
        new[axis] = max(1, min(new[axis], num_ranks // others))
        if others <= num_ranks:
            break
    return new if math.prod(new.values()) <= num_ranks else None


def regroup(
    layout: Layout, members: Sequence[int], sizes: Mapping[str, int] | None = None
) -> Regrouping | None:
    """Return the layout of the ranks that live; None if they cannot form one replica. O(ranks).

    Args:
        layout: the layout before.
        members: the ranks that live, ascending; those outside the layout are spares.
        sizes: the largest size of each axis; None means those of the layout.

    Example:
        >>> regrouped = regroup(Layout(dp=4, tp=2), [0, 2, 3, 5, 6, 7])
        >>> regrouped.after, regrouped.old_ranks
        (Layout(dp=3, tp=2), (0, 7, 2, 3, 6, 5))
    """
    full = layout.sizes if sizes is None else sizes
    new_sizes = shrink_sizes(full, len(members))
    if new_sizes is None:
        return None
    grid = Layout.of(new_sizes)
    data = [axis for axis in full if axis_role(axis) == "data"]
    least = {axis: min(layout.sizes[axis], new_sizes[axis]) for axis in data}
    replica_axes = tuple(axis for axis in data if axis == data[0] or least[axis] < full[axis])
    cells = _fill_cells(layout, grid, members, replica_axes)
    used = set(cells)
    old_ranks = [*cells, *(rank for rank in members if rank not in used)]
    if 0 in old_ranks:
        old_ranks.remove(0)
        old_ranks.insert(0, 0)
    new_rank = {old: rank for rank, old in enumerate(old_ranks)}
    positions = RankPositions.of([new_rank[old] for old in cells], None)
    return Regrouping(layout, Layout.of(new_sizes, positions), tuple(old_ranks), replica_axes)


def _coordinate(layout: Layout, rank: int) -> Coordinate | None:
    return layout.coordinate(rank) if rank in layout else None


def _fill_cells(
    layout: Layout, grid: Layout, members: Sequence[int], replica_axes: Sequence[str]
) -> list[int]:
    """Return the old rank at each position of the new grid.

    A hole is filled by a rank that holds the same part of the state, if there is one.
    """
    cells: list[int | None] = [None] * grid.num_ranks
    left: list[int] = []
    for rank in members:
        coordinate = _coordinate(layout, rank)
        if coordinate is not None and all(coordinate[a] < s for a, s in grid.sizes.items()):
            cells[grid.rank(**coordinate)] = rank
        else:
            left.append(rank)
    shard_axes = [axis for axis in layout.axes if axis not in replica_axes]
    by_shard = group_by((shard_of(layout, rank, shard_axes), rank) for rank in reversed(left))
    for position, held in enumerate(cells):
        if held is None and (same := by_shard.get(shard_of(grid, position, shard_axes))):
            cells[position] = same.pop()
    others = sorted((rank for ranks in by_shard.values() for rank in ranks), reverse=True)
    return [others.pop() if rank is None else rank for rank in cells]


def shard_of(layout: Layout, rank: int, axes: Sequence[str]) -> tuple[int, ...] | None:
    """Return the index of a rank along each of the given axes; None for a spare."""
    coordinate = _coordinate(layout, rank)
    return None if coordinate is None else tuple(coordinate[axis] for axis in axes)


class Sources(NamedTuple):
    """The step from which all ranks go on, and the ranks that send the state."""

    step: int | None  # the completed steps of the state; None if no rank gives a step
    by_rank: Mapping[int, int]  # each new rank that lacks its state to the new rank that sends it
    lost: tuple[Coordinate, ...]  # the parts that no rank holds, as coordinates


def find_sources(regrouped: Regrouping, held: Mapping[int, int | None]) -> Sources:
    """Return the step from which all go on, and the source of each rank that lacks its state.

    ``held`` has the completed steps of each old rank that holds a state, None if it gives none.
    O(ranks).

    Raises:
        SpecError: if only some ranks give a step, or if no step is held for each part.
    """
    axes, holders = regrouped.shard_axes, _holders(regrouped, held)
    step = _choose_step(held, holders, regrouped)
    shards = {
        rank: cast(ShardIndex, shard_of(regrouped.after, rank, axes))
        for rank in sorted(map(int, regrouped.after.ranks))
    }
    turns = {
        shard: cycle([rank for rank in by_step[step] if rank in shards] or by_step[step])
        for shard, by_step in holders.items()
    }  # a spare sends only what no rank of the mesh holds
    by_rank = {
        rank: next(turns[shard])
        for rank, shard in shards.items()
        if shard in holders and rank not in holders[shard][step]
    }
    missing = dict.fromkeys(shard for shard in shards.values() if shard not in holders)
    lost = tuple(dict(zip(axes, shard, strict=True)) for shard in missing)
    return Sources(step, by_rank, lost)


def _holders(
    regrouped: Regrouping, held: Mapping[int, int | None]
) -> dict[ShardIndex, dict[int | None, list[int]]]:
    """Return the new ranks that hold each part of the state, by their step."""
    holders: dict[ShardIndex, dict[int | None, list[int]]] = {}
    for old in sorted(held):
        shard = shard_of(regrouped.before, old, regrouped.shard_axes)
        if shard is not None:
            by_step = holders.setdefault(shard, {})
            by_step.setdefault(held[old], []).append(regrouped.new_rank_of[old])
    return holders


def _choose_step(
    held: Mapping[int, int | None],
    holders: Mapping[ShardIndex, Mapping[int | None, list[int]]],
    regrouped: Regrouping,
) -> int | None:
    """Return the most advanced step that is held for every part that anybody holds."""
    steps = {*held.values()}
    if None in steps and len(steps) > 1:
        without = sorted(rank for rank, own in held.items() if own is None)
        raise SpecError(
            f"{plural('rank', len(without))} {format_ranks(without)} "
            f"{'gives' if len(without) == 1 else 'give'} no step, and other ranks do.",
            fix="pass step=<completed steps> on every rank.",
        )
    if not held or None in steps:
        return None
    common = set.intersection(*(set(by_step) for by_step in holders.values()))
    if not common:
        raise _no_common_step_error(regrouped, holders)
    return max(step for step in common if step is not None)


def _no_common_step_error(
    regrouped: Regrouping, holders: Mapping[ShardIndex, Mapping[int | None, list[int]]]
) -> SpecError:
    """Return the error of ranks that hold the parts of the state after different steps."""
    lines = []
    for shard, by_step in sorted(holders.items()):
        part = format_sizes(dict(zip(regrouped.shard_axes, shard, strict=True))) or "the state"
        before = {s: sorted(regrouped.old_ranks[r] for r in ranks) for s, ranks in by_step.items()}
        held = ", ".join(
            f"step {step} on {plural('rank', len(ranks))} {format_ranks(ranks)}"
            for step, ranks in sorted(before.items(), key=str)
        )
        lines.append(f"{part}: {held}.")
    return SpecError(
        "the ranks that live have completed different steps, and no step is held for each part.",
        *lines,
        fix="start the job again from a checkpoint.",
    )
