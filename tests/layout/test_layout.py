"""Layout beyond its laws, patterns of axes, and Position."""

from __future__ import annotations

import pickle
import tracemalloc

import einops
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import CoordinateError, Layout, SpecError
from meshkit.layout.layout import Position, group_rank, parse_axis_pattern
from meshkit.testing import axes_of, layouts, ranks
from tests.laws.derivations import law

HUGE = Layout(pp=16, dp=2**21, tp=64)  # 2**31 ranks


SHUFFLED = Layout(dp=2, sp=2, ranks=[7, 0, 3, 5])


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


def test_coordinates_keep_the_shape() -> None:
    for asked in (5, [5], [[0, 1], [6, 7]], np.arange(8, dtype=np.uint8), []):
        coordinates = Layout(dp=4, sp=2).coordinates(asked)
        assert coordinates.shape == (*np.shape(asked), 2)
        assert coordinates.dtype == np.int64


@pytest.mark.parametrize("layout", [Layout(dp=2, sp=2), SHUFFLED])
@pytest.mark.parametrize("rank", [8, -1, 2**63, 2**64 - 1])
def test_a_rank_outside_is_shown_as_it_was_given(layout: Layout, rank: int) -> None:
    with pytest.raises(CoordinateError, match=f"rank {rank} is not in"):
        layout.coordinates(np.array([[rank]], dtype=np.uint64 if rank > 8 else np.int64))
    for ask in (layout.coordinate, lambda rank: layout.draw(mark=rank)):
        with pytest.raises(CoordinateError, match=f"rank {rank} is not in"):
            ask(rank)


def test_the_str_of_a_huge_layout_shows_its_edges() -> None:
    text = str(HUGE)
    assert len(text.splitlines()) < 30
    assert str(2**31 - 1) in text
    assert "[777777777]" in Layout(dp=2**28, tp=8).draw(mark=777777777)


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


@law
@given(st.data())
def test_the_group_rank_is_the_index_in_the_group(data: st.DataObject) -> None:
    layout = data.draw(layouts(with_ranks=True))
    rank, axes = data.draw(ranks(layout)), data.draw(axes_of(layout))
    expected = layout.peers(rank, *axes).tolist().index(rank) if axes else 0
    assert group_rank(layout, rank, axes) == expected


AXES = ("dp", "sp", "tp")


LAYOUT = Layout(dp=2, sp=3, tp=2)


def test_the_axes_of_each_name_or_bracket() -> None:
    assert parse_axis_pattern("dp sp tp", AXES) == (("dp",), ("sp",), ("tp",))
    assert parse_axis_pattern("  ( sp   dp )tp ", AXES) == (("sp", "dp"), ("tp",))
    for pattern in ("", "()", "(dp", "dp)", "((dp) sp)", "dp -> sp", "dp-sp", "...", 3, None):
        with pytest.raises(SpecError, match="the pattern cannot be parsed"):
            parse_axis_pattern(pattern, AXES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "sizes"),
    [
        ("dp sp tp -> (dp sp) tp", {}),
        ("dp sp tp -> tp sp dp", {}),
        ("(a b) sp tp -> b (a sp tp)", {"a": 1}),
        ("dp sp (a b) -> a dp b sp", {"b": 2}),
        ("a b c -> c b a", {}),
        ("dp ... tp -> tp dp ...", {}),
        ("... sp tp -> (sp tp) ...", {}),
    ],
)
def test_rearrange_returns_the_result_of_einops(pattern: str, sizes: dict[str, int]) -> None:
    expected = einops.rearrange(np.arange(12).reshape(2, 3, 2), pattern, **sizes)
    np.testing.assert_array_equal(LAYOUT.rearrange(pattern, **sizes), expected)


def test_an_axis_in_the_position_of_another_one_raises_an_error() -> None:
    for pattern in ("dp tp sp -> dp tp sp", "... sp -> sp ...", "... dp tp -> dp tp ..."):
        with pytest.raises(SpecError, match="is in the position of"):
            LAYOUT.rearrange(pattern)
