"""A coordinate: index 0 along an absent standard axis, and no other axis."""

from __future__ import annotations

import json
import pickle

import pytest

from meshkit import Layout, UnknownAxisError
from meshkit.core.grid.position import Position


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
