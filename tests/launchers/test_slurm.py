"""The mesh under the real srun, on two nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshkit
from tests.launchers.checks import PYTHON, check_records, clean_environ, run_job
from tests.launchers.slurm import Slurm, two_nodes

SIZES = {"dp": 2, "sp": 2, "tp": 1}
DETECT = "import meshkit; w = meshkit.detect(); print(w.launcher, w.world_size, w.sources['rank'])"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with two_nodes(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def run(slurm: Slurm, *argv: str) -> str:
    done = subprocess.run(
        slurm.command(*argv), env=clean_environ(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("distribution", ["block", pytest.param("cyclic", marks=pytest.mark.slow)])
def test_two_nodes(slurm: Slurm, distribution: str, tmp_path: Path) -> None:
    srun = slurm.command(
        "srun", "-N2", "--ntasks-per-node=2", f"--distribution={distribution}", *PYTHON
    )
    records = run_job(srun, tmp_path / "out", SIZES)
    check_records(records, SIZES, "slurm")
    nodes = [rank // 2 if distribution == "block" else rank % 2 for rank in range(4)]
    assert [record["node"] for record in records] == [[node, 2] for node in nodes]
    assert [record["host"] for record in records] == [f"rack1node{node + 1}" for node in nodes]
    assert all(record["world"][3] == 2 for record in records)
    (address,) = {tuple(record["address"]) for record in records}
    assert (address[0], address[2]) == ("rack1node1", "SLURM_STEP_NODELIST")
    for rank, record in enumerate(records):  # for libraries that read it
        local_rank = str(record["world"][2])
        expected = [str(rank), "4", local_rank, "2", "rack1node1", str(address[1])]
        assert [*record["environ"].values()] == expected


@pytest.mark.slow
def test_nodes_of_different_sizes(slurm: Slurm, tmp_path: Path) -> None:
    srun = slurm.command("srun", "-N2", "-n3", "--distribution=block", *PYTHON)
    records = run_job(srun, tmp_path / "out", {"dp": 3})
    check_records(records, {"dp": 3}, "slurm")
    assert [record["world"][2:] for record in records] == [[0, 2], [1, 2], [0, 1]]


@pytest.mark.slow  # recorded.py has its variables
def test_a_step_smaller_than_its_allocation(slurm: Slurm, tmp_path: Path) -> None:
    """The variables of the job describe two nodes, those of the step the second one."""
    step = ["srun", "-N1", "-n2", "-w", "rack1node2", *PYTHON]
    salloc = slurm.command("salloc", "-Q", "-N2", "--ntasks-per-node=4", *step)
    records = run_job(salloc, tmp_path / "out", {"dp": 2})
    check_records(records, {"dp": 2}, "slurm")
    assert {record["host"] for record in records} == {"rack1node2"} == {records[0]["address"][0]}


def test_srun_with_pmi_is_still_slurm(slurm: Slurm) -> None:
    output = run(slurm, "srun", "-n2", "--mpi=pmi2", *PYTHON, "-c", DETECT)
    assert output == "slurm 2 SLURM_PROCID\n" * 2


def test_a_batch_script_without_srun_is_a_single_process(slurm: Slurm, tmp_path: Path) -> None:
    script, out = tmp_path / "job.sh", tmp_path / "out"
    script.write_text(f'#!/bin/sh\nenv -0 > {tmp_path}/env\n{PYTHON[0]} -c "{DETECT}"\n')
    run(slurm, "sbatch", "-W", "-N2", "--ntasks-per-node=4", "-o", str(out), str(script))
    assert out.read_text() == "single 1 no srun (SLURM_NTASKS = 8)\n"
    lines = (tmp_path / "env").read_text().rstrip("\0").split("\0")
    recorded = dict(line.split("=", 1) for line in lines)
    assert recorded["SLURM_PROCID"] == "0"  # a batch script has the rank of a task
    assert meshkit.detect(recorded).allocation == "SLURM_NTASKS = 8"
