"""detect: arguments, a single process, allocations, nested launchers and its errors."""

from __future__ import annotations

import dataclasses
import os

import pytest

import meshkit
from meshkit.launch.detect import detect_world
from meshkit.launch.launchers import LAUNCHERS
from tests.launch.launchers.errors import text_of

# The variables that torchrun (torch 2.13) sets on rank 5 of two nodes with four ranks each.
TORCHRUN = {
    "LOCAL_RANK": "1",
    "RANK": "5",
    "GROUP_RANK": "1",
    "ROLE_RANK": "5",
    "ROLE_NAME": "default",
    "LOCAL_WORLD_SIZE": "4",
    "WORLD_SIZE": "8",
    "GROUP_WORLD_SIZE": "2",
    "ROLE_WORLD_SIZE": "8",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_torchrun() -> None:
    world = meshkit.detect(TORCHRUN)
    assert (world.rank, world.world_size) == (5, 8)
    assert (world.local_rank, world.local_world_size) == (1, 4)
    assert (world.node_rank, world.num_nodes) == (1, 2)
    assert (world.master_addr, world.master_port) == ("a", 29500)
    assert (world.launcher, world.device, world.backend) == ("torchrun", None, None)
    assert world.sources == {
        "rank": "RANK",
        "world_size": "WORLD_SIZE",
        "local_rank": "LOCAL_RANK",
        "local_world_size": "LOCAL_WORLD_SIZE",
        "node_rank": "GROUP_RANK",
        "num_nodes": "GROUP_WORLD_SIZE",
        "master_addr": "MASTER_ADDR",
        "master_port": "MASTER_PORT",
    }


def test_torchrun_inside_a_slurm_step_is_used_alone() -> None:
    nested = {**TORCHRUN, "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    assert meshkit.detect(nested) == meshkit.detect(TORCHRUN)


def test_an_address_is_an_argument_like_the_others() -> None:
    """A launcher of one's own detects with arguments and exports the variables of a child."""
    world = meshkit.detect({}, rank=1, world_size=2, master_addr="node1", master_port=29500)
    assert (world.master_addr, world.master_port, world.launcher) == (
        "node1",
        29500,
        "hand-written",
    )
    assert world.sources["master_addr"] == world.sources["master_port"] == "argument"
    environ: dict[str, str] = {}
    assert world.export(environ) == environ
    assert (environ["MASTER_ADDR"], environ["MASTER_PORT"]) == ("node1", "29500")
    assert dataclasses.replace(meshkit.detect(environ), sources=world.sources) == world
    other = meshkit.detect(TORCHRUN, master_port=1234)
    assert (other.master_addr, other.master_port, other.rank) == ("a", 1234, 5)
    assert meshkit.detect({}, master_addr="node1").master_addr == "node1"
    for arguments in ({"master_addr": " "}, {"master_port": 0}, {"master_port": "x"}):
        with pytest.raises(meshkit.LaunchError, match=f"{next(iter(arguments))} is "):
            meshkit.detect({}, rank=1, world_size=2, **arguments)  # type: ignore[arg-type]


def test_a_single_process() -> None:
    world = meshkit.detect({})
    assert (world.rank, world.world_size, world.local_rank, world.launcher) == (0, 1, 0, "single")
    assert (world.local_world_size, world.node_rank, world.num_nodes) == (1, 0, 1)
    assert world.size_evidence == "there is 1 process and no launcher"


def test_the_environment_of_this_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in LAUNCHERS:
        for name in (name for names in row.markers for name in names):
            monkeypatch.delenv(name, raising=False)
    assert meshkit.detect().launcher == "single"
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = dict(os.environ)
    assert meshkit.detect().rank == 1
    assert dict(os.environ) == before


def test_the_exact_text_of_errors() -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.detect({"WORLD_SIZE": "8"})
    assert str(caught.value).startswith("detect({'WORLD_SIZE': '8'}): the launcher hand-written ")
    assert text_of(caught.value) == (
        "the launcher hand-written was recognised, but RANK is not set.\n"
        "  It sets RANK and WORLD_SIZE on every rank; WORLD_SIZE is set.\n"
        "  Fix: export RANK=0, or the right number."
    )
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.detect({"RANK": "9", "WORLD_SIZE": "8"})
    assert text_of(caught.value) == (
        "RANK=9 must be below WORLD_SIZE=8.\n"
        "  Both were read for the launcher hand-written.\n"
        "  Fix: export RANK and WORLD_SIZE so that they agree."
    )


def test_an_error_quotes_a_large_environment_by_its_name() -> None:
    with pytest.raises(meshkit.LaunchError, match=r"^detect\(environ, rank=4\): argument rank=4 "):
        meshkit.detect({"WORLD_SIZE": "4", "SECRET": "x" * 100}, rank=4)


def test_arguments_override_variables_and_the_node_of_another_rank_is_ignored() -> None:
    world = detect_world(TORCHRUN, {"rank": 2, "world_size": 4})
    assert (world.rank, world.world_size, world.local_rank, world.num_nodes) == (2, 4, 2, 1)
    assert world.sources["rank"] == world.sources["world_size"] == "argument"
    assert world.sources["local_rank"] == "one node assumed"
    assert detect_world({}, {"rank": 1, "world_size": 2}).launcher == "hand-written"


def test_a_rank_argument_needs_a_world_size() -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        detect_world({}, {"rank": 1})
    assert text_of(caught.value) == (
        "no launcher was found, and only rank=1 was passed.\n"
        "  Fix: pass rank= and world_size= both, or start under a launcher."
    )


def test_a_local_rank_argument_needs_a_launcher() -> None:
    with pytest.raises(meshkit.LaunchError, match="only local_rank=3 was passed"):
        meshkit.detect({}, local_rank=3)
    assert meshkit.detect({}, local_rank=0).local_rank == 0


def test_an_error_marks_the_values_that_are_arguments() -> None:
    environ = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.detect(environ, rank=9)
    assert text_of(caught.value) == (
        "argument rank=9 must be below OMPI_COMM_WORLD_SIZE=4.\n"
        "  Both were read for the launcher openmpi.\n"
        "  Fix: pass argument rank and OMPI_COMM_WORLD_SIZE so that they agree."
    )


def test_arguments_equal_to_the_variables_change_only_the_sources() -> None:
    environ = {**TORCHRUN, "RANK": "9", "WORLD_SIZE": "16", "GROUP_RANK": "2"}
    environ["GROUP_WORLD_SIZE"] = "4"
    plain = meshkit.detect(environ)
    same = meshkit.detect(environ, rank=9, world_size=16)
    assert dataclasses.replace(same, sources={}) == dataclasses.replace(plain, sources={})
    assert same.sources["rank"] == "argument"
    assert same.sources["local_rank"] == "LOCAL_RANK"


@pytest.mark.parametrize("tasks", ["9" * 5000, "04", "2"])
def test_an_allocation_of_several_tasks_is_the_source(tasks: str) -> None:
    world = meshkit.detect({"SLURM_NTASKS": tasks})
    assert world.sources["world_size"] == f"no srun (SLURM_NTASKS = {tasks})"


@pytest.mark.parametrize("tasks", ["1", "01", "0", "", "x", "\u0662"])
def test_an_allocation_of_one_task_is_not_mentioned(tasks: str) -> None:
    assert meshkit.detect({"SLURM_NTASKS": tasks}).sources["world_size"] == "no launcher"


def test_a_rank_equal_to_the_world_size_is_an_error() -> None:
    assert meshkit.detect({}, rank=1, world_size=2).rank == 1
    with pytest.raises(meshkit.LaunchError, match="there is no rank 2 of 2"):
        meshkit.detect({}, rank=2, world_size=2)
