"""A row matches its own environments, and none that Slurm has set up for another process."""

from __future__ import annotations

import pytest

import meshkit
from tests.launch.launchers import recorded
from tests.launch.launchers.recorded import ALL, without


def test_hydra_in_srun_is_hydra_on_every_rank() -> None:
    """On rank 0 both launchers agree by chance: one rank per node, the hosts in another order."""
    for rank, procid in ((0, 0), (1, 2), (2, 1)):
        environ = {"PMI_RANK": str(rank), "PMI_SIZE": "3", "MPI_LOCALRANKID": "0"}
        environ |= {"SLURM_PROCID": str(procid), "SLURM_NTASKS": "3", "SLURM_STEP_ID": "0"}
        assert meshkit.detect(environ).launcher == "hydra"


@pytest.mark.parametrize(("tasks", "task"), [("2", "1"), ("8", "3"), ("4", "0")])
@pytest.mark.parametrize("name", ["MVAPICH2", "PALS", "MPICH", "LSF"])
def test_an_mpi_launcher_inside_a_step_of_srun_is_used(name: str, tasks: str, task: str) -> None:
    """PMI variables that differ in size or rank from those of the step do not come from srun."""
    around = {**recorded.SRUN, "SLURM_NTASKS": tasks, "SLURM_PROCID": task}
    assert meshkit.detect({**around, **ALL[name]}) == meshkit.detect(ALL[name])


def test_a_step_of_srun_without_its_id() -> None:
    """The nodes of the step or the older name of its id distinguish a task from a batch script."""
    first = {**recorded.SRUN, "SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"}
    for gone in (("SLURM_STEP_ID",), ("SLURM_STEP_ID", "SLURM_STEPID")):
        world = meshkit.detect(without(first, *gone))
        assert (world.launcher, world.rank, world.world_size) == ("slurm", 0, 4)
    shell = without(recorded.INTERACTIVE, "SLURM_STEP_ID")
    assert meshkit.detect(shell).launcher == "single"


def test_a_very_large_step_id_is_a_step_of_srun() -> None:
    with pytest.raises(meshkit.LaunchError, match="SLURM_PROCID is not set"):
        meshkit.detect({"SLURM_STEP_ID": "9" * 5000})
