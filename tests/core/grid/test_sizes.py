"""Sizes of axes: their check, and inference of the size that is -1."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import SpecError
from meshkit.core.grid.sizes import (
    check_complete,
    check_one_inferred,
    check_sizes,
    infer_sizes,
    order_axes,
)


@pytest.mark.parametrize("size", [1, 7, -1, 2**62, np.int64(4), np.uint8(4)])
def test_a_size_becomes_a_plain_int(size: int) -> None:
    sizes = check_sizes({"dp": size})
    assert sizes == {"dp": int(size)}
    assert type(sizes["dp"]) is int


@pytest.mark.parametrize("size", [0, -2, -(2**70), True, False, 4.0, "4", None, np.True_, [4], 1j])
def test_an_invalid_size_raises_an_error(size: object) -> None:
    with pytest.raises(SpecError, match="the size of dp is"):
        check_sizes({"dp": size})


@pytest.mark.parametrize(
    ("size", "suggestion"),
    [
        ("4", 4),
        (4.0, 4),
        (2.7, 2),
        (0, 1),
        (-3, 1),
        ("four", 1),
        (math.inf, 1),
        (math.nan, 1),
    ],
)
def test_the_fix_suggests_a_valid_size(size: object, suggestion: int) -> None:
    with pytest.raises(SpecError) as caught:
        check_sizes({"dp": size}, inferable=True)
    assert caught.value.fix == f"dp={suggestion}."


def test_the_fix_suggests_1_if_no_size_can_be_inferred() -> None:
    with pytest.raises(SpecError, match=r"Fix: dp=1\."):
        check_sizes({"dp": 0})
    with pytest.raises(SpecError, match=r"Fix: dp=1\."):
        check_sizes({"dp": 0, "tp": -1}, inferable=True)


def test_two_open_sizes_raise_an_error() -> None:
    with pytest.raises(SpecError, match="leaves the sizes of dp and tp open"):
        check_one_inferred({"dp": -1, "sp": 2, "tp": -1})


def test_sizes_are_checked_before_order_and_product() -> None:
    with pytest.raises(SpecError, match="the size of replicate is 0"):
        order_axes(check_sizes({"replicate": 0}), None)


def test_the_error_has_the_sizes_as_written() -> None:
    with pytest.raises(SpecError) as caught:
        check_sizes({"dp": 0, "sp": 2})
    assert caught.value.sizes == {"dp": 0, "sp": 2}


@settings(deadline=None, max_examples=60, database=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.data())
def test_the_size_that_is_minus_1_is_inferred(numbers: list[int], data: st.DataObject) -> None:
    sizes = {f"a{i}": size for i, size in enumerate(numbers)}
    total = math.prod(numbers)
    hidden = data.draw(st.sampled_from(list(sizes)))
    assert infer_sizes({**sizes, hidden: -1}, total, "") == sizes
    assert list(infer_sizes({**sizes, hidden: -1}, total, "")) == list(sizes)
    assert infer_sizes(sizes, total, "") == sizes
    for wrong in (total - 1, total + 1, 2 * total):
        with pytest.raises(SpecError) as caught:
            infer_sizes(sizes, wrong, "")
        assert (caught.value.sizes, caught.value.world_size) == (sizes, wrong)


def test_a_remainder_raises_an_error() -> None:
    with pytest.raises(SpecError, match="needs a multiple of 4 ranks, the world has 6"):
        infer_sizes({"dp": -1, "tp": 4}, 6, "")


def test_incomplete_sizes_raise_an_error_with_the_call_that_infers_them() -> None:
    check_complete({"dp": 4, "tp": 2})
    with pytest.raises(SpecError) as caught:
        check_complete({"dp": -1, "tp": 2})
    assert caught.value.fix_text == (
        "factor_world(4, dp=-1, tp=2, order='dp tp'), which infers it from a number of ranks."
    )
    with pytest.raises(SpecError):
        check_complete({"dp": 2**62, "tp": 2})


@pytest.mark.parametrize(
    ("sizes", "num_ranks", "can_start", "fix"),
    [
        ({"dp": 4, "tp": 2}, 6, True, "start 8 ranks, or leave out dp, which gives dp=3."),
        ({"dp": 4, "tp": 2}, 6, False, "dp=-1, which gives dp=3."),
        ({"dp": 4, "tp": 4}, 6, True, "start 16 ranks."),
        ({"dp": -1, "tp": 4}, 6, True, "start 4 or 8 ranks."),
        ({"dp": -1, "tp": 4}, 3, True, "start 4 ranks."),
        ({"dp": -1, "tp": 4}, 6, False, "sizes whose product is 6."),
        ({"sp": 4, "tp": 4}, 8, False, "sp=-1, which gives sp=2."),
        ({"sp": 3, "tp": 4}, 6, False, "tp=-1, which gives tp=2."),
        ({"sp": 4, "tp": 4}, 8, True, "start 16 ranks."),
        ({"sp": 1}, 2, True, "start 1 rank."),
    ],
)
def test_the_fix_starts_other_ranks_only_if_that_is_possible(
    sizes: dict[str, int], num_ranks: int, can_start: bool, fix: str
) -> None:
    with pytest.raises(SpecError) as caught:
        infer_sizes(sizes, num_ranks, "", owner="ranks=", can_start=can_start)
    assert caught.value.fix == fix
    assert f"ranks= has {num_ranks}." in str(caught.value)
