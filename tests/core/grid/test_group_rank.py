"""The group rank, against the groups of the layout."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit import CoordinateError, Layout, UnknownAxisError
from meshkit.core.grid.group_rank import check_member, group_rank
from meshkit.testing import axes_of, layouts, ranks


@given(st.data())
def test_the_group_rank_is_the_index_in_the_group(data: st.DataObject) -> None:
    layout = data.draw(layouts(with_ranks=True))
    rank, axes = data.draw(ranks(layout)), data.draw(axes_of(layout))
    expected = layout.peers(rank, *axes).tolist().index(rank) if axes else 0
    assert group_rank(layout, rank, axes) == expected


def test_a_rank_outside_raises_an_error() -> None:
    layout = Layout(dp=4)
    with pytest.raises(CoordinateError):
        group_rank(layout, 9, ("dp",))
    with pytest.raises(UnknownAxisError):
        group_rank(layout, 9, ("tq",))
    check_member(layout, 3)
    with pytest.raises(CoordinateError, match=r"It has 4 ranks; mesh\.inside is False") as caught:
        check_member(layout, 4)
    assert (caught.value.index, caught.value.size) == (4, 4)
