"""Names, order and sizes of axes."""

from __future__ import annotations

import keyword
import math
import warnings
from typing import Any

import einops
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, SpecError, UnknownAxisError
from meshkit.core.call import Call
from meshkit.core.grid.axis_names import (
    MAX_AXES,
    RESERVED,
    STANDARD,
    check_axes_exist,
    check_names,
    check_one_inferred,
    check_sizes,
    closest_axis,
    infer_sizes,
    parse_axes,
)
from meshkit.core.grid.order import order_axes
from meshkit.testing import axis_names

CALL = Call("f")


def test_the_standard_axes_from_the_outside_in() -> None:
    assert STANDARD == ("pp", "dp", "ep", "cp", "sp", "tp")


def test_the_names_of_options_those_to_come_included() -> None:
    promised = (
        "order groups ranks timeout arrival_timeout backend data place crossing within across"
    )
    assert set(promised.split()) <= RESERVED


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("dp sp", ("dp", "sp")),
        (" dp  sp ", ("dp", "sp")),
        ("", ()),
        (["dp"], ("dp",)),
        (("dp",), ("dp",)),
    ],
)
def test_listed(names: object, found: tuple[str, ...]) -> None:
    assert parse_axes(names) == found  # type: ignore[arg-type]


def test_closest() -> None:
    assert closest_axis("tpp", STANDARD) == "tp"
    assert closest_axis("TP", STANDARD) == "tp"
    assert closest_axis("replicat", ("replicate", "shard")) == "replicate"
    assert closest_axis("expert_model", ("dp", "tp")) is None


# ---------------------------------------------------------------- names

GOOD = ["dp", "DP", "d", "dp2", "d_p", "replicate", "match", "type", "axes", "x" * 200]
BAD = [
    *("", " ", "2dp", "d-p", "d.p", "dp sp", "dé", "\uff44\uff50", "_dp", "dp_", "_", "__"),
    *("axis", "for", "None", "lambda", "async"),
    *sorted(RESERVED),
    *(3, None, b"dp", ("dp",)),
]


@pytest.mark.parametrize("name", GOOD)
def test_names_that_are_legal(name: str) -> None:
    check_names([name])
    assert Layout(**{name: 2}).axes == (name,)


@pytest.mark.parametrize("name", BAD, ids=repr)
def test_names_that_are_not(name: object) -> None:
    with pytest.raises(SpecError, match="cannot be the name of an axis"):
        check_names([name])


@pytest.mark.parametrize("name", keyword.kwlist)
def test_no_keyword_is_a_name(name: str) -> None:
    with pytest.raises(SpecError, match="word of the language"):
        check_names([name])


@pytest.mark.parametrize("name", ["self", "cls", "sizes", "call", "pattern", "world_size", "name"])
def test_a_name_works_as_an_axis_or_is_refused_with_the_reason(name: str) -> None:
    """A parameter of ours must not turn a legal name into a TypeError."""
    try:
        check_names([name])
    except SpecError:
        return
    layout = Layout(**{name: 2, "dp": 3})
    assert layout.rank(**{name: 1, "dp": 2}) == 5
    assert layout.view(**{"dp": 3, name: 2}).axes == ("dp", name)


@settings(deadline=None, max_examples=60, database=None)
@given(axis_names())
def test_einops_takes_every_legal_name(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        einops.rearrange(np.zeros((2, 3)), f"{name} other_ax -> other_ax {name}")


@pytest.mark.parametrize("count", [0, MAX_AXES + 1])
def test_how_many_axes_there_may_be(count: int) -> None:
    with pytest.raises(SpecError, match=f"has {count} axes"):
        check_names([f"a{i}" for i in range(count)])


def test_32_axes_work() -> None:
    layout = Layout(**{f"a{i}": 2 if i in (0, 31) else 1 for i in range(MAX_AXES)})
    assert layout.grid.ndim == MAX_AXES
    assert layout.groups("a31").tolist() == [[0, 1], [2, 3]]
    assert layout.groups("a0").tolist() == [[0, 2], [1, 3]]


def test_known_axes() -> None:
    check_axes_exist([], ("dp",))
    check_axes_exist(["tp", "dp"], ("dp", "sp", "tp"))
    with pytest.raises(UnknownAxisError) as caught:
        check_axes_exist(["dp", "tpp"], ("dp", "tp"))
    assert (caught.value.axis, caught.value.axes, caught.value.suggestion) == (
        "tpp",
        ("dp", "tp"),
        "tp",
    )
    with pytest.raises(SpecError, match="twice"):
        check_axes_exist(["dp", "dp"], ("dp", "tp"))


def test_an_unknown_axis_does_not_print_as_a_repr() -> None:
    with pytest.raises(UnknownAxisError) as caught:
        Layout(dp=4).size("xx")
    assert str(caught.value).startswith("layout.size('xx'): there is no axis 'xx'.\n")


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("size", [1, 7, -1, 2**62, np.int64(4), np.uint8(4)])
def test_sizes_that_can_be(size: int) -> None:
    found = check_sizes({"dp": size})
    assert found == {"dp": int(size)}
    assert type(found["dp"]) is int


@pytest.mark.parametrize("size", [0, -2, -(2**70), True, False, 4.0, "4", None, np.True_, [4], 1j])
def test_sizes_that_cannot(size: object) -> None:
    with pytest.raises(SpecError, match="the size of dp is"):
        check_sizes({"dp": size})


@pytest.mark.parametrize(
    ("size", "meant"),
    [
        ("4", 4),
        (4.0, 4),
        (2.7, 2),
        (0, -1),
        (-3, -1),
        ("four", -1),
        (None, -1),
        (math.inf, -1),
        (math.nan, -1),
    ],
)
def test_the_fix_guesses_what_was_meant(size: object, meant: int) -> None:
    with pytest.raises(SpecError, match=rf"Fix: f\(dp={meant}\)\."):
        check_sizes({"dp": size})


def test_two_open_sizes_are_refused() -> None:
    with pytest.raises(SpecError, match="leaves the sizes of dp and tp open"):
        check_one_inferred({"dp": -1, "sp": 2, "tp": -1})


def test_sizes_are_checked_before_order_and_product() -> None:
    with pytest.raises(SpecError, match="the size of replicate is 0"):
        order_axes(check_sizes({"replicate": 0}), None)


def test_the_sizes_on_the_error_are_the_axes_and_nothing_else() -> None:
    Call("f", (8,), {"dp": 0, "sp": 2, "order": "dp sp"})
    with pytest.raises(SpecError) as caught:
        check_sizes({"dp": 0, "sp": 2})
    assert caught.value.sizes == {"dp": 0, "sp": 2}
    with pytest.raises(SpecError) as caught:
        check_sizes({"dp": 0, "sp": 2})
    assert caught.value.sizes == {"dp": 0, "sp": 2}


# ---------------------------------------------------------------- order


@pytest.mark.parametrize(
    ("sizes", "order", "nested"),
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
def test_the_nesting(sizes: dict[str, int], order: Any, nested: str) -> None:
    found = order_axes(sizes, order)
    assert list(found) == nested.split()
    assert {axis: size for axis, size in found.items() if axis in sizes} == sizes
    assert all(found[axis] == -1 for axis in found if axis not in sizes)


@settings(deadline=None, max_examples=60, database=None)
@given(st.permutations(STANDARD), st.integers(0, 6))
def test_the_standard_order_whatever_was_written(names: list[str], count: int) -> None:
    found = order_axes(dict.fromkeys(names[:count], 2), None)
    assert list(found) == [n for n in STANDARD if n in {*names[:count], "dp"}]


def test_an_axis_without_a_standard_place_needs_an_order() -> None:
    with pytest.raises(SpecError) as caught:
        order_axes({"dp": 2, "tpp": 4}, None)
    error = caught.value
    assert (error.axis, error.axes, error.suggestion) == ("tpp", STANDARD, "tp")
    assert error.sizes == {"dp": 2, "tpp": 4}


@pytest.mark.parametrize(
    ("sizes", "order", "evidence"),
    [
        ({"tp": 2}, "dp sp tp", "sp is in order but has no size."),
        ({"tp": 2, "sp": 2}, "dp tp", "sp has a size but is not in order."),
        ({"tp": 2, "dp": 2}, "tp", "dp has a size but is not in order."),
        ({"tp": 2}, "tp dp tp", "tp stands twice in order."),
        ({"dp": -1, "tp": 2}, "tp", "dp has a size but is not in order."),
    ],
)
def test_an_order_that_does_not_fit(sizes: dict[str, int], order: str, evidence: str) -> None:
    with pytest.raises(SpecError) as caught:
        order_axes(sizes, order)
    assert f"  {evidence}\n" in str(caught.value)


def test_a_bad_name_in_the_order_is_refused() -> None:
    with pytest.raises(SpecError, match="'_x' cannot be the name"):
        order_axes({"tp": 2}, "dp _x tp")


def test_a_dp_to_infer_beside_another_is_refused() -> None:
    with pytest.raises(SpecError, match="leaves the sizes of dp and tp open"):
        order_axes({"tp": -1}, None)
    assert order_axes({"tp": -1}, "tp") == {"tp": -1}


# ---------------------------------------------------------------- infer


@settings(deadline=None, max_examples=60, database=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.data())
def test_the_one_that_is_minus_1_is_what_is_left(found: list[int], data: st.DataObject) -> None:
    sizes = {f"a{i}": size for i, size in enumerate(found)}
    total = math.prod(found)
    hidden = data.draw(st.sampled_from(list(sizes)))
    assert infer_sizes({**sizes, hidden: -1}, total, "") == sizes
    assert list(infer_sizes({**sizes, hidden: -1}, total, "")) == list(sizes)
    assert infer_sizes(sizes, total, "") == sizes
    for wrong in (total - 1, total + 1, 2 * total):
        with pytest.raises(SpecError) as caught:
            infer_sizes(sizes, wrong, "")
        assert (caught.value.sizes, caught.value.world_size) == (sizes, wrong)


def test_a_remainder_is_refused() -> None:
    with pytest.raises(SpecError, match="needs a multiple of 4 ranks, the world has 6"):
        infer_sizes({"dp": -1, "tp": 4}, 6, "")
