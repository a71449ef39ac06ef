"""The node of a rank, from the machines of all ranks, if no variable states it."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit.launch.nodes import ASKED, FROM_MACHINES, NODES, find_node, number_nodes, place_on_node
from meshkit.launch.round import Round
from meshkit.launch.store import Store
from meshkit.launch.times import Deadline
from meshkit.launch.world import NODE_FIELDS, free_port

MACHINES = st.lists(st.sampled_from("abcd"), min_size=2, max_size=9)
POD = {"RANK": "1", "WORLD_SIZE": "2"}


def fields_of(world: meshkit.World) -> list[int | None]:
    return [getattr(world, name) for name in NODE_FIELDS]


def worked_by_sorting(machines: list[str]) -> list[list[int]]:
    """Return the fields of each rank, derived over the machines instead of the ranks."""
    first_ranks = sorted(machines.index(machine) for machine in {*machines})
    fields: dict[int, list[int]] = {}
    for node, first in enumerate(first_ranks):
        ranks = [r for r, machine in enumerate(machines) if machine == machines[first]]
        for index, rank in enumerate(ranks):
            fields[rank] = [index, len(ranks), node, len(first_ranks)]
    return [fields[rank] for rank in range(len(machines))]


@given(MACHINES)
def test_nodes_may_hold_any_ranks(machines: list[str]) -> None:
    nodes, size = number_nodes(machines), len(machines)
    worlds = [meshkit.detect({}, rank=rank, world_size=size) for rank in range(size)]
    placed = [place_on_node(world, nodes) for world in worlds]
    assert [fields_of(world) for world in placed] == worked_by_sorting(machines)
    assert all(world.sources[name] == FROM_MACHINES for world in placed for name in NODE_FIELDS)


@given(MACHINES, st.data())
def test_what_a_launcher_states_stays_and_is_not_contradicted(
    machines: list[str], data: st.DataObject
) -> None:
    nodes, size = number_nodes(machines), len(machines)
    stated = {
        name: value
        for name in NODE_FIELDS
        if (value := data.draw(st.none() | st.integers(0, size))) is not None
    }
    rank = data.draw(st.integers(0, size - 1))
    world = replace(meshkit.detect({}, rank=rank, world_size=size), **stated)
    placed = place_on_node(world, nodes)
    found = dict(zip(NODE_FIELDS, worked_by_sorting(machines)[rank], strict=True))
    assert {name: getattr(placed, name) for name in stated} == stated
    for pair in (NODE_FIELDS[:2], NODE_FIELDS[2:]):
        agrees = all(stated.get(name, found[name]) == found[name] for name in pair)
        for name in {*pair} - stated.keys():
            assert getattr(placed, name) == (found[name] if agrees else None)


def join_as_pod(port: int, machines: list[str], variables: list[dict[str, str]]) -> Any:
    """Join without the variables of the node, on a machine of that name."""
    rank = int(os.environ["RANK"])
    for name in ("MESHKIT_SPAWN", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    os.environ |= {"MESHKIT_MACHINE": machines[rank], "MASTER_PORT": str(port), **variables[rank]}
    before = dict(os.environ)
    detected = fields_of(meshkit.detect())
    world = meshkit.init(arrival_timeout=40)
    exported = [os.environ.get(name) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE")]
    again = fields_of(meshkit.detect())
    mesh = meshkit.build_mesh(dp=-1)
    mesh.barrier()
    mesh.close()
    meshkit.shutdown()
    return detected, fields_of(world), exported, again, dict(os.environ) == before


UNKNOWN: list[int | None] = [None] * 4


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        ("ab", [[0, 1, 0, 2], [0, 1, 1, 2]]),  # a pod each, on two machines
        ("aa", [[0, 2, 0, 1], [1, 2, 0, 1]]),  # on one
        ("abaa", [[0, 3, 0, 2], [0, 1, 1, 2], [1, 3, 0, 2], [2, 3, 0, 2]]),
    ],
)
def test_init_finds_the_node_of_pods(machines: str, expected: list[list[int]]) -> None:
    """The variables of the node are set while the ranks run, and detect ignores them."""
    args = free_port(), [*machines], [{}] * len(machines)
    results = meshkit.spawn(join_as_pod, len(machines), args, timeout=90)
    for fields, (detected, found, exported, again, is_restored) in zip(
        expected, results, strict=True
    ):
        assert (detected, found, again, is_restored) == (UNKNOWN, fields, UNKNOWN, True)
        assert exported == [str(fields[0]), str(fields[1])]


def test_ranks_may_know_different_fields() -> None:
    """Two machines that are one, to the launcher of the first rank; the others count ranks."""
    kubeflow = {"PET_NNODES": "3", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "1"}
    variables = [kubeflow, {}, {"LOCAL_RANK": "0"}]
    args = free_port(), ["a", "a", "b"], variables
    results = meshkit.spawn(join_as_pod, 3, args, timeout=90)
    assert [result[1] for result in results] == [[0, 1, 0, 3], [1, 2, 0, 2], [0, 1, 1, 2]]
    assert [result[2] for result in results] == [["0", "1"], ["1", "2"], ["0", "1"]]


@pytest.mark.parametrize("record", ["no list", "[[0]]", "[[0, 3]]", "[[0, 1], [1, -1]]", "{}"])
def test_a_record_of_nodes_that_no_rank_wrote_is_named(record: str) -> None:
    world = meshkit.detect({"RANK": "0", "WORLD_SIZE": "2"})
    store = Store(dist.HashStore(), world)
    store.add(ASKED, 1)
    store.set(NODES, record)
    arrived = Round(store, "init", 0, range(2))
    with pytest.raises(meshkit.LaunchError, match=f"'{NODES}' .* no rank wrote"):
        find_node(world, store, arrived.arrivals, Deadline.after(timedelta(seconds=5)))
