"""Position: the answers of a layout for one rank, in any process."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given, settings

from meshkit import CoordinateError, Layout, SpecError, UnknownAxisError
from meshkit.core.layout import Position
from meshkit.testing.strategies import layouts


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


def test_errors_quote_the_call() -> None:
    position = Position(Layout(dp=2), 5)
    assert not position.inside
    assert copy.deepcopy(position) == position
    with pytest.raises(CoordinateError, match=r"^position.group_rank\('dp'\): "):
        position.group_rank("dp")
    with pytest.raises(UnknownAxisError, match="there is no axis"):
        position.size("tpp")


def test_the_data_index_is_refused_if_an_axis_may_divide_the_samples() -> None:
    with pytest.raises(SpecError, match="whether ranks along rows share samples"):
        _ = Position(Layout({"dp": 2, "rows": 4}), 5).data_index
