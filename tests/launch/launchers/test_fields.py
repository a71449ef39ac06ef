"""The fields of a World that are derived from other variables of the same launcher."""

from __future__ import annotations

import pytest

import meshkit
from tests.launch.launchers.errors import text_of
from tests.launch.launchers.recorded import ALL, SRUN, Env


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


def test_fields_that_are_not_set_are_none() -> None:
    world = meshkit.detect({"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2"})
    assert (world.local_world_size, world.node_rank, world.num_nodes) == (None, None, None)


def test_a_local_rank_does_not_imply_a_local_size() -> None:
    for rank, local_rank in (("0", "0"), ("8", "0")):
        world = meshkit.detect({"RANK": rank, "WORLD_SIZE": "16", "LOCAL_RANK": local_rank})
        assert (world.local_world_size, world.num_nodes) == (None, None)


def test_without_local_ranks_all_nodes_have_the_same_size() -> None:
    environ = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}
    world = meshkit.detect(environ)
    assert (world.local_rank, world.local_world_size, world.node_rank) == (1, 2, 1)
    assert world.sources["local_world_size"] == "world_size // num_nodes"


def test_the_exact_text_for_a_malformed_list_of_tasks() -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.detect({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2(x"})
    assert text_of(caught.value) == (
        "the launcher slurm was recognised, but SLURM_STEP_TASKS_PER_NODE='2(x' "
        "is not a list of tasks per node, such as '2(x3),1'.\n"
        "  Fix: unset SLURM_STEP_TASKS_PER_NODE."
    )
    assert caught.value.variables == {"SLURM_STEP_TASKS_PER_NODE": "2(x"}


def test_the_exact_text_for_a_node_missing_from_the_list_of_tasks() -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.detect({**SRUN, "SLURM_NODEID": "2"})
    assert text_of(caught.value) == (
        "SLURM_NODEID=2 is a node that is missing from SLURM_STEP_TASKS_PER_NODE=2(x2).\n"
        "  Both were read for the launcher slurm.\n"
        "  Fix: export SLURM_NODEID and SLURM_STEP_TASKS_PER_NODE so that they agree."
    )
    assert caught.value.variables == {"SLURM_NODEID": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}


@pytest.mark.parametrize(
    ("exported", "address", "sources"),
    [
        ({"MASTER_ADDR": "a"}, ("a", 12_062), ("MASTER_ADDR", "SLURM_JOB_ID")),
        ({"MASTER_PORT": "7"}, ("n1", 7), ("SLURM_STEP_NODELIST", "MASTER_PORT")),
        (
            {"MASTER_ADDR": " a ", "MASTER_PORT": "7"},
            ("a", 7),
            ("MASTER_ADDR", "MASTER_PORT"),
        ),
    ],
)
def test_exported_variables_come_first(
    exported: Env, address: tuple[str, int], sources: tuple[str, str]
) -> None:
    world = meshkit.detect({**SRUN, **exported})
    assert (world.master_addr, world.master_port) == address
    assert (world.sources["master_addr"], world.sources["master_port"]) == sources


def test_sagemaker_prefers_exported_variables() -> None:
    world = meshkit.detect({**ALL["SAGEMAKER_ADDRESS"], "MASTER_ADDR": "a"})
    assert (world.master_addr, world.master_port) == ("a", 7777)
    world = meshkit.detect({**ALL["SAGEMAKER_ADDRESS"], "MASTER_PORT": "1"})
    assert (world.master_addr, world.master_port) == ("algo-1", 1)


def test_azure_prefers_the_newer_variable() -> None:
    both = {**ALL["AZUREML_BATCHAI"], "AZ_BATCH_MASTER_NODE": "10.0.0.7:6000"}
    world = meshkit.detect(both)
    assert (world.master_addr, world.master_port) == ("10.0.0.7", 6105)
    world = meshkit.detect({**both, "MASTER_ADDR": "a", "MASTER_PORT": "1"})
    assert (world.master_addr, world.master_port) == ("a", 1)
