"""factor_world and split_world: a number of ranks as named axes, or as parts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, SpecError, factor_world, split_world
from meshkit.core.grid.sizes import merge_sizes
from meshkit.testing import sizes


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        (factor_world(8), Layout(dp=8)),
        (factor_world(1), Layout(dp=1)),
        (factor_world(64, tp=8, sp=2), Layout(dp=4, sp=2, tp=8)),
        (factor_world(64, tp=8, pp=2), Layout(pp=2, dp=4, tp=8)),
        (factor_world(8, dp=4, tp=-1), Layout(dp=4, tp=2)),
        (factor_world(8, tp=8), Layout(dp=1, tp=8)),
        (factor_world(8, dp=-1, tp=2), Layout(dp=4, tp=2)),
        (factor_world(8, order="tp dp", tp=2), Layout(tp=2, dp=4)),
        (factor_world(8, order=("tp", "dp"), tp=2), Layout(tp=2, dp=4)),
        (factor_world(8, order="sp tp", sp=4, tp=2), Layout(sp=4, tp=2)),
        (factor_world(8, order="sp tp", sp=4, tp=-1), Layout(sp=4, tp=2)),
        (factor_world(8, order="replicate dp", replicate=2), Layout(replicate=2, dp=4)),
        (factor_world(np.int64(8), tp=np.int32(2)), Layout(dp=4, tp=2)),
    ],
)
def test_factor_world(layout: Layout, expected: Layout) -> None:
    assert layout == expected
    assert layout.ranks == range(layout.num_ranks)


@settings(deadline=None, max_examples=60, database=None)
@given(sizes(), st.data())
def test_any_one_size_can_be_inferred(expected: dict[str, int], data: st.DataObject) -> None:
    hidden = data.draw(st.sampled_from(list(expected)))
    total = math.prod(expected.values())
    open_sizes = {**expected, hidden: -1}
    assert factor_world(total, order=list(expected), **open_sizes) == Layout(**expected)
    if "dp" in expected:
        others = {axis: size for axis, size in expected.items() if axis != "dp"}
        assert factor_world(total, order=" ".join(expected), **others) == Layout(**expected)


@pytest.mark.parametrize("world_size", [0, -1, 8.0, "8", True, None])
def test_a_world_size_that_is_not_positive_raises_an_error(world_size: object) -> None:
    with pytest.raises(SpecError, match="world_size is"):
        factor_world(world_size, tp=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("world_size", "sizes"),
    [(6, {"tp": 4}), (6, {"dp": 4}), (8, {"dp": 4, "tp": 4}), (8, {"dp": 2, "tp": 2})],
)
def test_a_product_other_than_the_world_size_raises_an_error(
    world_size: int, sizes: dict[str, int]
) -> None:
    with pytest.raises(SpecError) as caught:
        factor_world(world_size, **sizes)
    assert caught.value.world_size == world_size


def test_an_axis_that_is_not_standard_needs_an_order() -> None:
    with pytest.raises(SpecError):
        factor_world(8, replicate=2)


@pytest.mark.parametrize("order", [5, True])
def test_an_order_that_is_no_list_of_names_raises_an_error(order: object) -> None:
    with pytest.raises(SpecError):
        factor_world(8, order=order, tp=2)  # type: ignore[arg-type]


def test_a_world_has_at_most_2_to_the_31_ranks() -> None:
    assert factor_world(2**31).num_ranks == 2**31
    with pytest.raises(SpecError):
        factor_world(2**31 + 1)


def test_merge_sizes_of_a_mapping_and_of_keywords() -> None:
    assert merge_sizes({"dp": 4}, {"tp": 2}) == {"dp": 4, "tp": 2}
    assert merge_sizes(None, {"tp": 2}) == {"tp": 2}
    with pytest.raises(SpecError, match="gives dp twice"):
        merge_sizes({"dp": 4}, {"dp": 4})
    with pytest.raises(SpecError, match="sizes is a list"):
        merge_sizes([4], {})


def test_split_world_keeps_the_order_of_the_parts() -> None:
    parts = split_world(actor=8, critic=4, reference=4)
    assert parts == {"actor": range(8), "critic": range(8, 12), "reference": range(12, 16)}
    assert list(parts) == ["actor", "critic", "reference"]
    assert split_world(16, actor=8, critic=-1) == {"actor": range(8), "critic": range(8, 16)}
    assert split_world(np.int64(4), actor=np.int64(4)) == {"actor": range(4)}


@settings(deadline=None, database=None)
@given(st.lists(st.integers(1, 99), min_size=1, max_size=8), st.data())
def test_the_parts_hold_each_rank_once(numbers: list[int], data: st.DataObject) -> None:
    named = {f"part{index}": size for index, size in enumerate(numbers)}
    parts = split_world(sum(numbers), **named)
    assert [len(part) for part in parts.values()] == numbers
    assert [*itertools.chain(*parts.values())] == [*range(sum(numbers))]
    name = data.draw(st.sampled_from(sorted(named)))
    assert split_world(sum(numbers), **{**named, name: -1}) == parts


@pytest.mark.parametrize("parts", [{}, {"actor": 0}, {"actor": "4"}, {"actor": -1, "critic": -1}])
def test_invalid_parts_raise_an_error(parts: dict[str, int]) -> None:
    with pytest.raises(SpecError, match="split_world"):
        split_world(8, **parts)


def test_parts_may_have_names_that_no_axis_can_have() -> None:
    assert split_world(data=2, axis=2) == {"data": range(2), "axis": range(2, 4)}
