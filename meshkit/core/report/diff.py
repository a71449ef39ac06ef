"""Changes between two layouts of the same ranks: groups, samples, and weights to fetch.

Weights are cut by pp into equal runs of layers and by tp into equal slices of each layer. Ranks
along all other axes hold copies. FSDP cuts each part once more, over the ranks that hold copies.
Part ``i`` of ``a`` holds the interval from ``i / a`` to ``(i + 1) / a``::

    tp=2   | 0           | 1           |      a rank that was 1 of 2 and is 1 of 3
    tp=3   | 0      | 1       | 2      |      needs the middle third and holds half of it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..arrays import Ints
from ..batch import Axes, BatchPlan, num_data_coordinates, resolve_data_axes
from ..draw.table import format_items, format_table
from ..grid.layout import Layout
from ..grid.roles import unknown_axes
from ..text import count_noun, format_range, summarize_ranks
from .job import headline

WEIGHT_AXES = ("pp", "tp")


@dataclass(frozen=True)
class Moves:
    """The weights that ranks must fetch after a change of layout."""

    parts_before: int  # of the weights
    parts_after: int
    held: Mapping[Fraction, Ints]  # share of the new part that a rank holds, to these ranks
    total: Fraction  # fetches of all ranks, in sizes of the whole model
    lost: int  # parts before that no staying rank holds


def weight_moves(before: Layout, after: Layout) -> Moves:
    """Return the weights to fetch after a change of layout. Cost: O(num_ranks)."""
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
    """Return the number of parts that the weights are cut into."""
    return layout.sizes.get("pp", 1) * layout.sizes.get("tp", 1)


def _overlap(before: Layout, after: Layout, axis: str, ranks: Ints) -> Ints:
    """Return the share that a rank holds of its new slice along an axis, in 1 / (size before)."""
    a, b = before.sizes.get(axis, 1), after.sizes.get(axis, 1)
    i, j = axis_index(before, axis, ranks), axis_index(after, axis, ranks)
    common = np.minimum((i + 1) * b, (j + 1) * a) - np.maximum(i * b, j * a)
    return np.asarray(np.maximum(common, 0))


def _weight_part(layout: Layout, ranks: Ints) -> Ints:
    return axis_index(layout, "pp", ranks) * layout.sizes.get("tp", 1) + axis_index(
        layout, "tp", ranks
    )


def axis_index(layout: Layout, axis: str, ranks: Ints) -> Ints:
    """Return the index of each rank along an axis; 0 if the layout lacks the axis."""
    if axis not in layout.axes:
        return np.zeros_like(ranks)
    return layout.coordinates(ranks)[:, layout.axes.index(axis)]


@dataclass(frozen=True)
class Difference:
    """The changes between two layouts whose ranks keep their numbers. Create it with :meth:`of`."""

    before: Layout
    after: Layout
    groups: Mapping[str, Ints]  # axis to the ranks whose group over it differs or is new or gone
    data_axes: tuple[Axes, Axes] | None  # before and after; None if unknown
    data: Ints | None  # staying ranks that own other samples than before; None if unknown
    moves: Moves

    @classmethod
    def of(
        cls,
        before: Layout,
        after: Layout,
        batch: BatchPlan | None = None,
        *,
        data: tuple[Axes | None, Axes | None] = (None, None),
    ) -> Difference:
        """Return the difference of two layouts with ranks from 0. Cost: O(axes x num_ranks).

        The axes that divide the samples are ``data``; if one is None, the roles of the axes give
        them.
        """
        axes = dict.fromkeys((*before.axes, *after.axes))
        groups = {axis: _changed_group_ranks(before, after, axis) for axis in axes}
        data_axes = _data_axes(before, after, data)
        changed = data_axes and _changed_data_ranks(before, after, data_axes, batch)
        return cls(before, after, groups, data_axes, changed, weight_moves(before, after))

    def as_dict(self) -> dict[str, object]:
        """Return the difference in JSON types; shares of weights are strings such as ``"1/2"``."""
        held = {str(share): ranks.tolist() for share, ranks in self.moves.held.items()}
        return {
            "before": self.before.sizes,
            "after": self.after.sizes,
            "groups": {axis: ranks.tolist() for axis, ranks in self.groups.items()},
            "data": None if self.data is None else self.data.tolist(),
            "checkpoint": {**vars(self.moves), "held": held, "total": str(self.moves.total)},
        }


def format_diff(difference: Difference, *, width: int = 80, ascii: bool = False) -> str:
    """Return a difference as text."""
    before, after = difference.before.sizes, difference.after.sizes
    rows = [
        [axis, str(before.get(axis, "-")), str(after.get(axis, "-")), summarize_ranks(ranks)]
        for axis, ranks in difference.groups.items()
    ]
    header = ["axis", "before", "after", "whose group changes"]
    heads = [("before", headline(difference.before)), ("after", headline(difference.after))]
    drawn = format_table(header, rows, width=width, ascii=ascii)
    facts = [*_rank_facts(difference), *_move_facts(difference.moves)]
    return "\n\n".join([format_items(heads, width=width), drawn, format_items(facts, width=width)])


def _changed_group_ranks(before: Layout, after: Layout, axis: str) -> Ints:
    """Return the ranks whose group over an axis changes, and the ranks of only one layout."""
    stay, largest = _num_staying(before, after)
    one, other = (layout.strides(axis) if axis in layout.axes else () for layout in (before, after))
    first = stay if one == other else 0  # the groups change for all ranks, or for none
    return np.arange(first, largest, dtype=np.int64)


def _data_axes(
    before: Layout, after: Layout, data: tuple[Axes | None, Axes | None]
) -> tuple[Axes, Axes] | None:
    """Return the axes that divide the samples before and after; None if one is unknown."""
    pairs = [*zip((before.sizes, after.sizes), data, strict=True)]
    if any(axes is None and unknown_axes(sizes) for sizes, axes in pairs):
        return None
    first, second = (resolve_data_axes(axes, sizes) for sizes, axes in pairs)
    return first, second


def _changed_data_ranks(
    before: Layout, after: Layout, data: tuple[Axes, Axes], batch: BatchPlan | None
) -> Ints:
    """Return the staying ranks that own other samples of a step."""
    stay, _ = _num_staying(before, after)
    ranks = np.arange(stay, dtype=np.int64)
    was, now = _data_index(before, data[0], ranks), _data_index(after, data[1], ranks)
    dp = _num_data(before, data[0]), _num_data(after, data[1])
    if batch is None:
        return np.flatnonzero((was != now) | (dp[0] != dp[1]))
    # micro batches d, d + dp, ... below `cuts`: two runs are equal if their first two are equal
    cuts = batch.global_batch // batch.micro_batch
    firsts = np.minimum(was, cuts) != np.minimum(now, cuts)
    seconds = np.minimum(was + dp[0], cuts) != np.minimum(now + dp[1], cuts)
    return np.flatnonzero(firsts | seconds)


def _data_index(layout: Layout, axes: Axes, ranks: Ints) -> Ints:
    """Return the data coordinate of each rank: its index along the axes, the last one fastest."""
    index = np.zeros_like(ranks)
    for axis in axes:
        index = index * layout.sizes[axis] + axis_index(layout, axis, ranks)
    return index


def _num_data(layout: Layout, axes: Axes) -> int:
    return num_data_coordinates(layout.sizes, axes)


def _num_staying(before: Layout, after: Layout) -> tuple[int, int]:
    """Return the number of ranks in both layouts, and in the larger one."""
    least, largest = sorted((before.num_ranks, after.num_ranks))
    return least, largest


def _rank_facts(difference: Difference) -> Iterator[tuple[str, str]]:
    """Yield the facts about staying ranks and their samples."""
    stay, largest = _num_staying(difference.before, difference.after)
    if largest > stay:
        verb = "leave" if difference.before.num_ranks == largest else "join"
        yield "ranks", f"{stay} stay, {largest - stay} {verb}: {format_range(stay, largest - 1)}"
    yield "data", _describe_change(difference)


def _describe_change(difference: Difference) -> str:
    """Return the data coordinates before and after, and the ranks that own other samples."""
    if difference.data_axes is None or difference.data is None:
        sizes = {**difference.before.sizes, **difference.after.sizes}
        return f"unknown, as no role is known for {' and '.join(unknown_axes(sizes))}: --data AXES"
    before, after = difference.data_axes
    name = " ".join(dict.fromkeys((*before, *after))) or "no axis"
    change = f"{_num_data(difference.before, before)} -> {_num_data(difference.after, after)}"
    return f"{name} {change}; {summarize_ranks(difference.data)} own other samples of a step"


def _move_facts(moves: Moves) -> Iterator[tuple[str, str]]:
    """Yield the facts about the weights to move."""
    rule = f"weights are cut by {' and '.join(WEIGHT_AXES)}, all other axes hold copies"
    cut = f"{count_noun(moves.parts_before, 'part')} -> {count_noun(moves.parts_after, 'part')}"
    yield "weights", f"{cut} ({rule})"
    for share, ranks in moves.held.items():
        what = {0: "none", 1: "all"}.get(share, str(share))  # type: ignore[call-overload]
        yield "", f"{summarize_ranks(ranks)} hold{'s' * (len(ranks) == 1)} {what} of what they need"
    yield "to fetch", _format_models(moves.total)
    if moves.lost:
        gone = f"{count_noun(moves.lost, 'part')} of {moves.parts_before}"
        yield "lost", f"{gone} {'is' if moves.lost == 1 else 'are'} on no rank that stays"


def _format_models(total: Fraction) -> str:
    """Return a number of models as text."""
    return f"{float(total):.4g} times the model, all ranks together" if total else "nothing"
