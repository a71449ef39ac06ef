"""The axes that divide the samples: named, or by the roles of the axes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshkit import MeshkitError, SpecError, UnknownAxisError
from meshkit.core.data.data_axes import (
    data_choices,
    describe_data,
    num_data_coordinates,
    resolve_data_axes,
)

NAMES = ["dp", "ep", "cp", "sp", "tp", "pp", "fsdp", "model", "x", "rows"]
DATA, UNKNOWN = {"dp", "ep", "fsdp"}, {"x", "rows"}
mesh_sizes = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 4), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("sizes", "axes"),
    [
        ({"data": 4, "model": 2}, ("data",)),
        ({"dp_replicate": 2, "dp_shard": 4}, ("dp_replicate", "dp_shard")),
        ({"pp": 2, "dp": 2, "ep": 4, "sp": 2}, ("dp", "ep")),
        ({"ep": 4, "dp": 2}, ("ep", "dp")),
        ({"tp": 8}, ()),
        ({"dp": 2, "x": 1}, ("dp",)),
    ],
)
def test_names_with_a_role_need_no_word_more(sizes: dict[str, int], axes: tuple[str, ...]) -> None:
    assert resolve_data_axes(None, sizes) == axes


@given(mesh_sizes)
def test_an_axis_of_unknown_role_is_refused_with_calls_that_work(sizes: dict[str, int]) -> None:
    unknown = [axis for axis in sizes if axis in UNKNOWN and sizes[axis] > 1]
    assume(unknown)
    with pytest.raises(SpecError) as caught:
        resolve_data_axes(None, sizes)
    assert all(axis in caught.value.headline for axis in unknown)
    for axes in data_choices(sizes):
        shown = f"data={' '.join(axes)!r}"
        assert shown in caught.value.fix_text
        named: dict[str, Any] = eval(f"dict({shown})")
        assert resolve_data_axes(named["data"], sizes) == axes
        assert DATA & sizes.keys() <= {*axes} <= (DATA | UNKNOWN) & sizes.keys()


@given(mesh_sizes, st.integers(1, 16))
def test_choices_fit_the_number_of_data_coordinates_if_some_do(
    sizes: dict[str, int], dp: int
) -> None:
    products = {num_data_coordinates(sizes, axes) for axes in data_choices(sizes, dp)}
    assert products == {dp} or dp not in products


def test_named_axes_override_the_roles() -> None:
    assert resolve_data_axes("sp dp", {"dp": 2, "ep": 2, "sp": 2}) == ("sp", "dp")
    assert resolve_data_axes((), {"dp": 2, "x": 2}) == ()
    with pytest.raises(UnknownAxisError):
        resolve_data_axes("dq", {"dp": 2})
    with pytest.raises(MeshkitError, match="data is 3"):
        resolve_data_axes(3, {"dp": 2})


def test_the_line_about_the_data_axes() -> None:
    assert describe_data({"dp": 4, "ep": 1}, ("dp", "ep")) == ()
    assert describe_data({"tp": 4}, ()) == ()
    product = "dp 2 x ep 4 = 8 divides the samples."
    assert describe_data({"dp": 2, "ep": 4, "tp": 2}, ("dp", "ep")) == (product,)
