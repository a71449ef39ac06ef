"""Who am I: what launchers set, as a World or as a refusal."""

from __future__ import annotations

import dataclasses
import os
import pickle

import pytest

import meshkit
from meshkit.launch.launchers.detect import detect_world
from meshkit.launch.launchers.table import LAUNCHERS

# What torchrun (torch 2.13) sets on rank 5 of two nodes with four ranks each.
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


def test_torchrun_inside_a_slurm_step_answers_alone() -> None:
    nested = {**TORCHRUN, "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    assert meshkit.detect(nested) == meshkit.detect(TORCHRUN)


def test_a_single_process() -> None:
    world = meshkit.detect({})
    assert (world.rank, world.world_size, world.local_rank, world.launcher) == (0, 1, 0, "single")
    assert (world.local_world_size, world.node_rank, world.num_nodes) == (1, 0, 1)
    assert world.size_evidence == "there is 1 process and no launcher"


def test_hand_written_variables_alone_mean_one_node() -> None:
    world = meshkit.detect({"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "a"})
    assert (world.local_rank, world.local_world_size, world.num_nodes) == (3, 4, 1)
    assert world.sources["local_world_size"] == "one node assumed"
    assert world.master_port is None


def test_hand_written_variables_with_a_node() -> None:
    environ = {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
    world = meshkit.detect(environ)
    assert (world.node_rank, world.num_nodes) == (1, 2)
    assert world.sources["node_rank"] == "rank // local_world_size"


def test_what_is_not_said_stays_open() -> None:
    world = meshkit.detect({"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2"})
    assert (world.local_world_size, world.node_rank, world.num_nodes) == (None, None, None)


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


@pytest.mark.parametrize(
    ("change", "variables", "line"),
    [
        ({"RANK": None}, {"RANK": None}, "RANK is not set"),
        ({"RANK": ""}, {"RANK": ""}, "RANK='' is not 0 or more"),
        ({"RANK": "-1"}, {"RANK": "-1"}, "RANK='-1' is not 0 or more"),
        ({"RANK": "two"}, {"RANK": "two"}, "RANK='two' is not 0 or more"),
        ({"RANK": "1.0"}, {"RANK": "1.0"}, "RANK='1.0' is not 0 or more"),
        ({"RANK": "²"}, {"RANK": "²"}, "RANK='²' is not 0 or more"),
        ({"WORLD_SIZE": None}, {"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "0"}, {"WORLD_SIZE": "0"}, "WORLD_SIZE='0' is not 1 or more"),
        ({"LOCAL_RANK": ""}, {"LOCAL_RANK": ""}, "LOCAL_RANK='' is not 0 or more"),
        ({"MASTER_PORT": "x"}, {"MASTER_PORT": "x"}, "MASTER_PORT='x' is not 1 to 65535"),
        (
            {"MASTER_PORT": "70000"},
            {"MASTER_PORT": "70000"},
            "MASTER_PORT='70000' is not 1 to 65535",
        ),
        ({"MASTER_ADDR": " "}, {"MASTER_ADDR": " "}, "MASTER_ADDR is empty"),
        ({"RANK": "9"}, {"RANK": "9", "WORLD_SIZE": "8"}, "RANK=9 must be below WORLD_SIZE=8"),
        (
            {"LOCAL_RANK": "4"},
            {"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"},
            "LOCAL_RANK=4 must be below LOCAL_WORLD_SIZE=4",
        ),
        (
            {"GROUP_RANK": "2"},
            {"GROUP_RANK": "2", "GROUP_WORLD_SIZE": "2"},
            "GROUP_RANK=2 must be below GROUP_WORLD_SIZE=2",
        ),
        (
            {"LOCAL_WORLD_SIZE": "16"},
            {"LOCAL_WORLD_SIZE": "16", "WORLD_SIZE": "8"},
            "LOCAL_WORLD_SIZE=16 is more than WORLD_SIZE=8",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_variables(
    change: dict[str, str | None], variables: dict[str, str | None], line: str
) -> None:
    merged = {**TORCHRUN, **change}
    environ = {name: value for name, value in merged.items() if value is not None}
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.detect(environ)
    assert caught.value.variables == variables
    assert line in str(caught.value).splitlines()[0]
    assert pickle.loads(pickle.dumps(caught.value)).variables == variables


def test_messages_word_for_word() -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.detect({"WORLD_SIZE": "8"})
    assert str(caught.value) == (
        "the launcher hand-written was recognised, but RANK is not set.\n"
        "  It sets RANK and WORLD_SIZE on every rank; WORLD_SIZE is set.\n"
        "  Fix: export RANK=0, or the right number."
    )
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.detect({"RANK": "9", "WORLD_SIZE": "8"})
    assert str(caught.value) == (
        "RANK=9 must be below WORLD_SIZE=8.\n"
        "  Both were read for the launcher hand-written.\n"
        "  Fix: export RANK and WORLD_SIZE so that they agree."
    )


def test_arguments_win_and_the_node_is_not_mixed_in() -> None:
    world = detect_world(TORCHRUN, {"rank": 2, "world_size": 4})
    assert (world.rank, world.world_size, world.local_rank, world.num_nodes) == (2, 4, 2, 1)
    assert world.sources["rank"] == world.sources["world_size"] == "argument"
    assert world.sources["local_rank"] == "one node assumed"
    assert detect_world({}, {"rank": 1, "world_size": 2}).launcher == "hand-written"


def test_a_rank_alone_is_not_enough() -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        detect_world({}, {"rank": 1})
    assert str(caught.value) == (
        "no launcher was found, and only rank=1 was passed.\n"
        "  Fix: pass rank= and world_size= both, or start under a launcher."
    )


def test_a_local_rank_alone_says_nothing_of_the_node() -> None:
    for rank, local_rank in (("0", "0"), ("8", "0")):
        world = meshkit.detect({"RANK": rank, "WORLD_SIZE": "16", "LOCAL_RANK": local_rank})
        assert (world.local_world_size, world.num_nodes) == (None, None)


def test_a_world_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        meshkit.detect({}).rank = 3  # type: ignore[misc]


def test_no_row_is_recognised_by_nothing() -> None:
    assert all(row.markers for row in LAUNCHERS)
    assert len({row.name for row in LAUNCHERS}) == len(LAUNCHERS)


def test_hydra_in_srun_is_hydra_on_every_rank() -> None:
    """One rank a node, hosts in another order: on rank 0 the two agree by chance."""
    for rank, procid in ((0, 0), (1, 2), (2, 1)):
        environ = {"PMI_RANK": str(rank), "PMI_SIZE": "3", "MPI_LOCALRANKID": "0"}
        environ |= {"SLURM_PROCID": str(procid), "SLURM_NTASKS": "3", "SLURM_STEP_ID": "0"}
        assert meshkit.detect(environ).launcher == "hydra"


def test_a_local_rank_alone_says_nothing() -> None:
    with pytest.raises(meshkit.LaunchError, match="only local_rank=3 was passed"):
        meshkit.detect({}, local_rank=3)
    assert meshkit.detect({}, local_rank=0).local_rank == 0


def test_an_argument_is_told_as_an_argument() -> None:
    environ = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.detect(environ, rank=9)
    assert str(caught.value) == (
        "argument rank=9 must be below OMPI_COMM_WORLD_SIZE=4.\n"
        "  Both were read for the launcher openmpi.\n"
        "  Fix: pass argument rank and OMPI_COMM_WORLD_SIZE so that they agree."
    )


def test_nodes_without_local_ranks_are_even() -> None:
    environ = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}
    world = meshkit.detect(environ)
    assert (world.local_rank, world.local_world_size, world.node_rank) == (1, 2, 1)
    assert world.sources["local_world_size"] == "world_size // num_nodes"


def test_arguments_that_say_the_same_change_nothing() -> None:
    environ = {**TORCHRUN, "RANK": "9", "WORLD_SIZE": "16", "GROUP_RANK": "2"}
    environ["GROUP_WORLD_SIZE"] = "4"
    plain = meshkit.detect(environ)
    said = meshkit.detect(environ, rank=9, world_size=16)
    assert dataclasses.replace(said, sources={}) == dataclasses.replace(plain, sources={})
    assert said.sources["rank"] == "argument"
    assert said.sources["local_rank"] == "LOCAL_RANK"


def test_numbers_beyond_any_machine_are_refused_in_words() -> None:
    with pytest.raises(meshkit.LaunchError, match="RANK='99"):
        meshkit.detect({"RANK": "9" * 5000, "WORLD_SIZE": "4"})
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    with pytest.raises(meshkit.LaunchError, match="is not a list of tasks per node"):
        meshkit.detect({**step, "SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "2(x999999999999)"})
    world = meshkit.detect({**step, "SLURM_STEP_NODELIST": "n1", "SLURM_JOB_ID": "9" * 5000})
    assert (world.master_addr, world.master_port) == ("n1", 12000)
    assert world.sources["master_port"] == "SLURM_STEP_ID"


def test_an_arbitrary_distribution_tells_no_first_host() -> None:
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    step |= {"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7"}
    assert meshkit.detect(step).master_addr == "n1"
    assert meshkit.detect({**step, "SLURM_DISTRIBUTION": "arbitrary"}).master_addr is None


def test_export_removes_what_would_contradict_it() -> None:
    environ = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    environ |= {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "MESHKIT_SPAWN": "file:///x", "HOME": "/"}
    world = meshkit.detect({}, rank=1, world_size=4)
    world.export(environ)
    found = meshkit.detect(environ)
    assert (found.rank, found.world_size, found.local_world_size) == (1, 4, 4)
    assert found.launcher == "hand-written"
    assert environ["HOME"] == "/"
    assert environ["OMPI_COMM_WORLD_SIZE"] == "4"  # it says nothing else


@pytest.mark.parametrize("tasks", ["9" * 5000, "04", "2"])
def test_an_allocation_of_any_number_of_tasks_is_told(tasks: str) -> None:
    world = meshkit.detect({"SLURM_NTASKS": tasks})
    assert world.sources["world_size"] == f"no srun (SLURM_NTASKS = {tasks})"


@pytest.mark.parametrize("tasks", ["1", "01", "0", "", "x", "\u0662"])
def test_an_allocation_of_one_task_is_a_process_alone(tasks: str) -> None:
    assert meshkit.detect({"SLURM_NTASKS": tasks}).sources["world_size"] == "no launcher"


def test_a_step_number_beyond_any_is_no_step_of_slurms_own() -> None:
    with pytest.raises(meshkit.LaunchError, match="SLURM_PROCID is not set"):
        meshkit.detect({"SLURM_STEP_ID": "9" * 5000})
