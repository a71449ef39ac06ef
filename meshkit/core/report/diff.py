"""Which part of the weights each rank holds, and what a change of the grid makes it fetch.

The rule: weights are cut by pp into equal runs of layers and by tp into equal slices of each layer;
all other axes hold copies. (FSDP cuts each part once more, over the ranks that hold copies of it.)
Part ``i`` of ``a`` holds the interval from ``i / a`` to ``(i + 1) / a``::

    tp=2   | 0           | 1           |      a rank that was 1 of 2 and is 1 of 3
    tp=3   | 0      | 1       | 2      |      needs the middle third and holds half of it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..batch import BatchPlan
from ..layout import Layout
from ..seats import Ints
from ..table import items, run, some, table
from ..words import count
from .job import headline

WEIGHT_AXES = ("pp", "tp")


@dataclass(frozen=True)
class Moves:
    """What ranks have to fetch after a change of the grid, by the rule of this file.

    Attributes:
        parts_before: into how many parts the weights were cut.
        parts_after: into how many they are.
        held: what share of its part a rank holds already, to the ranks of which that is so.
        total: what all ranks fetch together, in sizes of the whole model.
        lost: how many of the parts before are on no rank that stays.
    """

    parts_before: int
    parts_after: int
    held: Mapping[Fraction, Ints]
    total: Fraction
    lost: int


def weight_moves(before: Layout, after: Layout) -> Moves:
    """What a change of the grid moves. Pure. O(num_ranks).

    Args:
        before: the grid that was.
        after: the grid that is to be; ranks keep their numbers. New ones hold nothing.

    Example:
        >>> found = moves(Layout(dp=2, tp=2), Layout(dp=4))
        >>> [(str(share), ranks.tolist()) for share, ranks in found.held.items()], found.total
        ([('1/2', [0, 1, 2, 3])], Fraction(2, 1))
    """
    num_before, num_after = num_weight_parts(before), num_weight_parts(after)
    stay = np.arange(min(before.num_ranks, after.num_ranks), dtype=np.int64)
    kept = np.zeros(after.num_ranks, dtype=np.int64)  # of num_before
    kept[stay] = 1
    for axis in WEIGHT_AXES:
        kept[stay] *= _overlap(before, after, axis, stay)
    shares = {Fraction(int(n), num_before): np.flatnonzero(kept == n) for n in np.unique(kept)}
    total = Fraction(int((num_before - kept).sum()), num_before * num_after)
    lost = num_before - len(np.unique(_weight_part(before, stay)))
    return Moves(num_before, num_after, dict(sorted(shares.items())), total, lost)


def num_weight_parts(layout: Layout) -> int:
    """Into how many parts the weights are cut."""
    return layout.sizes.get("pp", 1) * layout.sizes.get("tp", 1)


def _overlap(before: Layout, after: Layout, axis: str, ranks: Ints) -> Ints:
    """How much of what a rank needs along an axis it holds, in 1 / (the size before)."""
    a, b = before.sizes.get(axis, 1), after.sizes.get(axis, 1)
    i, j = axis_index(before, axis, ranks), axis_index(after, axis, ranks)
    common = np.minimum((i + 1) * b, (j + 1) * a) - np.maximum(i * b, j * a)
    return np.asarray(np.maximum(common, 0))


def _weight_part(layout: Layout, ranks: Ints) -> Ints:
    return axis_index(layout, "pp", ranks) * layout.sizes.get("tp", 1) + axis_index(
        layout, "tp", ranks
    )


def axis_index(layout: Layout, axis: str, ranks: Ints) -> Ints:
    """The index of each rank along an axis; 0 along one that the grid does not have."""
    if axis not in layout.axes:
        return np.zeros_like(ranks)
    return layout.coordinates(ranks)[:, layout.axes.index(axis)]


@dataclass(frozen=True)
class Difference:
    """Two grids of ranks that keep their numbers. Make it with :meth:`of`.

    Attributes:
        before: the grid that was.
        after: the grid that is to be.
        groups: axis to the ranks whose group over it changes: its members, or their order. Ranks
            that there are in one of the grids only are among them. An axis of size 1 that the
            other grid does not have changes no group of the ranks that stay.
        data: the ranks of both grids that own other samples than before.
        moves: what a checkpoint must move.
    """

    before: Layout
    after: Layout
    groups: Mapping[str, Ints]
    data: Ints
    moves: Moves

    @classmethod
    def of(cls, before: Layout, after: Layout, batch: BatchPlan | None = None) -> Difference:
        """The difference of two grids, both with ranks from 0. Pure. O(axes x num_ranks).

        Args:
            before: the grid that was.
            after: the grid that is to be.
            batch: a plan over dp before. Without one, a rank is taken to own other samples where
                its index along dp or the size of dp is another.

        Example:
            >>> found = Difference.of(Layout(dp=4, sp=2), Layout(dp=2, sp=4))
            >>> {axis: ranks.tolist() for axis, ranks in found.groups.items()}
            {'dp': [0, 1, 2, 3, 4, 5, 6, 7], 'sp': [0, 1, 2, 3, 4, 5, 6, 7]}
        """
        axes = dict.fromkeys((*before.axes, *after.axes))
        groups = {axis: _changed_group_ranks(before, after, axis) for axis in axes}
        return cls(
            before,
            after,
            groups,
            _changed_data_ranks(before, after, batch),
            weight_moves(before, after),
        )

    @property
    def stay(self) -> int:
        """How many ranks there are in both grids."""
        return min(self.before.num_ranks, self.after.num_ranks)

    def as_dict(self) -> dict[str, object]:
        """All of it as what JSON can hold; shares of weights as strings such as ``"1/2"``."""
        held = {str(share): ranks.tolist() for share, ranks in self.moves.held.items()}
        return {
            "before": self.before.sizes,
            "after": self.after.sizes,
            "groups": {axis: ranks.tolist() for axis, ranks in self.groups.items()},
            "data": self.data.tolist(),
            "checkpoint": {**vars(self.moves), "held": held, "total": str(self.moves.total)},
        }


def format_diff(found: Difference, *, width: int = 80, ascii: bool = False) -> str:
    """A difference as text. Pure.

    Args:
        found: what there is to say.
        width: columns to fit into. At least 40 are used; a number is never cut.
        ascii: whether to draw with ASCII characters only.

    Returns:
        Lines without a final newline.
    """
    before, after = found.before.sizes, found.after.sizes
    rows = [
        [axis, str(before.get(axis, "-")), str(after.get(axis, "-")), some(ranks)]
        for axis, ranks in found.groups.items()
    ]
    header = ["axis", "before", "after", "whose group changes"]
    heads = [("before", headline(found.before)), ("after", headline(found.after))]
    drawn = table(header, rows, width=width, ascii=ascii)
    facts = [*_rank_facts(found), *_move_facts(found.moves)]
    return "\n\n".join([items(heads, width=width), drawn, items(facts, width=width)])


def _changed_group_ranks(before: Layout, after: Layout, axis: str) -> Ints:
    """The ranks whose group over an axis is another, and those of one grid only."""
    stay, most = _num_staying(before, after)
    one, other = (layout.strides(axis) if axis in layout.axes else () for layout in (before, after))
    return np.arange(
        stay if one == other else 0, most, dtype=np.int64
    )  # equal for all, or for none


def _changed_data_ranks(before: Layout, after: Layout, batch: BatchPlan | None) -> Ints:
    """The ranks of both grids that own other samples of a step."""
    stay, _ = _num_staying(before, after)
    ranks = np.arange(stay, dtype=np.int64)
    was, now = axis_index(before, "dp", ranks), axis_index(after, "dp", ranks)
    dp = before.sizes.get("dp", 1), after.sizes.get("dp", 1)
    if batch is None:
        return np.flatnonzero((was != now) | (dp[0] != dp[1]))
    # micro batches d, d + dp, ... below this: two runs are equal where both their first two are
    cuts = batch.global_batch // batch.micro_batch
    firsts = np.minimum(was, cuts) != np.minimum(now, cuts)
    seconds = np.minimum(was + dp[0], cuts) != np.minimum(now + dp[1], cuts)
    return np.flatnonzero(firsts | seconds)


def _num_staying(before: Layout, after: Layout) -> tuple[int, int]:
    """How many ranks are in both grids, and how many in the larger."""
    least, most = sorted((before.num_ranks, after.num_ranks))
    return least, most


def _rank_facts(found: Difference) -> Iterator[tuple[str, str]]:
    """Who stays, and who reads what."""
    stay, most = _num_staying(found.before, found.after)
    if most > stay:
        verb = "leave" if found.before.num_ranks == most else "join"
        yield "ranks", f"{stay} stay, {most - stay} {verb}: {run(stay, most - 1)}"
    sizes = [str(layout.sizes.get("dp", 1)) for layout in (found.before, found.after)]
    yield "data", f"dp {' -> '.join(sizes)}; {some(found.data)} own other samples of a step"


def _move_facts(moved: Moves) -> Iterator[tuple[str, str]]:
    """What a checkpoint must move, with the rule."""
    rule = f"weights are cut by {' and '.join(WEIGHT_AXES)}, all other axes hold copies"
    cut = f"{count(moved.parts_before, 'part')} -> {count(moved.parts_after, 'part')}"
    yield "weights", f"{cut} ({rule})"
    for share, ranks in moved.held.items():
        what = {0: "none", 1: "all"}.get(share, str(share))  # type: ignore[call-overload]
        yield "", f"{some(ranks)} hold{'s' * (len(ranks) == 1)} {what} of what they need"
    yield "to fetch", _format_models(moved.total)
    if moved.lost:
        gone = f"{count(moved.lost, 'part')} of {moved.parts_before}"
        yield "lost", f"{gone} {'is' if moved.lost == 1 else 'are'} on no rank that stays"


def _format_models(total: Fraction) -> str:
    """A number of models.

    Example:
        >>> _models(Fraction(0)), _models(Fraction(3, 2))
        ('nothing', '1.5 times the model, all ranks together')
    """
    return f"{float(total):.4g} times the model, all ranks together" if total else "nothing"
