"""Difference: what a change of the grid changes for each rank, as data and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from .batch import BatchPlan
from .draw.table import format_items, format_table
from .layout import Layout
from .seats import Ints
from .shards import CUT, Moves, index, moves
from .sheet import headline
from .words import count_noun, format_range, summarize_ranks


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
        groups = {axis: _regrouped(before, after, axis) for axis in axes}
        return cls(before, after, groups, _reading(before, after, batch), moves(before, after))

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


def difference_text(found: Difference, *, width: int = 80, ascii: bool = False) -> str:
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
        [axis, str(before.get(axis, "-")), str(after.get(axis, "-")), summarize_ranks(ranks)]
        for axis, ranks in found.groups.items()
    ]
    header = ["axis", "before", "after", "whose group changes"]
    heads = [("before", headline(found.before)), ("after", headline(found.after))]
    drawn = format_table(header, rows, width=width, ascii=ascii)
    facts = [*_facts(found), *_moved(found.moves)]
    return "\n\n".join([format_items(heads, width=width), drawn, format_items(facts, width=width)])


def _regrouped(before: Layout, after: Layout, axis: str) -> Ints:
    """The ranks whose group over an axis is another, and those of one grid only."""
    stay, most = _ends(before, after)
    one, other = (layout.strides(axis) if axis in layout.axes else () for layout in (before, after))
    return np.arange(
        stay if one == other else 0, most, dtype=np.int64
    )  # equal for all, or for none


def _reading(before: Layout, after: Layout, batch: BatchPlan | None) -> Ints:
    """The ranks of both grids that own other samples of a step."""
    stay, _ = _ends(before, after)
    ranks = np.arange(stay, dtype=np.int64)
    was, now = index(before, "dp", ranks), index(after, "dp", ranks)
    dp = before.sizes.get("dp", 1), after.sizes.get("dp", 1)
    if batch is None:
        return np.flatnonzero((was != now) | (dp[0] != dp[1]))
    # micro batches d, d + dp, ... below this: two runs are equal where both their first two are
    cuts = batch.global_batch // batch.micro_batch
    firsts = np.minimum(was, cuts) != np.minimum(now, cuts)
    seconds = np.minimum(was + dp[0], cuts) != np.minimum(now + dp[1], cuts)
    return np.flatnonzero(firsts | seconds)


def _ends(before: Layout, after: Layout) -> tuple[int, int]:
    """How many ranks are in both grids, and how many in the larger."""
    least, most = sorted((before.num_ranks, after.num_ranks))
    return least, most


def _facts(found: Difference) -> Iterator[tuple[str, str]]:
    """Who stays, and who reads what."""
    stay, most = _ends(found.before, found.after)
    if most > stay:
        verb = "leave" if found.before.num_ranks == most else "join"
        yield "ranks", f"{stay} stay, {most - stay} {verb}: {format_range(stay, most - 1)}"
    sizes = [str(layout.sizes.get("dp", 1)) for layout in (found.before, found.after)]
    yield (
        "data",
        f"dp {' -> '.join(sizes)}; {summarize_ranks(found.data)} own other samples of a step",
    )


def _moved(moved: Moves) -> Iterator[tuple[str, str]]:
    """What a checkpoint must move, with the rule."""
    rule = f"weights are cut by {' and '.join(CUT)}, all other axes hold copies"
    cut = f"{count_noun(moved.parts_before, 'part')} -> {count_noun(moved.parts_after, 'part')}"
    yield "weights", f"{cut} ({rule})"
    for share, ranks in moved.held.items():
        what = {0: "none", 1: "all"}.get(share, str(share))  # type: ignore[call-overload]
        yield "", f"{summarize_ranks(ranks)} hold{'s' * (len(ranks) == 1)} {what} of what they need"
    yield "to fetch", _models(moved.total)
    if moved.lost:
        gone = f"{count_noun(moved.lost, 'part')} of {moved.parts_before}"
        yield "lost", f"{gone} {'is' if moved.lost == 1 else 'are'} on no rank that stays"


def _models(total: Fraction) -> str:
    """A number of models.

    Example:
        >>> _models(Fraction(0)), _models(Fraction(3, 2))
        ('nothing', '1.5 times the model, all ranks together')
    """
    return f"{float(total):.4g} times the model, all ranks together" if total else "nothing"
