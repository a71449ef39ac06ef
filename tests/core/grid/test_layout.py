"""Layout beyond its laws: sub-worlds, huge layouts, errors, equality, pickling and text."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from meshkit import CoordinateError, Layout, SpecError, UnknownAxisError
from meshkit.core.grid.position import Position

HUGE = Layout(pp=16, dp=2**21, tp=64)  # 2**31 ranks, the most
SHUFFLED = Layout(dp=2, sp=2, ranks=[7, 0, 3, 5])


# ---------------------------------------------------------------- attributes and answers


def test_a_layout_by_hand() -> None:
    layout = Layout(dp=4, sp=2, tp=1)
    assert layout.axes == ("dp", "sp", "tp")
    assert layout.shape == (4, 2, 1)
    assert layout.sizes == {"dp": 4, "sp": 2, "tp": 1}
    assert layout.num_ranks == 8
    assert layout.ranks == range(8)
    assert layout.grid.tolist() == [[[0], [1]], [[2], [3]], [[4], [5]], [[6], [7]]]
    assert layout.coordinate(5) == {"dp": 2, "sp": 1, "tp": 0}
    assert layout.rank(tp=0, sp=1, dp=2) == 5
    assert layout.groups("dp").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert layout.groups("sp", "dp").tolist() == [[0, 2, 4, 6, 1, 3, 5, 7]]
    assert layout.peers(5, "dp").tolist() == [1, 3, 5, 7]
    assert layout.peers(5, "sp", "dp").tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert layout.peers(5).tolist() == [*range(8)]
    assert layout.size() == 8
    assert layout.size("dp", "tp") == 4
    assert (layout.neighbor(7, "dp"), layout.neighbor(7, "dp", wrap=False)) == (1, None)
    assert (layout.neighbor(0, "dp", -1), layout.neighbor(0, "dp", -1, wrap=False)) == (6, None)
    assert layout.neighbor(0, "dp", 9) == 2
    assert layout.neighbor(3, "tp", 5) == 3


@pytest.mark.parametrize(
    ("axes", "strides"),
    [
        ((), ((24, 1),)),
        (("pp", "dp", "sp", "tp"), ((24, 1),)),
        (("pp", "dp"), ((6, 4),)),
        (("pp", "sp", "dp"), ((6, 4),)),
        (("dp", "pp"), ((3, 4), (2, 12))),
        (("pp", "tp"), ((2, 12), (4, 1))),
        (("sp",), ()),
    ],
)
def test_strides_have_as_few_steps_as_possible(
    axes: tuple[str, ...], strides: tuple[tuple[int, int], ...]
) -> None:
    assert Layout(pp=2, dp=3, sp=1, tp=4).strides(*axes) == strides


def test_a_view_with_equal_groups_has_equal_strides() -> None:
    dense = Layout(pp=2, dp=4, cp=2, tp=2, ranks=range(8, 40))
    sparse = dense.view(pp=2, efsdp=4, ep=4)
    assert dense.strides("cp", "tp") == sparse.strides("ep") == ((4, 1),)
    assert dense.strides("dp") == sparse.strides("efsdp") == ((4, 4),)
    assert dense.strides("dp", "cp") != sparse.strides("efsdp")


def test_an_unknown_axis_raises_an_error() -> None:
    with pytest.raises(UnknownAxisError, match=r"layout\.strides"):
        Layout(dp=2).strides("tq")


def test_the_callers_order_is_kept() -> None:
    assert Layout(tp=2, dp=4).axes == ("tp", "dp")
    assert Layout(tp=2, dp=4).groups("dp").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_sizes_are_a_new_dict_each_time() -> None:
    layout = Layout(dp=4)
    layout.sizes["dp"] = 9
    assert layout.sizes == {"dp": 4}


@pytest.mark.parametrize("layout", [Layout(dp=4, sp=2), SHUFFLED, Layout(dp=2, ranks=range(8, 10))])
def test_the_grid_is_read_only(layout: Layout) -> None:
    before = layout.grid.copy()
    with pytest.raises(ValueError, match="read-only"):
        layout.grid[0] = 99
    groups = layout.groups().copy()
    groups[:] = 99
    peers = layout.peers(int(before.flat[0]))
    peers[:] = 99
    np.testing.assert_array_equal(layout.grid, before)


def test_numpy_integers_are_integers() -> None:
    layout = Layout(dp=np.int64(4), sp=np.uint8(2))
    assert layout == Layout(dp=4, sp=2)
    assert [type(size) for size in layout.shape] == [int, int]
    assert layout.coordinate(np.int32(5)) == {"dp": 2, "sp": 1}
    assert layout.rank(dp=np.int64(2), sp=np.int8(1)) == 5
    assert layout.neighbor(np.int64(5), "dp", np.int64(1)) == 7
    results = [*layout.coordinate(5).values(), layout.rank(dp=0, sp=0), layout.neighbor(5, "dp")]
    results += [*SHUFFLED.coordinate(7).values(), SHUFFLED.rank(dp=0, sp=0)]
    assert {type(result) for result in results} == {int}


@pytest.mark.parametrize("true", [True, np.True_])
def test_a_bool_as_rank_index_size_or_shift_raises_an_error(true: int) -> None:
    layout = Layout(dp=4)
    with pytest.raises(SpecError):
        Layout(dp=true)
    with pytest.raises(CoordinateError):
        layout.coordinate(true)
    with pytest.raises(CoordinateError):
        layout.rank(dp=true)
    with pytest.raises(CoordinateError):
        layout.peers(true)
    with pytest.raises(CoordinateError):
        layout.neighbor(0, "dp", true)
    with pytest.raises(CoordinateError):
        layout.coordinates([true])
    assert true not in layout


# ---------------------------------------------------------------- explicit ranks


def test_a_sub_world() -> None:
    layout = Layout(dp=2, sp=2, ranks=range(8, 12))
    assert layout.grid.tolist() == [[8, 9], [10, 11]]
    assert layout.coordinate(10) == {"dp": 1, "sp": 0}
    assert layout.rank(dp=1, sp=0) == 10
    assert layout.groups("dp").tolist() == [[8, 10], [9, 11]]
    assert layout.peers(11, "dp").tolist() == [9, 11]
    assert layout.neighbor(11, "sp") == 10
    assert [rank in layout for rank in (7, 8, 11, 12)] == [False, True, True, False]
    assert layout.coordinates([[11], [8]]).tolist() == [[[1, 1]], [[0, 0]]]


def test_every_second_rank_backwards() -> None:
    layout = Layout(dp=4, ranks=range(6, -1, -2))
    assert layout.grid.tolist() == [6, 4, 2, 0]
    assert layout.coordinate(2) == {"dp": 2}
    assert [rank in layout for rank in range(8)] == [True, False] * 3 + [True, False]
    with pytest.raises(CoordinateError):
        layout.coordinate(3)
    with pytest.raises(CoordinateError):
        layout.coordinates([0, 3])


def test_ranks_in_any_order() -> None:
    assert SHUFFLED.grid.tolist() == [[7, 0], [3, 5]]
    assert SHUFFLED.coordinate(3) == {"dp": 1, "sp": 0}
    assert SHUFFLED.groups("dp").tolist() == [[7, 3], [0, 5]]
    assert SHUFFLED.peers(5, "dp").tolist() == [0, 5]
    assert SHUFFLED.neighbor(5, "sp") == 3
    assert SHUFFLED.coordinates([5, 7]).tolist() == [[1, 1], [0, 0]]
    assert [rank in SHUFFLED for rank in (0, 1, 7, 8, -1)] == [True, False, True, False, False]
    assert isinstance(SHUFFLED.ranks, np.ndarray)


@pytest.mark.parametrize("rank", [1, 8, -1, 2**70, -(2**70)])
def test_a_rank_outside_a_permuted_layout_raises_an_error(rank: int) -> None:
    for method in (SHUFFLED.coordinate, SHUFFLED.peers, lambda r: SHUFFLED.neighbor(r, "dp")):
        with pytest.raises(CoordinateError) as caught:
            method(rank)
        assert (caught.value.index, caught.value.size) == (rank, 4)


def test_the_callers_list_of_ranks_is_not_kept() -> None:
    ranks = [7, 0, 3, 5]
    layout = Layout(dp=2, sp=2, ranks=ranks)
    ranks[0] = 99
    assert layout == SHUFFLED


@pytest.mark.parametrize("rank", [8, -1, 2**70])
def test_a_rank_outside_raises_an_error(rank: int) -> None:
    layout = Layout(dp=8)
    with pytest.raises(CoordinateError) as caught:
        layout.coordinate(rank)
    assert (caught.value.axis, caught.value.index, caught.value.size) == (None, rank, 8)


# ---------------------------------------------------------------- huge


def test_a_huge_layout_needs_little_memory() -> None:
    tracemalloc.start()
    try:
        layout = Layout(pp=16, dp=2**21, tp=64)
        last = 2**31 - 1
        assert layout.num_ranks == 2**31
        assert layout.coordinate(last) == {"pp": 15, "dp": 2**21 - 1, "tp": 63}
        assert layout.rank(pp=15, dp=2**21 - 1, tp=63) == last
        assert layout.neighbor(last, "pp") == 2**27 - 1
        assert layout.neighbor(last, "dp", wrap=False) is None
        assert layout.peers(last, "tp").tolist() == [last - 63 + i for i in range(64)]
        assert layout.peers(0, "pp", "tp").shape == (1024,)
        assert layout.coordinates([[last], [64]]).tolist() == [[[15, 2**21 - 1, 63]], [[0, 1, 0]]]
        assert layout.size("dp", "tp") == 2**27
        assert last in layout
        assert 2**31 not in layout
        assert layout.view(node=-1, local=8).sizes == {"node": 2**28, "local": 8}
        assert layout == HUGE
        assert hash(layout) == hash(HUGE)
        assert repr(layout) == "Layout(pp=16, dp=2097152, tp=64)"
        assert pickle.loads(pickle.dumps(layout)) == layout
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_huge_sub_world() -> None:
    layout = Layout(dp=2**21, tp=64, ranks=range(10**6, 10**6 + 2**27))
    assert layout.coordinate(10**6 + 65) == {"dp": 1, "tp": 1}
    assert layout.peers(10**6 + 65, "tp")[0] == 10**6 + 64
    assert layout.neighbor(10**6, "dp", -1) == 10**6 + 2**27 - 64


def test_errors_of_a_huge_layout_are_immediate() -> None:
    """Runs in a subprocess with a deadline: a loop over 2**31 ranks would take minutes."""
    code = """
from meshkit import CoordinateError, Layout
huge = Layout(pp=16, dp=2**21, tp=64)
for method in (huge.coordinate, huge.peers, lambda rank: huge.coordinates([rank])):
    try:
        method(2**31)
    except CoordinateError as error:
        print(str(error).splitlines()[1])
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=10
    )
    assert completed.stdout == "  It has 2147483648 ranks, from 0 to 2147483647.\n" * 3


@pytest.mark.parametrize("sizes", [{"dp": 2**31 + 1}, {"dp": 2**30, "tp": 4}, {"dp": 10**5000}])
def test_a_layout_has_at_most_2_to_the_31_ranks(sizes: dict[str, int]) -> None:
    with pytest.raises(SpecError) as caught:
        Layout(**sizes)
    assert caught.value.sizes == sizes


# ---------------------------------------------------------------- coordinates of many ranks


@pytest.mark.parametrize("ranks", [5, [5], [[0, 1], [6, 7]], np.arange(8, dtype=np.uint8), []])
def test_coordinates_keep_the_shape(ranks: object) -> None:
    layout = Layout(dp=4, sp=2)
    coordinates = layout.coordinates(ranks)  # type: ignore[arg-type]
    assert coordinates.shape == (*np.shape(ranks), 2)
    assert coordinates.dtype == np.int64


@pytest.mark.parametrize("layout", [Layout(dp=2, sp=2), SHUFFLED])
@pytest.mark.parametrize("invalid", [[0, 8], [[-1]], np.array([2**64 - 1], dtype=np.uint64)])
def test_coordinates_of_a_rank_outside_raise_an_error(layout: Layout, invalid: object) -> None:
    with pytest.raises(CoordinateError, match="is not in Layout"):
        layout.coordinates(invalid)  # type: ignore[arg-type]


@pytest.mark.parametrize("invalid", [[0.0], ["0"], [None], [2**70]])
def test_coordinates_of_values_that_are_not_integers_raise_an_error(invalid: object) -> None:
    with pytest.raises(CoordinateError):
        Layout(dp=4).coordinates(invalid)  # type: ignore[arg-type]


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("method", ["groups", "size"])
def test_unknown_and_repeated_axes_raise_an_error(method: str) -> None:
    layout = Layout(dp=4, sp=2)
    with pytest.raises(UnknownAxisError):
        getattr(layout, method)("dp", "tq")
    with pytest.raises(SpecError, match="twice"):
        getattr(layout, method)("dp", "dp")


def test_unknown_axes_for_one_rank_raise_an_error() -> None:
    layout = Layout(dp=4, sp=2)
    with pytest.raises(UnknownAxisError):
        layout.peers(0, "tq")
    with pytest.raises(UnknownAxisError):
        layout.neighbor(0, "tq")
    with pytest.raises(UnknownAxisError):
        layout.rank(dp=0, sp=0, tq=0)
    with pytest.raises(SpecError, match="twice"):
        layout.peers(0, "sp", "sp")


@pytest.mark.parametrize("index", [-1, 4, True, 1.0, "1", None])
def test_an_index_outside_its_axis_raises_an_error(index: int) -> None:
    with pytest.raises(CoordinateError):
        Layout(dp=4, sp=2).rank(dp=index, sp=0)


def test_a_coordinate_without_an_axis_raises_an_error() -> None:
    with pytest.raises(CoordinateError) as caught:
        Layout(dp=4, sp=2, tp=2).rank(sp=1)
    assert caught.value.axis == "dp"
    assert "leaves out dp, tp." in str(caught.value)


def test_a_layout_infers_no_size() -> None:
    with pytest.raises(SpecError, match="nothing to infer dp from"):
        Layout(dp=-1, sp=2)


@pytest.mark.parametrize("other", [{"a": 3}, {"a": 16}, {"a": 3, "b": -1}, {"a": 0}, {}])
def test_a_view_of_another_size_raises_an_error(other: dict[str, int]) -> None:
    with pytest.raises(SpecError):
        Layout(dp=4, sp=2).view(**other)


def test_a_view_keeps_ranks_and_order() -> None:
    assert Layout(dp=4, sp=2).view(shard=-1, replicate=2) == Layout(shard=4, replicate=2)
    assert SHUFFLED.view(node=2, local=-1).grid.tolist() == [[7, 0], [3, 5]]
    assert SHUFFLED.view(all=4).groups().tolist() == [[7, 0, 3, 5]]
    assert Layout(dp=4, ranks=range(8, 12)).view(a=2, b=2).peers(11, "a").tolist() == [9, 11]


# ---------------------------------------------------------------- equality, copies and text


def test_equal_layouts_have_equal_hashes() -> None:
    same = [
        Layout(dp=2, sp=2),
        Layout(dp=2, sp=2, ranks=range(4)),
        Layout(dp=2, sp=2, ranks=[0, 1, 2, 3]),
        Layout(dp=2, sp=2, ranks=np.arange(4)),
        Layout(dp=4).view(dp=2, sp=2),
    ]
    assert len({*same}) == 1
    assert all(layout == same[0] for layout in same)
    assert Layout(dp=2, sp=2, ranks=(7, 0, 3, 5)) == SHUFFLED
    assert hash(Layout(dp=2, sp=2, ranks=np.array([7, 0, 3, 5]))) == hash(SHUFFLED)


def test_different_layouts_are_not_equal() -> None:
    different = [
        Layout(dp=2, sp=2),
        Layout(sp=2, dp=2),
        Layout(dp=4),
        Layout(dp=4, sp=1),
        Layout(dp=2, tp=2),
        Layout(dp=2, sp=2, ranks=range(4, 8)),
        Layout(dp=2, sp=2, ranks=range(0, 8, 2)),
        Layout(dp=2, sp=2, ranks=range(3, -1, -1)),
        SHUFFLED,
        Layout(dp=2, sp=2, ranks=[0, 7, 3, 5]),
    ]
    assert len({*different}) == len(different)
    assert Layout(dp=4) != {"dp": 4}


@pytest.mark.parametrize("layout", [Layout(dp=4, sp=2), SHUFFLED, HUGE])
def test_copies_are_equal_and_read_only(layout: Layout) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(layout, protocol)) == layout
    for duplicate in (copy.copy(layout), copy.deepcopy(layout), pickle.loads(pickle.dumps(layout))):
        assert duplicate == layout
        assert hash(duplicate) == hash(layout)
        assert duplicate.coordinate(7) == layout.coordinate(7)
        assert isinstance(duplicate.ranks, range) or not duplicate.ranks.flags.writeable


def test_no_attribute_can_be_set() -> None:
    for name in ("dp", "axes", "sizes", "ranks", "num_ranks"):
        with pytest.raises(AttributeError):
            setattr(Layout(dp=4), name, 1)


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (Layout(dp=4, sp=2, tp=1), "Layout(dp=4, sp=2, tp=1)"),
        (Layout(dp=4, ranks=range(8, 12)), "Layout(dp=4, ranks=range(8, 12))"),
        (Layout(dp=4, ranks=range(4)), "Layout(dp=4)"),
        (SHUFFLED, "Layout(dp=2, sp=2, ranks=[7, 0, 3, 5])"),
        (Layout(dp=9, ranks=[1, 0, *range(2, 9)]), "Layout(dp=9, ranks=[1, 0, ..., 8])"),
    ],
)
def test_the_repr(layout: Layout, text: str) -> None:
    assert repr(layout) == text


@pytest.mark.parametrize("layout", [Layout(dp=4, sp=2), SHUFFLED, Layout(dp=2, ranks=range(5, 7))])
def test_a_short_repr_can_be_evaluated(layout: Layout) -> None:
    assert eval(repr(layout), {"Layout": Layout}) == layout


def test_the_str_is_a_grid_of_ranks() -> None:
    assert str(Layout(dp=2, sp=2, tp=1)) == (
        "dp=2 sp=2 tp=1\n      sp=0  sp=1\ndp=0     0     1\ndp=1     2     3"
    )


def test_the_str_of_a_huge_layout_shows_its_edges() -> None:
    text = str(Layout(pp=4, dp=2**26, tp=8))
    assert len(text.splitlines()) < 30
    assert str(2**31 - 1) in text
    assert "[777777777]" in Layout(dp=2**28, tp=8).draw(mark=777777777)


def test_a_layout_imports_no_module_that_it_does_not_need() -> None:
    code = """
import sys
import meshkit
layout = meshkit.Layout(dp=4, sp=2)
assert layout.groups("dp").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]], str(layout)
names = [name.removeprefix("meshkit.core.") for name in sys.modules]
print({name.split(".")[0] for name in names} & {"torch", "einops", "topology", "data", "cost"})
print("draw.svg" in names)
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert completed.stdout == "set()\nFalse\n"


def test_an_absent_standard_axis_has_index_0() -> None:
    coordinate = Position(Layout(dp=2, sp=2), 3).coordinate
    assert (coordinate["dp"], coordinate["tp"], coordinate["pp"]) == (1, 0, 0)
    assert coordinate == {"dp": 1, "sp": 1}
    assert [*coordinate] == ["dp", "sp"]
    assert "tp" not in coordinate
    assert coordinate.get("tp") is None
    assert json.loads(json.dumps(coordinate)) == coordinate
    assert pickle.loads(pickle.dumps(coordinate))["tp"] == 0


def test_an_unknown_axis_is_an_error_with_the_likely_one() -> None:
    coordinate = Layout(dp=2, shard=2).coordinate(3)
    with pytest.raises(UnknownAxisError) as caught:
        _ = coordinate["shrad"]
    assert caught.value.suggestion == "shard"
    with pytest.raises(KeyError):
        _ = coordinate["ddp"]
