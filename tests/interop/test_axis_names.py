"""Axes of a mesh under the names of a library."""

from __future__ import annotations

import pytest

from meshkit import Layout, SpecError
from meshkit.interop.axis_names import check_data, rename_axes

KNOWN = ("pp", "fsdp", "tp")


def test_sizes_keep_the_order_of_the_mesh_after_axes_of_one_rank() -> None:
    layout = Layout(tp=2, sp=1, dp=4)
    assert [*rename_axes(layout, "L", KNOWN, "fsdp").items()] == [
        ("pp", 1),
        ("tp", 2),
        ("fsdp", 4),
    ]
    assert rename_axes(Layout(fsdp=2, dp=1), "L", KNOWN, "fsdp")["fsdp"] == 2
    assert rename_axes(Layout(dp=1), "L", KNOWN, "fsdp") == {"pp": 1, "fsdp": 1, "tp": 1}


def test_an_unknown_axis_is_an_error_with_a_mesh_of_known_axes() -> None:
    with pytest.raises(SpecError) as caught:
        rename_axes(Layout(dp=2, cp=2, sp=2, tp=4), "L", KNOWN, "fsdp")
    assert str(caught.value) == (
        "L has no axis cp or sp.\n"
        "  Its axes are pp, fsdp, tp; cp is 2, sp is 2.\n"
        "  Fix: build_mesh(dp=8, tp=4), or other axes of this library."
    )
    assert caught.value.sizes == {"dp": 2, "cp": 2, "sp": 2, "tp": 4}


def test_two_axes_of_one_name_are_an_error() -> None:
    with pytest.raises(SpecError) as caught:
        rename_axes(Layout(dp=2, fsdp=4), "L", KNOWN, "fsdp")
    assert str(caught.value) == (
        "dp would get the name fsdp, which another axis has.\n"
        "  dp is 2, fsdp is 4.\n"
        "  Fix: use another name for dp: data='pp' or data='tp'."
    )


def test_an_unknown_name_for_dp_is_an_error() -> None:
    with pytest.raises(SpecError) as caught:
        check_data("ddp", ("fsdp", "dp_replicate"))
    assert str(caught.value) == "data is 'ddp'.\n  Fix: data='fsdp' or data='dp_replicate'."
