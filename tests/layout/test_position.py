"""Position: it answers as its layout does."""

from __future__ import annotations

import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.layout.position import Position, group_rank
from meshkit.testing import axes_of, layouts, ranks
from tests.laws.derivations import law


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
