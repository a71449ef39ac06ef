"""Hypothesis strategies for what is pure: names, sizes, layouts, places in them, batch plans.

Every example is legal: its names pass, its product is bounded, its ranks are distinct. Simple
examples come first when hypothesis shrinks: few axes, short sizes, no ``ranks``.
"""

from __future__ import annotations

import math

import numpy as np

from ..core.call import public

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError("meshkit.testing needs hypothesis: pip install 'meshkit[testing]'") from error

from ..core.arrays import Ints
from ..core.data.batch import BatchPlan
from ..core.errors import SpecError
from ..core.grid.axis_names import STANDARD, check_names
from ..core.grid.layout import Layout

_NAME = r"[A-Za-z][A-Za-z0-9_]{0,6}[A-Za-z0-9]|[A-Za-z]"


def axis_names() -> st.SearchStrategy[str]:
    """Legal names of axes: the standard ones, and others of up to 8 characters.

    Example:
        >>> from hypothesis import find
        >>> find(axis_names(), lambda name: True)
        'pp'
    """
    return st.sampled_from(STANDARD) | st.from_regex(_NAME, fullmatch=True).filter(_legal)


def sizes(*, max_ranks: int = 64, max_axes: int = 4) -> st.SearchStrategy[dict[str, int]]:
    """Axis name to size, in any order, standard names and others mixed; sizes of 1 included.

    Args:
        max_ranks: the largest product of the sizes; 1 or more.
        max_axes: the largest number of axes; 1 or more.

    Example:
        >>> from hypothesis import find
        >>> find(sizes(), lambda found: len(found) == 2)
        {'pp': 1, 'dp': 1}
    """
    return _sizes(max_ranks, max_axes)


def layouts(
    *, max_ranks: int = 64, max_axes: int = 4, with_ranks: bool = False
) -> st.SearchStrategy[Layout]:
    """Layouts.

    Args:
        max_ranks: as in :func:`sizes`.
        max_axes: as in :func:`sizes`.
        with_ranks: whether some of them carry ``ranks`` of their own: a range with a start and a
            step, forwards or backwards, or distinct ranks in any order. False means that the
            rank is always the position.

    Example:
        >>> from hypothesis import given
        >>> @given(layouts(with_ranks=True))
        ... def every_rank_has_a_place(layout):
        ...     assert all(layout.rank(**layout.coordinate(rank)) == rank for rank in layout.ranks)
        >>> every_rank_has_a_place()
    """
    return _layouts(max_ranks, max_axes, with_ranks)


def coordinates(layout: Layout) -> st.SearchStrategy[dict[str, int]]:
    """Coordinates of a layout: axis name to index, for every axis. Costs O(axes).

    Example:
        >>> from hypothesis import find
        >>> find(coordinates(Layout(dp=4, sp=2)), lambda found: found["dp"] > 1)
        {'dp': 2, 'sp': 0}
    """
    return st.fixed_dictionaries(
        {axis: st.integers(0, size - 1) for axis, size in layout.sizes.items()}
    )


def ranks(layout: Layout) -> st.SearchStrategy[int]:
    """Ranks of a layout, whatever its number of ranks.

    Example:
        >>> from hypothesis import find
        >>> find(ranks(Layout(dp=2, ranks=range(8, 10))), lambda rank: True)
        8
    """
    return st.integers(0, layout.num_ranks - 1).map(lambda place: int(layout.ranks[place]))


def axes_of(layout: Layout, *, min_size: int = 0) -> st.SearchStrategy[tuple[str, ...]]:
    """Axes of a layout as ``groups``, ``peers`` and ``size`` take them: any order, none twice.

    Args:
        layout: whose axes.
        min_size: how many at least. With 0 there may be none, which means the whole mesh.

    Example:
        >>> from hypothesis import find
        >>> find(axes_of(Layout(dp=4, sp=2)), lambda axes: len(axes) == 2)
        ('dp', 'sp')
    """
    return st.lists(st.sampled_from(layout.axes), min_size=min_size, unique=True).map(tuple)


def batch_plans(
    *,
    max_dp: int = 8,
    max_micro_batch: int = 8,
    max_accumulation_steps: int = 8,
    uneven: bool = False,
) -> st.SearchStrategy[BatchPlan]:
    """Batch plans; the global batch is at most the product of the three limits.

    Args:
        max_dp: the largest number of data coordinates.
        max_micro_batch: the largest micro batch, in samples.
        max_accumulation_steps: the largest number of micro batches in a step.
        uneven: whether some data coordinates may run one micro batch less than others.

    Example:
        >>> from hypothesis import find
        >>> print(find(batch_plans(), lambda plan: plan.dp > 1))
        global_batch 2 = micro_batch 1 x accumulation_steps 1 x dp 2
    """
    sizes = st.integers(1, max_dp), st.integers(1, max_micro_batch)
    steps = st.integers(1, max_accumulation_steps)
    left_out = st.integers(0, max_dp - 1) if uneven else st.just(0)
    return st.builds(_plan, *sizes, steps, left_out)


def _plan(dp: int, micro_batch: int, steps: int, left_out: int) -> BatchPlan:
    """A plan whose last micro step is not run by some of the data coordinates."""
    total = micro_batch * (dp * steps - min(left_out, dp - 1))
    return BatchPlan.solve(dp=dp, global_batch=total, micro_batch=micro_batch, uneven=True)


@public("axis_names")
def _legal(name: str) -> bool:
    try:
        check_names([name])
    except SpecError:
        return False
    return True


@st.composite
def _sizes(draw: st.DrawFn, max_ranks: int, max_axes: int) -> dict[str, int]:
    names = draw(st.lists(axis_names(), min_size=1, max_size=max_axes, unique=True))
    left, found = max_ranks, []
    for _ in names[1:]:
        found.append(draw(st.integers(1, math.isqrt(left))))
        left //= found[-1]
    found.append(draw(st.integers(1, left)))
    return dict(zip(names, draw(st.permutations(found)), strict=True))


@st.composite
def _layouts(draw: st.DrawFn, max_ranks: int, max_axes: int, with_ranks: bool) -> Layout:
    found = draw(_sizes(max_ranks, max_axes))
    seats = st.none() | _ranges(math.prod(found.values())) if with_ranks else st.none()
    held = draw(seats)
    if held is None or draw(st.booleans()):
        return Layout(ranks=held, **found)
    return Layout(ranks=_shuffled(held, draw(st.integers(0, 2**32 - 1))), **found)


@st.composite
def _ranges(draw: st.DrawFn, count: int) -> range:
    start, step = draw(st.integers(0, 100)), draw(st.integers(1, 3))
    forwards = range(start, start + step * count, step)
    return forwards[::-1] if draw(st.booleans()) else forwards


def _shuffled(held: range, seed: int) -> Ints:
    return np.random.default_rng(seed).permutation(np.array(held, dtype=np.int64))
