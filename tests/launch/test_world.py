"""World: exported to a child process, and the variables that init adds for other libraries."""

from __future__ import annotations

import dataclasses
import socket
from dataclasses import replace

import pytest

import meshkit
from meshkit.launch.world import (
    EXPORTED,
    complete_environment,
    free_port,
    restore_environment,
    without_completed,
)
from tests.launch.recorded import ALL, ALONE, EXPECTED, OPEN_MPI_5, ROWS, Env


def exported_fields(world: meshkit.World) -> list[object]:
    return [getattr(world, field) for field in EXPORTED]


def complete(environ: Env) -> dict[str, str]:
    world = meshkit.detect(environ)
    return complete_environment(world, world.master_addr, world.master_port, environ)


def test_a_world_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        meshkit.detect({}).rank = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", [*EXPECTED, *ALONE])
def test_an_exported_world_is_detected_again(name: str) -> None:
    world = meshkit.detect(ALL[name])
    target: Env = {}
    again = meshkit.detect(world.export(target))
    assert again.launcher == "hand-written"
    assert exported_fields(again) == exported_fields(world)
    assert target == world.export({})
    if name in ALONE and "MASTER_ADDR" in ALL[name]:
        return  # of a job that this process has not joined
    beside = meshkit.detect({**ALL[name], **target})  # in a child of this very process
    assert exported_fields(beside) == exported_fields(world)


@pytest.mark.parametrize("name", EXPECTED)
def test_variables_of_another_node_are_not_exported(name: str) -> None:
    """A script has exported them. No child takes a number that this process does not state."""
    for variable in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES"):
        for value in ("1", "2"):
            environ = {variable: value, **ALL[name]}
            try:
                world = meshkit.detect(environ)
            except meshkit.LaunchError:  # it contradicts the launcher
                continue
            world.export(environ)
            child = meshkit.detect(environ)
            assert exported_fields(child)[:4] == exported_fields(world)[:4], variable


def test_export_removes_contradicting_variables() -> None:
    environ = {**OPEN_MPI_5, "LOCAL_WORLD_SIZE": "2", "HOME": "/"}
    complete(environ)
    environ["MESHKIT_SPAWN"] = "file:///x"
    world = meshkit.detect({}, rank=1, world_size=4, master_addr="node1", master_port=29500)
    world.export(environ)
    child = meshkit.detect(environ)
    assert child.launcher == "hand-written"
    assert exported_fields(child) == exported_fields(world)
    assert environ["HOME"] == "/"
    assert environ["OMPI_COMM_WORLD_SIZE"] == "4"  # it contradicts nothing


def test_fields_that_are_none_are_not_exported() -> None:
    world = replace(meshkit.detect(OPEN_MPI_5), local_world_size=None)
    environ = {"MASTER_ADDR": "kept"}
    assert world.export(environ) == {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert environ == {"MASTER_ADDR": "kept", **world.export({})}


@pytest.mark.parametrize("row", ROWS)
def test_missing_variables_are_added_and_removed_again(row: str) -> None:
    """Every launcher: detect then returns the same world as before, and nothing is overwritten."""
    environ = {**ROWS[row], "MASTER_PORT": "1234"}
    before, expected = dict(environ), meshkit.detect(environ)
    completed = complete(environ)
    assert {name: v for name, v in environ.items() if name not in completed} == before
    assert [environ["RANK"], environ["LOCAL_RANK"]] == [
        str(expected.rank),
        str(expected.local_rank),
    ]
    assert meshkit.detect(environ) == expected
    assert without_completed(environ) == before
    restore_environment(completed, environ)
    assert environ == before


def test_a_process_without_launcher_has_an_address_until_it_leaves() -> None:
    environ: Env = {}
    completed = complete(environ)
    assert environ.keys() == {*EXPORTED.values(), "MESHKIT_COMPLETED"}
    assert environ["MASTER_ADDR"] == "127.0.0.1"
    assert 1 <= int(environ["MASTER_PORT"]) <= 65535
    assert meshkit.detect(environ).launcher == "single"
    environ["MASTER_PORT"] = "7"  # changed since
    restore_environment(completed, environ)
    assert environ == {"MASTER_PORT": "7"}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_launcher_that_was_started_since_is_detected(name: str) -> None:
    """A single process joins, and then starts a launcher, whose ranks inherit the variables."""
    inherited: Env = {}
    complete(inherited)
    if inherited.items() & ALL[name].items() or ("RANK" in ALL[name]) != (
        "WORLD_SIZE" in ALL[name]
    ):
        return  # whether the other half, or an equal value, is inherited or was set is unknown
    inner, expected = meshkit.detect({**inherited, **ALL[name]}), meshkit.detect(ALL[name])
    fields = ("rank", "world_size", "local_rank", "launcher", "sources")
    if expected.launcher == "hand-written":  # the variables that it leaves out are inherited
        fields = fields[:4]
    assert [getattr(inner, f) for f in fields] == [getattr(expected, f) for f in fields]


def test_a_free_port_is_none_that_the_kernel_gives_to_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        first = server.getsockname()[1]
        assert all(12000 <= free_port() < 32000 for _ in range(5))
        monkeypatch.setattr("meshkit.launch.world.FIRST_PORT", first)
        monkeypatch.setattr("meshkit.launch.world.NUM_PORTS", 1)
        assert free_port() != first
