"""Layouts, plans and topologies are plain values: they copy, pickle and hash, and never change."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest

from meshkit import BatchPlan, BatchSchedule, Layout, SequencePlan, Topology
from meshkit.layout.position import Position
from meshkit.layout.ranks import RankPositions

SHUFFLED = [7, 0, 3, 5]
HOSTS = ["a", "b", "a", "b"]
EVEN = BatchPlan.solve(dp=2, global_batch=4, micro_batch=2)
UNEVEN = BatchPlan.solve(dp=2, global_batch=6, micro_batch=2, uneven=True)
DEALT = Topology.of_hosts(HOSTS)
PLAIN, LAYOUT = Layout(dp=2, sp=2), Layout(dp=2, sp=2, ranks=SHUFFLED)

# values that are equal in each row, and differ from those of all other rows
ROWS: list[list[Any]] = [
    [
        EVEN,
        dataclasses.replace(EVEN, data_index=1),
        BatchPlan(np.int64(2), np.int32(4), np.uint8(2), 1),
    ],
    [UNEVEN, eval(repr(UNEVEN), {"BatchPlan": BatchPlan})],
    [BatchSchedule(EVEN, ((0, 4), (8, 8))), BatchSchedule(EVEN, [[0, 4], [8, 8]])],  # type: ignore[arg-type]
    [BatchSchedule(EVEN, ((0, 4),))],
    [
        SequencePlan(16, 4, "zigzag"),
        SequencePlan(np.int64(16), np.uint8(4), "zigzag", np.bool_(False)),
    ],  # type: ignore[arg-type]
    [SequencePlan(16, 4)],
    [
        PLAIN,
        Layout(dp=2, sp=2, ranks=[0, 1, 2, 3]),
        Layout(dp=np.int64(4)).view(dp=2, sp=np.uint8(2)),
    ],
    [Layout(dp=4), Layout(dp=4, ranks=np.arange(4))],
    [Layout(sp=2, dp=2)],
    [Layout(dp=2, tp=2)],
    [Layout(dp=4, sp=1)],
    [Layout(dp=2, sp=2, ranks=range(4, 8))],
    [Layout(dp=2, sp=2, ranks=range(3, -1, -1)), Layout(dp=2, sp=2, ranks=(3, 2, 1, 0))],
    [LAYOUT, Layout(dp=2, sp=2, ranks=np.array(SHUFFLED))],
    [Layout(dp=2, sp=2, ranks=[0, 7, 3, 5])],
    [Layout(pp=16, dp=2**21, tp=64)],  # 2**31 ranks
    [DEALT, Topology.of_hosts(tuple(HOSTS))],
    [Topology.of_hosts(sorted(HOSTS)), Topology(np.array([2, 2]), ("a", "b"))],
    [Topology.of_hosts([0, 0, 1, 1]), Topology.of_sizes([2, 2]), Topology.even(4, nodes=2)],
    [Topology.of_hosts(["c", "b", "c", "b"])],
    [Topology.of_hosts([*HOSTS, "a"])],
    [DEALT.with_level("rack", [0, 1])],
    [DEALT.with_level("rack", [0, 0])],
    [DEALT.with_level("rack", ["x", "y"])],
    [DEALT.with_level("hall", [0, 1])],
    [
        RankPositions.of(order, 2)
        for order in ([0, 2], range(0, 4, 2), range(0, 3, 2), np.array([0, 2]))
    ],
    [RankPositions.of(order, 4) for order in (SHUFFLED, np.array(SHUFFLED), tuple(SHUFFLED))],
    [RankPositions.of(SHUFFLED[::-1], 4)],
]


def copies(value: object) -> list[object]:
    pickled = [pickle.loads(pickle.dumps(value, n)) for n in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    return [copy.copy(value), copy.deepcopy(value), *pickled]


def test_values_and_their_copies_are_equal_exactly_in_a_row() -> None:
    rows = [[*row, *copies(row[0])] for row in ROWS]
    assert [len({*row}) for row in rows] == [1] * len(rows)
    assert len({value for row in rows for value in row}) == len(rows)
    assert all(row[0] != {"dp": 4} for row in rows)


@pytest.mark.parametrize("row", ROWS[:-3], ids=lambda row: type(row[0]).__name__)
def test_no_attribute_can_be_set(row: list[object]) -> None:
    for name in ("dp", "plan", "parts", "sizes", "ranks", "axes", "names"):
        with pytest.raises(AttributeError):
            setattr(row[0], name, 1)


def test_every_number_is_a_plain_int() -> None:
    layout, numpy = Layout(dp=np.int64(4), sp=np.uint8(2)), np.int8
    numbers = [*layout.shape, *layout.coordinate(numpy(5)).values(), layout.rank(dp=numpy(2), sp=1)]
    numbers += [layout.neighbor(numpy(5), "dp", numpy(1)), *LAYOUT.coordinate(7).values()]
    numbers += [LAYOUT.rank(dp=0, sp=0), *dataclasses.astuple(ROWS[0][2])[:4]]
    numbers += [*dataclasses.astuple(ROWS[4][1])[:2], *ROWS[2][1].stages[1]]
    assert {type(number) for number in numbers} == {int}
    assert EVEN.samples(numpy(1), np.int32(1)).tolist() == EVEN.samples(1, 1).tolist() == [[6, 7]]
    assert ROWS[4][1].positions(np.int32(1)).tolist() == [2, 3, 12, 13]


def test_arrays_belong_to_one_side() -> None:
    """No array that a value holds can be written, and none of the caller is held."""
    topology = DEALT.with_level("rack", [0, 1])
    held = [topology.sizes, topology.outer[0].of_node, PLAIN.grid, LAYOUT.grid, LAYOUT.ranks]
    held += [duplicate.ranks for duplicate in copies(LAYOUT)]  # type: ignore[attr-defined]
    for array in held:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
    sizes, ranks = np.array([2, 2]), np.array(SHUFFLED)
    topology, layout = Topology(sizes, ("a", "b")), Layout(dp=2, sp=2, ranks=ranks)
    sizes[...] = ranks[...] = 9
    for each in (PLAIN, LAYOUT, layout):
        for answer in (each.groups(), each.groups("dp"), each.groups("sp"), each.peers(0)):
            answer[...] = -1
        assert sorted(each.groups("dp").ravel()) == sorted(each.ranks)
    assert topology.node_of(range(4)).tolist() == [0, 0, 1, 1]
    assert layout == LAYOUT


def test_a_coordinate_has_index_0_on_an_absent_standard_axis() -> None:
    coordinate = Position(PLAIN, 3).coordinate
    for each in (coordinate, *copies(coordinate)):
        assert each == {"dp": 1, "sp": 1} == dict(each)  # type: ignore[call-overload]
        assert (each["dp"], each["tp"], each["pp"]) == (1, 0, 0)  # type: ignore[index]
        assert (each.get("tp"), each.get("xx"), "tp" in each) == (0, None, False)  # type: ignore[attr-defined]
