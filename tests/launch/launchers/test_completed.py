"""The variables that init adds for other libraries, and their removal."""

from __future__ import annotations

import pytest

import meshkit
from meshkit.launch.world import complete_environment, restore_environment, without_completed
from tests.launch.launchers.recorded import ALL, EXPECTED, ROWS, Env

NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


def complete(environ: Env) -> dict[str, str]:
    world = meshkit.detect(environ)
    return complete_environment(world, world.master_addr, world.master_port, environ)


@pytest.mark.parametrize("row", ROWS)
def test_missing_variables_are_added_and_removed_again(row: str) -> None:
    """Every launcher: detect then finds the same world as before."""
    environ = dict(ROWS[row])
    before = meshkit.detect(environ)
    completed = complete(environ)
    assert {n: v for n, v in environ.items() if n not in completed} == ROWS[row]
    assert environ["RANK"] == str(before.rank)
    assert environ["LOCAL_RANK"] == str(before.local_rank)
    assert meshkit.detect(environ) == before
    assert without_completed(environ) == ROWS[row]
    restore_environment(completed, environ)
    assert environ == ROWS[row]


def test_no_variable_is_overwritten() -> None:
    environ = {**ROWS["slurm"], "MASTER_PORT": "1234", "LOCAL_WORLD_SIZE": "5"}
    complete(environ)
    assert (environ["MASTER_PORT"], environ["LOCAL_WORLD_SIZE"]) == ("1234", "5")
    assert environ["MASTER_ADDR"] == "n1"


def test_a_process_without_launcher_has_an_address() -> None:
    environ: Env = {}
    assert complete(environ).keys() - {"MESHKIT_COMPLETED"} == NAMES
    assert environ["MASTER_ADDR"] == "127.0.0.1"
    assert 1 <= int(environ["MASTER_PORT"]) <= 65535
    assert meshkit.detect(environ).launcher == "single"


def test_a_changed_variable_stays() -> None:
    environ: Env = {}
    completed = complete(environ)
    environ["MASTER_PORT"] = "7"
    restore_environment(completed, environ)
    assert environ == {"MASTER_PORT": "7"}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_launcher_that_was_started_since_is_found(name: str) -> None:
    """A single process joins, and then starts a launcher, whose ranks inherit the variables."""
    inherited: Env = {}
    complete(inherited)
    inner, expected = meshkit.detect({**inherited, **ALL[name]}), meshkit.detect(ALL[name])
    fields = ("rank", "world_size", "local_rank", "launcher", "sources")
    if expected.launcher == "hand-written":  # the variables that it leaves out are inherited
        fields = fields[:4]
    assert [getattr(inner, f) for f in fields] == [getattr(expected, f) for f in fields]


def test_an_exported_world_replaces_the_added_variables() -> None:
    environ: Env = {}
    complete(environ)
    child = meshkit.detect({}, rank=0, world_size=1, master_addr="node1", master_port=29500)
    child.export(environ)
    assert "MESHKIT_COMPLETED" not in environ
    found = meshkit.detect(environ)
    assert (found.launcher, found.master_addr, found.master_port) == (
        "hand-written",
        "node1",
        29500,
    )
