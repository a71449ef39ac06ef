"""Sizes of axes: their check, their order, and inference of the size that is -1."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, SpecError, factor_world
from meshkit.layout.sizes import check_sizes, divide_data_axis, infer_sizes, order_axes, parse_sizes
from meshkit.text import format_sizes


@settings(deadline=None, database=None)
@given(
    st.dictionaries(st.from_regex("[a-z_]+", fullmatch=True), st.integers(1, 10**18 - 1)),
    st.sampled_from([" ", ",", ", ", " , "]),
    st.booleans(),
)
def test_typed_sizes_are_read_as_they_are_printed(
    sizes: dict[str, int], between: str, as_one: bool
) -> None:
    text = format_sizes(sizes, between)
    words = [text] * bool(sizes) if as_one else text.split()
    if between == " , " and not as_one:
        words = [word for word in words if word != ","]
    assert [*parse_sizes(words).items()] == [*sizes.items()]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["dp"], "'dp' is not the size of an axis"),
        ([""], "'' is not the size of an axis"),
        (["dp=2 tp=2", "dp=2"], "dp has two sizes"),
        (["dp=0"], "the size of dp is '0'"),
        (["dp=-1"], "the size of dp is '-1'"),
        (["dp=٤"], "the size of dp is '٤'"),
        (["dp=1_0"], "the size of dp is '1_0'"),
        (["dp=1" + "0" * 18], "at most 18 digits"),
    ],
)
def test_typed_sizes_that_are_refused(words: list[str], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        parse_sizes(words)


def test_minus_1_is_a_size_only_where_it_is_inferred() -> None:
    assert parse_sizes(["dp=-1"], can_infer=True) == {"dp": -1}
    with pytest.raises(SpecError, match="dp=-1, which infers it"):
        parse_sizes(["dp=-2"], can_infer=True)


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


@pytest.mark.parametrize(
    ("sizes", "num_ranks", "start", "fix"),
    [
        (
            {"dp": 4, "tp": 2},
            6,
            "start {ranks}",
            "start 8 ranks, or leave out dp, which gives dp=3.",
        ),
        ({"dp": 4, "tp": 2}, 6, "", "dp=-1, which gives dp=3."),
        ({"dp": 4, "tp": 4}, 6, "-n {number}", "-n 16."),
        ({"dp": -1, "tp": 4}, 6, "start {ranks}", "start 4 ranks, or start 8 ranks."),
        ({"dp": -1, "tp": 4}, 6, "", "sizes whose product is 6."),
        ({"sp": 3, "tp": 4}, 6, "", "tp=-1, which gives tp=2."),
        ({"sp": 4, "tp": 4}, 8, "start {ranks}", "start 16 ranks."),
    ],
)
def test_the_fix_starts_other_ranks_only_if_that_is_possible(
    sizes: dict[str, int], num_ranks: int, start: str, fix: str
) -> None:
    with pytest.raises(SpecError) as caught:
        infer_sizes(sizes, num_ranks, "", owner="ranks=", start=start)
    assert caught.value.fix == fix
    assert f"ranks= has {num_ranks}." in str(caught.value)


@pytest.mark.parametrize(
    ("sizes", "num_ranks", "last"),
    [
        ({"dp": 2}, 4, "ranks=range(2) on all 4 ranks, for a mesh of 2."),
        ({"tp": 1}, 4, "ranks=[0] on all 4 ranks, for a mesh of 1."),
        ({"dp": -1, "tp": 4}, 6, "ranks=range(4) on all 6 ranks, for a mesh of 4."),
        ({"dp": 4, "tp": 2}, 6, "leave out dp, which gives dp=3."),
    ],
)
def test_a_call_that_takes_ranks_offers_a_mesh_of_some(
    sizes: dict[str, int], num_ranks: int, last: str
) -> None:
    with pytest.raises(SpecError) as caught:
        infer_sizes(sizes, num_ranks, "", takes_ranks=True)
    assert caught.value.fix.split(", or ")[-1] == last


def test_a_size_is_an_int_from_1_on_or_minus_1() -> None:
    sizes = [1, 7, -1, 2**62, np.int64(4), np.uint8(4)]
    checked = [check_sizes({"dp": size})["dp"] for size in sizes]
    assert (checked, {*map(type, checked)}) == ([1, 7, -1, 2**62, 4, 4], {int})
    for size in (0, -2, -(2**70), True, False, 4.0, "4", None, np.True_, [4], 1j):
        with pytest.raises(SpecError, match="the size of dp is"):
            check_sizes({"dp": size})


@pytest.mark.parametrize(
    ("names", "order", "expected"),
    [
        ("tp dp", None, "dp tp"),
        ("tp sp cp ep dp pp", None, "pp dp ep cp sp tp"),
        ("tp pp", None, "pp dp tp"),
        ("", None, "dp"),
        ("tp dp", ["tp", "dp"], "tp dp"),
        ("tp", "tp dp", "tp dp"),
        ("tp sp", "tp sp", "tp sp"),
        ("shard", "dp shard", "dp shard"),
        ("", "dp", "dp"),
        # an absent standard axis may stand in the order; Megatron's begins at the innermost axis
        ("tp", "tp dp sp", "tp dp"),
        ("tp", "tp-dp-sp", "dp tp"),
        ("tp", ("tp", "dp", "cp"), "tp dp"),
        ("tp", "dp x tp", "x is in order but has no size."),
        ("tp sp", "dp tp", "sp has a size but is not in order."),
        ("tp dp", "tp", "dp has a size but is not in order."),
        ("tp", "tp dp tp", "tp appears twice in order."),
    ],
)
def test_the_axes_are_in_the_given_or_the_standard_order(
    names: str, order: Any, expected: str
) -> None:
    sizes = dict.fromkeys(names.split(), 2)
    if expected.endswith("."):
        with pytest.raises(SpecError, match=expected):
            order_axes(sizes, order)
        return
    ordered = order_axes(sizes, order)
    assert list(ordered) == expected.split()
    assert ordered == dict.fromkeys(ordered, -1) | sizes


small = st.integers(1, 3)


def ways_of(error: SpecError) -> list[str]:
    """Return the changes that a fix proposes."""
    return re.split(r", or ", error.fix.removesuffix("."))


@given(small, small, st.integers(2, 4), small)
def test_both_readings_work(pp: int, dp: int, ep: int, tp: int) -> None:
    """Megatron would name these ranks dp * ep, of which every ep are a group of experts."""
    sizes = {"pp": pp, "dp": dp * ep, "ep": ep, "tp": tp}
    with pytest.raises(SpecError) as caught:
        factor_world(pp * dp * ep * tp, **sizes)
    one, view, two = ways_of(caught.value)
    assert two == f"start {pp * dp * ep * ep * tp} ranks"
    ranks = pp * dp * ep * tp
    layout = factor_world(ranks, **{**sizes, **eval(f"dict({one})")})
    assert layout == Layout(pp=pp, dp=dp, ep=ep, tp=tp)
    dense = factor_world(ranks, pp=pp, dp=dp * ep, tp=tp)
    # the ranks of a group of the dense mesh, cut into runs of ep
    rows = dense.groups("dp").reshape(-1, ep)
    assert sorted(rows.tolist()) == sorted(layout.groups("ep").tolist())
    call = view.removeprefix("leave out ep, and mesh.").removesuffix(" for the experts")
    assert eval(f"dense.{call}") == layout


@given(st.dictionaries(st.sampled_from(["dp", "fsdp", "ep", "tp", "x"]), st.integers(1, 6)))
def test_divided_sizes_have_the_product_of_the_ranks(sizes: dict[str, int]) -> None:
    for ranks in range(1, 40):
        divided = divide_data_axis(sizes, ranks)
        if divided is not None:
            assert np.prod([*divided.values()]) == ranks
            changed = [axis for axis in sizes if divided[axis] != sizes[axis]]
            assert changed in (["dp"], ["fsdp"])
            assert divided[changed[0]] * sizes["ep"] == sizes[changed[0]]
