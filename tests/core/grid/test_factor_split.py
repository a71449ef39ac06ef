"""split_world: parts side by side. Its refusals are in test_messages.py."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import SpecError, split_world


def test_parts_in_the_order_written() -> None:
    parts = split_world(actor=8, critic=4, reference=4)
    assert parts == {"actor": range(8), "critic": range(8, 12), "reference": range(12, 16)}
    assert list(parts) == ["actor", "critic", "reference"]
    assert split_world(16, actor=8, critic=-1) == {"actor": range(8), "critic": range(8, 16)}
    assert split_world(np.int64(4), actor=np.int64(4)) == {"actor": range(4)}


@settings(deadline=None, database=None)
@given(st.lists(st.integers(1, 99), min_size=1, max_size=8), st.data())
def test_parts_are_the_world_each_rank_once(sizes: list[int], data: st.DataObject) -> None:
    named = {f"part{place}": size for place, size in enumerate(sizes)}
    parts = split_world(sum(sizes), **named)
    assert [len(part) for part in parts.values()] == sizes
    assert [*itertools.chain(*parts.values())] == [*range(sum(sizes))]
    name = data.draw(st.sampled_from(sorted(named)))
    assert split_world(sum(sizes), **{**named, name: -1}) == parts


@pytest.mark.parametrize("parts", [{}, {"actor": 0}, {"actor": "4"}, {"actor": -1, "critic": -1}])
def test_refused(parts: dict[str, int]) -> None:
    with pytest.raises(SpecError, match="split_world"):
        split_world(8, **parts)


def test_names_are_the_callers_own() -> None:
    assert split_world(data=2, axis=2) == {"data": range(2), "axis": range(2, 4)}
