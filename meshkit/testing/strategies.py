"""Hypothesis strategies for names, sizes, layouts, coordinates, ranks, axes and batch plans.

Every example is valid: its names are legal, its product is bounded, its ranks are distinct.
Hypothesis shrinks to simple examples: few axes, small sizes, no ``ranks``.
"""

from __future__ import annotations

import math

import numpy as np

try:
    from hypothesis import strategies as st
except ImportError as error:
    text = "the strategies of meshkit.testing need hypothesis: pip install hypothesis"
    raise ImportError(text) from error

from ..data.batch import BatchPlan
from ..errors import SpecError
from ..layout.axes import check_names
from ..layout.layout import Layout
from ..synonyms import STANDARD

_NAME = r"[A-Za-z][A-Za-z0-9_]{0,6}[A-Za-z0-9]|[A-Za-z]"


def _is_legal(name: str) -> bool:
    try:
        check_names([name])
    except SpecError:
        return False
    return True


# A strategy of a regular expression is expensive to make, so that all examples share one.
_AXIS_NAMES = st.sampled_from(STANDARD) | st.from_regex(_NAME, fullmatch=True).filter(_is_legal)


def axis_names() -> st.SearchStrategy[str]:
    """Return legal names of axes: the standard ones, and others of up to 8 characters."""
    return _AXIS_NAMES


@st.composite
def sizes(  # noqa: D417  # hypothesis passes draw
    draw: st.DrawFn, *, max_ranks: int = 64, max_axes: int = 4
) -> dict[str, int]:
    """Return sizes by axis name: standard and other names in any order, sizes of 1 included.

    Args:
        max_ranks: the largest product of the sizes; 1 or more.
        max_axes: the largest number of axes; 1 or more.

    Example:
        >>> from hypothesis import find
        >>> find(sizes(max_axes=1), lambda sizes: sizes.get("dp", 1) > 1)
        {'dp': 2}
    """
    names = draw(st.lists(_AXIS_NAMES, min_size=1, max_size=max_axes, unique=True))
    limit, numbers = max_ranks, []
    for _ in names[1:]:
        numbers.append(draw(st.integers(1, math.isqrt(limit))))
        limit //= numbers[-1]
    numbers.append(draw(st.integers(1, limit)))
    return dict(zip(names, draw(st.permutations(numbers)), strict=True))


@st.composite
def layouts(  # noqa: D417
    draw: st.DrawFn, *, max_ranks: int = 64, max_axes: int = 4, with_ranks: bool = False
) -> Layout:
    """Return layouts.

    Args:
        max_ranks: as in :func:`sizes`.
        max_axes: as in :func:`sizes`.
        with_ranks: whether some of them have explicit ``ranks``: an ascending or descending range
            with a start and a step, or distinct ranks in any order. Otherwise each rank equals its
            position.

    Example:
        >>> from hypothesis import given
        >>> @given(layouts(with_ranks=True))
        ... def each_rank_has_a_coordinate(layout):
        ...     assert all(layout.rank(**layout.coordinate(rank)) == rank for rank in layout.ranks)
        >>> each_rank_has_a_coordinate()
    """
    axis_sizes = draw(sizes(max_ranks=max_ranks, max_axes=max_axes))
    if not with_ranks or not draw(st.booleans()):
        return Layout(ranks=None, **axis_sizes)
    start, step = draw(st.integers(0, 100)), draw(st.integers(1, 3))
    explicit = range(start, start + step * math.prod(axis_sizes.values()), step)
    order = draw(st.sampled_from(("ascending", "descending", "any")))
    if order == "any":
        shuffle = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).permutation
        return Layout(ranks=shuffle(np.array(explicit, dtype=np.int64)), **axis_sizes)
    return Layout(ranks=explicit if order == "ascending" else explicit[::-1], **axis_sizes)


def coordinates(layout: Layout) -> st.SearchStrategy[dict[str, int]]:
    """Return coordinates of a layout: axis name to index, for every axis."""
    return st.fixed_dictionaries(
        {axis: st.integers(0, size - 1) for axis, size in layout.sizes.items()}
    )


def ranks(layout: Layout) -> st.SearchStrategy[int]:
    """Return ranks of a layout of any size."""
    return st.integers(0, layout.num_ranks - 1).map(lambda position: int(layout.ranks[position]))


def axes_of(layout: Layout, *, min_size: int = 0) -> st.SearchStrategy[tuple[str, ...]]:
    """Return axes of a layout, as arguments of ``groups``, ``peers`` and ``size``.

    They are in any order, and none is repeated.

    Args:
        layout: the layout.
        min_size: the least number of axes. No axes mean the group of one rank.
    """
    return st.lists(st.sampled_from(layout.axes), min_size=min_size, unique=True).map(tuple)


def batch_plans(
    *,
    max_dp: int = 8,
    max_micro_batch: int = 8,
    max_accumulation_steps: int = 8,
    uneven: bool = False,
) -> st.SearchStrategy[BatchPlan]:
    """Return batch plans; the global batch is at most the product of the three limits.

    Args:
        max_dp: the largest number of data coordinates.
        max_micro_batch: the largest micro batch, in samples.
        max_accumulation_steps: the largest number of micro batches in a step.
        uneven: whether some data coordinates may run one micro batch less than others.
    """
    return st.builds(
        _solve_plan,
        st.integers(1, max_dp),
        st.integers(1, max_micro_batch),
        st.integers(1, max_accumulation_steps),
        st.integers(0, max_dp - 1) if uneven else st.just(0),
    )


def _solve_plan(dp: int, micro_batch: int, steps: int, num_skipping: int) -> BatchPlan:
    """Return a plan in which some data coordinates do not run the last micro step."""
    total = micro_batch * (dp * steps - min(num_skipping, dp - 1))
    return BatchPlan.solve(dp=dp, global_batch=total, micro_batch=micro_batch, uneven=True)
