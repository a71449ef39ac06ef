"""Ranks and indices as callers give them."""

from __future__ import annotations

import numpy as np
import pytest

from meshkit import CoordinateError
from meshkit.core.call import Call
from meshkit.core.validate import check_index, check_integer, check_integers

CALL = Call("f", kwargs={"dp": 4})


@pytest.mark.parametrize("value", [3, np.int32(3), np.array(3)])
def test_integers_come_back_plain(value: object) -> None:
    assert type(check_integer("rank", value)) is int
    assert check_integer("rank", value) == 3


@pytest.mark.parametrize("value", [True, 3.0, "3", None])
def test_what_is_no_integer_is_refused_with_the_value(value: object) -> None:
    with pytest.raises(CoordinateError) as caught:
        check_integer("rank", value)
    assert caught.value.index is value


@pytest.mark.parametrize("index", [0, 3])
def test_the_ends_of_an_axis_are_inside(index: int) -> None:
    assert check_index("dp", index, 4) == index


@pytest.mark.parametrize(("index", "nearest"), [(-1, 0), (4, 3), (2**70, 3)])
def test_beyond_the_ends_is_refused_with_the_nearest(index: int, nearest: int) -> None:
    with pytest.raises(CoordinateError) as caught:
        check_index("dp", index, 4)
    assert (caught.value.axis, caught.value.index, caught.value.size) == ("dp", index, 4)
    assert str(caught.value).endswith(f"Fix: f(dp={nearest}).")


def test_arrays_of_integers_keep_their_shape() -> None:
    array = check_integers("ranks", np.array([[1, 2]], dtype=np.uint8))
    assert array.dtype == np.int64
    assert array.tolist() == [[1, 2]]
    assert check_integers("ranks", []).tolist() == []
    with pytest.raises(CoordinateError, match="ranks are float64, not integers"):
        check_integers("ranks", [1.0])
