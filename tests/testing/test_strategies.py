"""The hypothesis strategies: the kinds of layouts that they reach, and their limits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.synonyms import STANDARD
from meshkit.testing import batch_plans, coordinates, layouts, ranks, sizes

law = settings(deadline=None, max_examples=60, database=None)

KINDS: dict[str, Callable[[Layout], bool]] = {
    "ranks in any order": lambda layout: not isinstance(layout.ranks, range),
    "a descending range": lambda layout: layout.ranks[0] > layout.ranks[-1],
    "a sub-world": lambda layout: min(layout.ranks) > 0,
    "the whole world in order": lambda layout: (
        isinstance(layout.ranks, range) and layout.ranks == range(layout.num_ranks)
    ),
    "a size of 1 among others": lambda layout: 1 in layout.shape and layout.num_ranks > 1,
    "a name that is not standard": lambda layout: not set(layout.axes) <= set(STANDARD),
    "standard axes out of order": lambda layout: (
        [axis for axis in STANDARD if axis in layout.axes] != list(layout.axes)
        and set(layout.axes) <= set(STANDARD)
    ),
    "three axes longer than 1": lambda layout: sum(size > 1 for size in layout.shape) > 2,
}


def test_the_strategies_reach_every_kind_of_layout() -> None:
    reached = Counter[str]()

    @seed(0)
    @settings(law, max_examples=250)
    @given(layouts(with_ranks=True))
    def count_kinds(layout: Layout) -> None:
        reached.update(kind for kind, holds in KINDS.items() if holds(layout))

    count_kinds()
    assert [kind for kind in KINDS if not reached[kind]] == []


@law
@given(st.data(), st.integers(1, 300), st.integers(1, 6))
def test_the_strategies_keep_their_limits(data: st.DataObject, limit: int, axes: int) -> None:
    drawn = data.draw(sizes(max_ranks=limit, max_axes=axes))
    assert math.prod(drawn.values()) <= limit
    assert 1 <= len(drawn) <= axes
    layout = data.draw(layouts(max_ranks=limit, max_axes=axes))
    assert layout.num_ranks <= limit
    assert layout.ranks == range(layout.num_ranks)
    assert data.draw(ranks(layout)) in layout.ranks
    assert layout.rank(**data.draw(coordinates(layout))) in layout.ranks
    plan = data.draw(
        batch_plans(
            max_dp=2, max_micro_batch=3, max_accumulation_steps=5, uneven=data.draw(st.booleans())
        )
    )
    assert (plan.dp <= 2, plan.micro_batch <= 3, plan.accumulation_steps <= 5) == (True,) * 3
