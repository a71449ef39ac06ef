"""Layout beyond its laws, patterns of axes, and Position."""

from __future__ import annotations

import copy
import json
import pickle
import tracemalloc

import einops
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import CoordinateError, Layout, SpecError
from meshkit.core.layout import Position, group_rank, parse_axis_pattern
from meshkit.testing import axes_of, layouts, ranks

HUGE = Layout(pp=16, dp=2**21, tp=64)  # 2**31 ranks


SHUFFLED = Layout(dp=2, sp=2, ranks=[7, 0, 3, 5])


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


def test_the_largest_layout_needs_little_memory() -> None:
    tracemalloc.start()
    try:
        layout, last = Layout(pp=16, dp=2**21, tp=64), 2**31 - 1
        assert layout.coordinate(last) == {"pp": 15, "dp": 2**21 - 1, "tp": 63}
        assert layout.rank(pp=15, dp=2**21 - 1, tp=63) == last
        assert layout.neighbor(last, "pp") == 2**27 - 1
        assert layout.neighbor(last, "dp", wrap=False) is None
        assert layout.peers(last, "tp").tolist() == [last - 63 + i for i in range(64)]
        assert layout.coordinates([[last], [64]]).tolist() == [[[15, 2**21 - 1, 63]], [[0, 1, 0]]]
        assert layout.size("dp", "tp") == 2**27
        assert last in layout
        assert 2**31 not in layout
        assert layout.view(node=-1, local=8).sizes == {"node": 2**28, "local": 8}
        assert pickle.loads(pickle.dumps(layout)) == layout == HUGE
        assert hash(layout) == hash(HUGE)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    with pytest.raises(SpecError):
        Layout(dp=2**31 + 1)


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


def test_the_str_of_a_huge_layout_shows_its_edges() -> None:
    text = str(HUGE)
    assert len(text.splitlines()) < 30
    assert str(2**31 - 1) in text
    assert "[777777777]" in Layout(dp=2**28, tp=8).draw(mark=777777777)


def test_an_absent_standard_axis_has_index_0() -> None:
    coordinate = Position(Layout(dp=2, sp=2), 3).coordinate
    assert (coordinate["dp"], coordinate["tp"], coordinate["pp"]) == (1, 0, 0)
    assert coordinate == {"dp": 1, "sp": 1}
    assert [*coordinate] == ["dp", "sp"]
    assert "tp" not in coordinate
    assert (coordinate.get("tp"), coordinate.get("xx"), coordinate.get("dp")) == (0, None, 1)
    with pytest.raises(CoordinateError):
        Layout(dp=2).draw(mark=9)
    assert json.loads(json.dumps(coordinate)) == coordinate
    assert pickle.loads(pickle.dumps(coordinate))["tp"] == 0


@settings(deadline=None, max_examples=60)
@given(layouts())
def test_every_rank_answers_as_its_layout_does(layout: Layout) -> None:
    for rank in layout.grid.flat:
        position = pickle.loads(pickle.dumps(Position(layout, int(rank))))
        assert layout.rank(**position.coordinate) == rank
        assert position.inside
        assert position.size() == layout.num_ranks
        for axis in layout.axes:
            assert position.size(axis) == layout.sizes[axis]
            assert position.peers(axis)[position.group_rank(axis)] == rank
            assert position.neighbor(axis) == layout.neighbor(int(rank), axis)


def test_the_data_index_counts_data_and_expert_axes() -> None:
    layout = Layout(dp=2, ep=2, sp=2)
    assert [Position(layout, rank).data_index for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert Position(Layout(tp=4), 3).data_index == 0


@given(st.data())
def test_the_group_rank_is_the_index_in_the_group(data: st.DataObject) -> None:
    layout = data.draw(layouts(with_ranks=True))
    rank, axes = data.draw(ranks(layout)), data.draw(axes_of(layout))
    expected = layout.peers(rank, *axes).tolist().index(rank) if axes else 0
    assert group_rank(layout, rank, axes) == expected


AXES = ("dp", "sp", "tp")


LAYOUT = Layout(dp=2, sp=3, tp=2)


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("dp", (("dp",),)),
        ("dp sp tp", (("dp",), ("sp",), ("tp",))),
        ("(dp sp) tp", (("dp", "sp"), ("tp",))),
        ("tp (sp dp)", (("tp",), ("sp", "dp"))),
        ("(dp)", (("dp",),)),
        ("  ( dp   sp )tp ", (("dp", "sp"), ("tp",))),
        ("(dp sp tp)", (("dp", "sp", "tp"),)),
    ],
)
def test_the_axes_of_each_name_or_bracket(pattern: str, parts: object) -> None:
    assert parse_axis_pattern(pattern, AXES) == parts


@pytest.mark.parametrize(
    "pattern",
    ["", " ", "()", "(dp", "dp)", "((dp) sp)", "dp -> sp", "dp-sp", "...", 3, None],
)
def test_an_invalid_pattern_raises_an_error(pattern: object) -> None:
    with pytest.raises(SpecError, match="the pattern cannot be parsed"):
        parse_axis_pattern(pattern, AXES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "sizes"),
    [
        ("dp sp tp -> (dp sp) tp", {}),
        ("dp sp tp -> tp sp dp", {}),
        ("dp sp tp -> (tp dp sp)", {}),
        ("(a b) sp tp -> b (a sp tp)", {"a": 1}),
        ("dp sp (a b) -> a dp b sp", {"b": 2}),
        ("dp ... -> ... dp", {}),
        ("a b c -> c b a", {}),
        # an axis in its own position after an ellipsis
        ("... tp -> tp ...", {}),
        ("dp ... tp -> tp dp ...", {}),
        ("... sp tp -> (sp tp) ...", {}),
    ],
)
def test_rearrange_returns_the_result_of_einops(pattern: str, sizes: dict[str, int]) -> None:
    expected = einops.rearrange(np.arange(12).reshape(2, 3, 2), pattern, **sizes)
    np.testing.assert_array_equal(LAYOUT.rearrange(pattern, **sizes), expected)


@pytest.mark.parametrize(
    "pattern",
    [
        "sp dp tp -> sp dp tp",
        "dp tp sp -> dp tp sp",
        "tp sp dp -> tp sp dp",
        "... sp -> sp ...",  # the last axis is tp
        "... dp tp -> dp tp ...",
    ],
)
def test_an_axis_in_the_position_of_another_one_raises_an_error(pattern: str) -> None:
    with pytest.raises(SpecError, match="is in the position of"):
        LAYOUT.rearrange(pattern)


@pytest.mark.parametrize("layout", [Layout(dp=2, sp=2), Layout(dp=2, sp=2, ranks=[7, 0, 3, 5])])
def test_groups_are_an_array_of_the_caller(layout: Layout) -> None:
    for axes in ("dp", "sp", "dp sp"):
        groups = layout.groups(axes)
        groups[...] = -1
        assert (layout.groups(axes) >= 0).all()


def test_an_unsigned_rank_is_shown_as_it_was_given() -> None:
    for rank in (2**63, 2**64 - 1):
        with pytest.raises(CoordinateError, match=f"rank {rank} is not in"):
            Layout(dp=2).coordinates(np.array([rank], dtype=np.uint64))
