"""Legal names of axes, parsing, and suggestions for misspelt names."""

from __future__ import annotations

import warnings

import einops
import numpy as np
import pytest
from hypothesis import given, settings

from meshkit import Layout, SpecError, UnknownAxisError
from meshkit.core.grid.axis_names import (
    MAX_AXES,
    RESERVED,
    STANDARD,
    check_axes_exist,
    check_names,
    closest_axis,
    parse_axes,
    parse_order,
    resolve_axes,
)
from meshkit.testing import axis_names


@pytest.mark.parametrize(
    ("names", "axes"),
    [
        ("dp sp", ("dp", "sp")),
        (" dp  sp ", ("dp", "sp")),
        ("", ()),
        (["dp"], ("dp",)),
        (("dp",), ("dp",)),
    ],
)
def test_parse_axes_splits_a_str_and_keeps_a_sequence(names: object, axes: tuple[str, ...]) -> None:
    assert parse_axes(names) == axes  # type: ignore[arg-type]


def test_hyphens_are_read_in_an_order_alone() -> None:
    assert parse_order("tp-cp-ep-dp-pp") == ("pp", "dp", "ep", "cp", "tp")
    assert parse_order(["dp", "tp"]) == parse_order("dp tp") == ("dp", "tp")
    with pytest.raises(UnknownAxisError):
        Layout(dp=2, sp=2).groups("sp-dp")


def test_the_closest_axis_to_a_misspelt_name() -> None:
    assert closest_axis("tpp", STANDARD) == "tp"
    assert closest_axis("TP", STANDARD) == "tp"
    assert closest_axis("replicat", ("replicate", "shard")) == "replicate"
    assert closest_axis("expert_model", ("dp", "tp")) is None


LEGAL = ["dp", "DP", "d", "dp2", "d_p", "replicate", "match", "type", "axes", "x" * 200]
ILLEGAL = [
    *("", " ", "2dp", "d-p", "d.p", "dp sp", "dé", "\uff44\uff50", "_dp", "dp_", "_", "__"),
    *("axis", "for", "None", "lambda", "async"),
    *sorted(RESERVED),
    *(3, None, b"dp", ("dp",)),
]


@pytest.mark.parametrize("name", LEGAL)
def test_legal_names_are_accepted(name: str) -> None:
    check_names([name])
    assert Layout(**{name: 2}).axes == (name,)


@pytest.mark.parametrize("name", ILLEGAL, ids=repr)
def test_illegal_names_raise_an_error(name: object) -> None:
    with pytest.raises(SpecError, match="cannot be the name of an axis"):
        check_names([name])


@pytest.mark.parametrize("name", ["self", "cls", "sizes", "call", "pattern", "world_size", "name"])
def test_a_name_of_a_parameter_works_as_an_axis_or_raises_an_error(name: str) -> None:
    """A parameter of a function must not turn a legal name into a TypeError."""
    try:
        check_names([name])
    except SpecError:
        return
    layout = Layout(**{name: 2, "dp": 3})
    assert layout.rank(**{name: 1, "dp": 2}) == 5
    assert layout.view(**{"dp": 3, name: 2}).axes == ("dp", name)


@settings(deadline=None, max_examples=60, database=None)
@given(axis_names())
def test_einops_accepts_every_legal_name(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        einops.rearrange(np.zeros((2, 3)), f"{name} other_ax -> other_ax {name}")


@pytest.mark.parametrize("count", [0, MAX_AXES + 1])
def test_no_axes_and_too_many_axes_raise_an_error(count: int) -> None:
    with pytest.raises(SpecError, match=f"has {count} axes"):
        check_names([f"a{i}" for i in range(count)])


def test_a_layout_can_have_32_axes() -> None:
    layout = Layout(**{f"a{i}": 2 if i in (0, 31) else 1 for i in range(MAX_AXES)})
    assert layout.grid.ndim == MAX_AXES
    assert layout.groups("a31").tolist() == [[0, 1], [2, 3]]
    assert layout.groups("a0").tolist() == [[0, 2], [1, 3]]


def test_check_axes_exist() -> None:
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


def test_the_error_of_an_unknown_axis_prints_as_text_although_it_is_a_key_error() -> None:
    with pytest.raises(UnknownAxisError) as caught:
        Layout(dp=4).size("xx")
    assert str(caught.value).startswith("layout.size('xx'): there is no axis 'xx'.\n")


@pytest.mark.parametrize("value", ["dp sp", ("dp", "sp"), ["dp", "sp"]])
def test_resolve_axes_of_a_str_or_a_sequence(value: object) -> None:
    assert resolve_axes("data", value, ("pp", "dp", "sp")) == ("dp", "sp")
    assert resolve_axes("data", (), ("dp",)) == ()


@pytest.mark.parametrize(
    ("value", "error"),
    [(3, SpecError), (None, SpecError), ("dp dp", SpecError), ("xp", UnknownAxisError)],
)
def test_resolve_axes_raises_an_error_for_other_values(
    value: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        resolve_axes("data", value, ("dp", "tp"))
