"""Factoring a number of ranks into axes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, SpecError, factor_world
from meshkit.testing import sizes


@pytest.mark.parametrize(
    ("layout", "wanted"),
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
def test_what_comes_out(layout: Layout, wanted: Layout) -> None:
    assert layout == wanted
    assert layout.ranks == range(layout.num_ranks)


@settings(deadline=None, max_examples=60, database=None)
@given(sizes(), st.data())
def test_any_one_size_can_be_left_to_infer(found: dict[str, int], data: st.DataObject) -> None:
    hidden = data.draw(st.sampled_from(list(found)))
    total = math.prod(found.values())
    open_sizes = {**found, hidden: -1}
    assert factor_world(total, order=list(found), **open_sizes) == Layout(**found)
    if "dp" in found:
        rest = {axis: size for axis, size in found.items() if axis != "dp"}
        assert factor_world(total, order=" ".join(found), **rest) == Layout(**found)


@pytest.mark.parametrize("world_size", [0, -1, 8.0, "8", True, None])
def test_a_world_that_is_no_number_of_ranks(world_size: object) -> None:
    with pytest.raises(SpecError, match="a world of"):
        factor_world(world_size, tp=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("world_size", "asked"),
    [(6, {"tp": 4}), (6, {"dp": 4}), (8, {"dp": 4, "tp": 4}), (8, {"dp": 2, "tp": 2})],
)
def test_a_product_that_does_not_fit(world_size: int, asked: dict[str, int]) -> None:
    with pytest.raises(SpecError) as caught:
        factor_world(world_size, **asked)
    assert caught.value.world_size == world_size


def test_a_new_axis_needs_an_order() -> None:
    with pytest.raises(SpecError):
        factor_world(8, replicate=2)


@pytest.mark.parametrize("order", [5, True])
def test_an_order_that_is_no_list_of_names_is_refused(order: object) -> None:
    with pytest.raises(SpecError):
        factor_world(8, order=order, tp=2)  # type: ignore[arg-type]


def test_more_ranks_than_int64_can_number_are_refused() -> None:
    assert factor_world(2**63 - 1).num_ranks == 2**63 - 1
    with pytest.raises(SpecError, match="int64"):
        factor_world(2**63)
