"""The attributes that errors promise, beside their texts."""

from __future__ import annotations

import pytest

from meshkit.core.grid.axis_names import STANDARD
from tests.messages.all_cases import CASES
from tests.messages.snapshot import error_of

ATTRIBUTES: dict[str, dict[str, object]] = {
    "an unknown axis in a coordinate": {
        "axis": "node",
        "axes": ("dp", "sp", "tp"),
        "suggestion": None,
    },
    "an unknown axis": {"axis": "ttp", "axes": ("dp", "sp", "tp"), "suggestion": "tp"},
    "an unknown axis in a plan": {"axis": "pipe", "axes": ("dp", "sp", "tp"), "suggestion": None},
    "an axis of size 0": {"sizes": {"dp": 0, "sp": 2}},
    "a size that is a str": {"sizes": {"tp": "4"}},
    "two sizes to infer": {"sizes": {"dp": -1, "tp": -1}},
    "an axis without a standard place": {
        "axis": "shard",
        "axes": STANDARD,
        "suggestion": None,
        "sizes": {"shard": 2, "tp": 2},
    },
    "a misspelt standard axis": {
        "axis": "tpp",
        "axes": STANDARD,
        "suggestion": "tp",
        "sizes": {"tpp": 2},
    },
    "an order that differs from the sizes": {"sizes": {"sp": 2, "tp": 2}},
    "sizes whose product is not the world size": {
        "sizes": {"dp": 4, "sp": 2, "tp": 1},
        "world_size": 6,
    },
    "sizes whose product does not divide the world size": {
        "sizes": {"dp": -1, "tp": 4},
        "world_size": 6,
    },
    "sizes whose product is one rank": {"sizes": {"tp": 1}, "world_size": 6},
    "a view of another size": {"sizes": {"dp": 3, "sp": 2}, "world_size": 8},
    "a view out of the standard order": {"sizes": {"tp": 2, "node": 2, "dp": 2}},
    "a view without dp": {"sizes": {"pp": 2, "tp": 2}, "world_size": 16},
    "a view of one axis too short": {"sizes": {"a": 3}, "world_size": 4},
    "a view that does not divide": {"sizes": {"node": 3, "local": -1}, "world_size": 8},
    "a world of 0 ranks": {"sizes": {"tp": 2}},
    "a coordinate without an axis": {"axis": "sp"},
    "coordinates of a rank outside the layout": {"axis": None, "index": 9, "size": 8},
    "the coordinate of a rank outside the layout": {"axis": None, "index": 0, "size": 4},
    "a layout with a size to infer": {"sizes": {"dp": -1}},
    "a layout of more ranks than int64": {"sizes": {"dp": 2**62, "tp": 2}},
    "a rank that is a str": {"axis": None, "index": "3"},
    "an index outside its axis": {"axis": "sp", "index": 2, "size": 2},
    "an index on an axis of one": {"axis": "tp", "index": -1, "size": 1},
    "a batch that does not divide": {
        "global_batch": 100,
        "below": 96,
        "above": 108,
        "micro_batches": (1, 5, 25),
    },
    "a batch with many divisors": {"below": 700, "above": 750},
    "samples of a negative step": {"index": -1},
    "a batch that rounds down to 0": {"below": None, "above": 12},
    "a batch that does not divide to give dp": {"below": 96, "above": 102},
    "an uneven batch with a partial micro batch": {"below": 30, "above": 33},
    "an uneven batch with wrong accumulation steps": {"global_batch": 32},
    "a negative first sample": {"index": -3},
    "a stage that does not divide": {"global_batch": 12, "below": 8, "above": 16},
    "a ramp with a batch that does not divide": {"below": 6, "above": 8},
    "stages as text that do not divide": {"below": 8, "above": 16},
    "the seed of a rank outside the layout": {"index": 9, "size": 8},
    "a huge batch that does not divide": {"below": 10**18 - 1, "above": 10**18 + 2},
    "an axis of data that the layout does not have": {"axis": "dq"},
    "the batch at a negative sample": {"index": -1},
    "the samples consumed at a negative step": {"index": -1},
    "a data index outside the plan": {"axis": "dp", "index": 4, "size": 4},
    "a sequence that does not divide": {"below": 8, "above": 12},
    "a zigzag sequence that does not divide": {"below": None, "above": 8},
    "a part outside a sequence": {"index": 4, "size": 4},
    "a position outside a shuffled order": {"index": 8, "size": 8},
    "a step beyond an epoch": {"index": 7, "size": 7},
    "an epoch shorter than a step": {"global_batch": 16, "below": 9},
    "a stream at a negative index": {"axis": "tp", "index": -1},
    "a stream at a bool index": {"axis": "dp", "index": True},
    "vary with an unknown axis": {"axis": "xx", "axes": ("dp", "sp", "tp"), "suggestion": None},
    "ranks that do not divide over nodes": {"world_size": 15},
    "fewer ranks than nodes": {"world_size": 8},
    "nodes that do not divide over racks": {"world_size": 8},
    "the node of a rank outside the topology": {"index": 8},
    "the ranks of a node outside the topology": {"index": 4, "size": 4},
    "sizes beside within": {"sizes": {"dp": 2}},
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(name: str) -> None:
    error = error_of(CASES[name])
    attributes = ATTRIBUTES[name]
    assert {key: getattr(error, key) for key in attributes} == attributes
