"""Layout beyond its laws."""

from __future__ import annotations

import copy
import json
import pickle
import tracemalloc
from typing import Any

import numpy as np
import pytest

from meshkit import CoordinateError, Layout, SpecError

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


def test_a_coordinate_that_is_used_as_an_object_or_a_method_shows_how_to_read_an_index() -> None:
    at: Any = Layout(dp=2, tp=2).coordinate(3)  # whose type is a dict
    for read, text in (
        (lambda: at.dp, "no attribute 'dp'; use coordinate['dp']"),
        (lambda: at.pp, "no attribute 'pp'; use coordinate['pp']"),
        (lambda: at.pd, "no attribute 'pd'; use coordinate['dp']"),
        (lambda: at.index, "no attribute 'index'; use coordinate['dp'] or coordinate['tp']"),
        (lambda: at("dp"), "a dict, which is not called; use coordinate['dp']"),
        (lambda: at(), "not called; use coordinate['dp'] or coordinate['tp']"),
        (lambda: at(1), "not called; use mesh.layout.coordinate(1)"),
        (lambda: at(dp=1), "a dict, which is not called; use coordinate['dp']"),
        (lambda: at(rank=1), "not called; use mesh.layout.coordinate(1)"),
    ):
        with pytest.raises((AttributeError, TypeError)) as caught:
            read()
        assert str(caught.value).endswith(text)


def test_an_axis_that_is_read_as_an_attribute_of_a_layout_names_its_size() -> None:
    layout: Any = Layout(dp=2, tp=2)  # whose type has no axes
    with pytest.raises(AttributeError, match=r"no attribute 'dp'; use size\('dp'\)"):
        _ = layout.dp
    assert not hasattr(copy.deepcopy(layout), "pp")
    assert pickle.loads(pickle.dumps(layout)) == copy.copy(layout) == layout


def test_a_coordinate_is_copied_and_written_as_a_dict() -> None:
    at = Layout(dp=2, tp=2).coordinate(3)
    for other in (copy.copy(at), copy.deepcopy(at), pickle.loads(pickle.dumps(at))):
        assert (other, type(other), other["pp"]) == (at, type(at), 0)
    assert json.dumps(at) == '{"dp": 1, "tp": 1}'
    protocols = ("__array__", "__dataclass_fields__", "__torch_function__", "_asdict", "shape")
    assert not any(hasattr(at, name) for name in protocols)
