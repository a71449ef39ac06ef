"""World: frozen, and exported to a child process without contradictions."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

import meshkit
from tests.launch.launchers import recorded
from tests.launch.launchers.recorded import ALL, ALONE, EXPECTED, Env

SAME = ("rank", "world_size", "local_rank", "local_world_size", "master_addr", "master_port")


def test_a_world_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        meshkit.detect({}).rank = 3  # type: ignore[misc]


def test_export_removes_contradicting_variables() -> None:
    environ = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    environ |= {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "MESHKIT_SPAWN": "file:///x", "HOME": "/"}
    world = meshkit.detect({}, rank=1, world_size=4)
    world.export(environ)
    child = meshkit.detect(environ)
    assert (child.rank, child.world_size, child.local_world_size) == (1, 4, 4)
    assert child.launcher == "hand-written"
    assert environ["HOME"] == "/"
    assert environ["OMPI_COMM_WORLD_SIZE"] == "4"  # it contradicts nothing


@pytest.mark.parametrize("name", [*EXPECTED, *ALONE])
def test_an_exported_world_is_detected_again(name: str) -> None:
    world = meshkit.detect(ALL[name])
    target: Env = {}
    again = meshkit.detect(world.export(target))
    assert again.launcher == "hand-written"
    same = ("rank", "world_size", "local_rank", "local_world_size", "master_addr", "master_port")
    assert [getattr(again, field) for field in same] == [getattr(world, field) for field in same]
    assert target == world.export({})
    beside = meshkit.detect({**ALL[name], **target})  # in a child of this very process
    assert [getattr(beside, field) for field in same] == [getattr(world, field) for field in same]


def test_a_world_without_an_address_exports_none() -> None:
    world = replace(meshkit.detect(recorded.OPEN_MPI_5), local_world_size=None)
    environ = {"MASTER_ADDR": "kept"}
    assert world.export(environ) == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert environ == {"MASTER_ADDR": "kept", **world.export({})}
