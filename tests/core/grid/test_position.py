"""A rank on the grid answers as the layout does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit.core.grid.position import Position
from meshkit.testing import layouts


@given(st.data())
def test_as_the_layout(data: st.DataObject) -> None:
    layout = data.draw(layouts())
    rank = int(data.draw(st.sampled_from(list(layout.grid.flat))))
    here = Position(layout, rank)
    assert (here.layout, here.rank, here.coordinate) == (layout, rank, layout.coordinate(rank))
    for axis in layout.axes:
        assert here.size(axis) == layout.sizes[axis]
        assert here.peers(axis).tolist() == layout.peers(rank, axis).tolist()
        assert here.ranks(axis).tolist() == here.peers(axis).tolist()
        assert here.ring(axis).tolist() == layout.ring(rank, axis).tolist()
        assert here.neighbor(axis, -1) == layout.neighbor(rank, axis, -1)
    assert here.size() == layout.num_ranks
    assert here.inside
    assert not Position(layout, max(layout.ranks) + 1).inside


def test_outside() -> None:
    with pytest.raises(meshkit.CoordinateError):
        _ = Position(meshkit.Layout(dp=4), 9).coordinate
