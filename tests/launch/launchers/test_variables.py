"""Variables that are missing, malformed or contradictory, each named by the error."""

from __future__ import annotations

import pickle

import pytest

import meshkit
from tests.launch.launchers.recorded import TORCHRUN


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
        ({"RANK": "9"}, {"RANK": "9", "WORLD_SIZE": "4"}, "RANK=9 must be below WORLD_SIZE=4"),
        (
            {"LOCAL_RANK": "2"},
            {"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"},
            "LOCAL_RANK=2 must be below LOCAL_WORLD_SIZE=2",
        ),
        (
            {"GROUP_RANK": "2"},
            {"GROUP_RANK": "2", "GROUP_WORLD_SIZE": "2"},
            "GROUP_RANK=2 must be below GROUP_WORLD_SIZE=2",
        ),
        (
            {"LOCAL_WORLD_SIZE": "16"},
            {"LOCAL_WORLD_SIZE": "16", "WORLD_SIZE": "4"},
            "LOCAL_WORLD_SIZE=16 is more than WORLD_SIZE=4",
        ),
    ],
)
def test_invalid_variables_are_in_the_error(
    change: dict[str, str | None], variables: dict[str, str | None], line: str
) -> None:
    merged = {**TORCHRUN, **change}
    environ = {name: value for name, value in merged.items() if value is not None}
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.detect(environ)
    assert caught.value.variables == variables
    assert line in caught.value.summary
    assert pickle.loads(pickle.dumps(caught.value)).variables == variables


def test_very_large_numbers_raise() -> None:
    with pytest.raises(meshkit.LaunchError, match="RANK='99"):
        meshkit.detect({"RANK": "9" * 5000, "WORLD_SIZE": "4"})
    step = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0"}
    with pytest.raises(meshkit.LaunchError, match="is not a list of tasks per node"):
        meshkit.detect({**step, "SLURM_NODEID": "0", "SLURM_TASKS_PER_NODE": "2(x999999999999)"})
    world = meshkit.detect({**step, "SLURM_STEP_NODELIST": "n1", "SLURM_JOB_ID": "9" * 5000})
    assert (world.master_addr, world.master_port) == ("n1", 12000)
    assert world.sources["master_port"] == "SLURM_STEP_ID"
