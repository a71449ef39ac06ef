"""The order of axes: standard, or as the caller gives it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import SpecError
from meshkit.core.axes import STANDARD
from meshkit.core.sizes import order_axes, view_sizes


@pytest.mark.parametrize(
    ("sizes", "order", "names"),
    [
        ({"tp": 2, "dp": 4}, None, "dp tp"),
        ({"tp": 2, "sp": 2, "cp": 2, "ep": 2, "dp": 2, "pp": 2}, None, "pp dp ep cp sp tp"),
        ({"tp": 2, "pp": 2}, None, "pp dp tp"),
        ({}, None, "dp"),
        ({"tp": 2, "dp": 4}, "tp dp", "tp dp"),
        ({"tp": 2, "dp": 4}, ["tp", "dp"], "tp dp"),
        ({"tp": 2}, "tp dp", "tp dp"),
        ({"tp": 2, "sp": 4}, "tp sp", "tp sp"),
        ({"replicate": 2, "shard": 4}, "replicate shard", "replicate shard"),
        ({"shard": 4}, "dp shard", "dp shard"),
        ({}, "dp", "dp"),
    ],
)
def test_the_axes_are_in_the_given_or_the_standard_order(
    sizes: dict[str, int], order: Any, names: str
) -> None:
    ordered = order_axes(sizes, order)
    assert list(ordered) == names.split()
    assert {axis: size for axis, size in ordered.items() if axis in sizes} == sizes
    assert all(ordered[axis] == -1 for axis in ordered if axis not in sizes)


@settings(deadline=None, max_examples=60, database=None)
@given(st.permutations(STANDARD), st.integers(0, 6))
def test_the_standard_order_does_not_depend_on_the_order_written(
    names: list[str], count: int
) -> None:
    ordered = order_axes(dict.fromkeys(names[:count], 2), None)
    assert list(ordered) == [n for n in STANDARD if n in {*names[:count], "dp"}]


def test_an_axis_without_a_standard_position_needs_an_order() -> None:
    with pytest.raises(SpecError) as caught:
        order_axes({"dp": 2, "tpp": 4}, None)
    error = caught.value
    assert (error.axis, error.axes, error.suggestion) == ("tpp", STANDARD, "tp")
    assert error.sizes == {"dp": 2, "tpp": 4}


@pytest.mark.parametrize("order", ["tp dp sp", "tp-dp-sp", "tp dp", ("tp", "dp", "cp")])
def test_an_absent_standard_axis_may_stand_in_the_order(order: str | tuple[str, ...]) -> None:
    reverse = isinstance(order, str) and "-" in order  # Megatron's begins at the innermost axis
    expected = ["dp", "tp"] if reverse else ["tp", "dp"]
    assert [*order_axes({"tp": 2}, order)] == expected


@pytest.mark.parametrize(
    ("sizes", "order", "evidence"),
    [
        ({"tp": 2}, "dp x tp", "x is in order but has no size."),
        ({"tp": 2, "sp": 2}, "dp tp", "sp has a size but is not in order."),
        ({"tp": 2, "dp": 2}, "tp", "dp has a size but is not in order."),
        ({"tp": 2}, "tp dp tp", "tp appears twice in order."),
        ({"dp": -1, "tp": 2}, "tp", "dp has a size but is not in order."),
    ],
)
def test_an_order_that_differs_from_the_sizes_raises_an_error(
    sizes: dict[str, int], order: str, evidence: str
) -> None:
    with pytest.raises(SpecError) as caught:
        order_axes(sizes, order)
    assert f"  {evidence}\n" in str(caught.value)


def test_a_set_is_no_order_as_its_order_differs_between_processes() -> None:
    with pytest.raises(SpecError, match=r"order is .*, a set"):
        order_axes({"tp": 2, "dp": 4}, {"dp", "tp"})


def test_an_illegal_name_in_the_order_raises_an_error() -> None:
    with pytest.raises(SpecError, match="'_x' cannot be the name"):
        order_axes({"tp": 2}, "dp _x tp")


def test_dp_is_not_inferred_if_another_size_is_open() -> None:
    with pytest.raises(SpecError, match="leaves the sizes of dp and tp open"):
        order_axes({"tp": -1}, None)
    assert order_axes({"tp": -1}, "tp") == {"tp": -1}


def test_a_view_keeps_the_order_written() -> None:
    assert list(view_sizes({"replicate": 2, "dp": 2, "shard": 4, "tp": 2}, None)) == [
        "replicate",
        "dp",
        "shard",
        "tp",
    ]
    assert view_sizes({"tp": 2, "dp": 4}, "tp dp") == {"tp": 2, "dp": 4}


def test_a_view_with_standard_axes_out_of_order_raises_an_error() -> None:
    with pytest.raises(SpecError) as caught:
        view_sizes({"tp": 2, "x": 3, "dp": 4}, None)
    assert str(caught.value).startswith("tp dp is not the standard order, dp tp.\n")
    assert caught.value.fix_text.startswith("dp=4, x=3, tp=2; or ")
