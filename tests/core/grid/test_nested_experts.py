"""Sizes that count the ranks along ep inside dp: both readings are proposed, and work."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit import Layout, SpecError, factor_world
from meshkit.core.grid.nested_experts import divide_data_axis

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
    one, two, three = ways_of(caught.value)
    assert three == f"start {pp * dp * ep * ep * tp} ranks"
    ranks = pp * dp * ep * tp
    layout = factor_world(ranks, **{**sizes, **eval(f"dict({one})")})
    assert layout == Layout(pp=pp, dp=dp, ep=ep, tp=tp)
    first, _, second = two.partition(", and then ")
    assert first == "leave out ep"
    dense = factor_world(ranks, pp=pp, dp=dp * ep, tp=tp)
    assert eval(second, {"mesh": dense}) == layout
    # the ranks of a group of the dense mesh, cut into runs of ep
    rows = dense.groups("dp").reshape(-1, ep)
    assert sorted(rows.tolist()) == sorted(layout.groups("ep").tolist())


@given(st.dictionaries(st.sampled_from(["dp", "fsdp", "ep", "tp", "x"]), st.integers(1, 6)))
def test_divided_sizes_have_the_product_of_the_ranks(sizes: dict[str, int]) -> None:
    for ranks in range(1, 40):
        divided = divide_data_axis(sizes, ranks)
        if divided is not None:
            assert np.prod([*divided.values()]) == ranks
            changed = [axis for axis in sizes if divided[axis] != sizes[axis]]
            assert changed in (["dp"], ["fsdp"])
            assert divided[changed[0]] * sizes["ep"] == sizes[changed[0]]


@pytest.mark.parametrize(
    ("ranks", "sizes"),
    [
        (8, {"dp": 6, "ep": 4}),  # does not divide
        (8, {"dp": 2, "ep": 8}),  # more experts than data
        (4, {"dp": 8, "ep": 4}),  # fits in no reading
        (8, {"tp": 8, "ep": 4}),  # no axis of data
        (8, {"dp": 8, "ep": 1}),
        (8, {"dp": 8, "ep": 2, "expert": 2}),
    ],
)
def test_other_sizes_are_no_such_reading(ranks: int, sizes: dict[str, int]) -> None:
    assert divide_data_axis(sizes, ranks) is None


def test_names_of_other_libraries_and_another_order() -> None:
    with pytest.raises(SpecError) as caught:
        factor_world(8, order="data expert", data=8, expert=4)
    one, two, _ = ways_of(caught.value)
    assert (one, two) == (
        "data=2",
        "order='data', and leave out expert, and then mesh.view(data=2, expert=4)",
    )
    with pytest.raises(SpecError) as caught:
        factor_world(8, order="ep dp", dp=8, ep=4)
    assert ways_of(caught.value) == ["dp=2", "start 32 ranks"]
