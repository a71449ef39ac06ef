"""The mesh under the real srun, on two nodes."""

from __future__ import annotations

import json
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


# ---------------------------------------------------------------- preflight

TRAIN = "import meshkit\nmeshkit.init()\nmeshkit.build_mesh(dp=2, tp=2).barrier()\n"
QUICK = "dp=2 tp=2 --device cpu --axes dp,tp --sizes 1K --iters 2"
EACH_NODE = "export MESHKIT_MACHINE=$SLURMD_NODENAME; "  # both run on one machine
SECOND_NODE = '[ "$SLURMD_NODENAME" = rack1node2 ] && '


def preflight(slurm: Slurm, node: str, *words: str) -> tuple[int, str, str]:
    """Run preflight on two ranks of each node, after a line of shell on it."""
    srun = ["srun", "-N2", "--ntasks-per-node=2", "sh", "-c", f'{EACH_NODE}{node}; exec "$@"', "sh"]
    command = slurm.command(*srun, *PYTHON, "-m", "meshkit", "preflight", *QUICK.split(), *words)
    done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_preflight_has_one_page_of_two_nodes(slurm: Slurm, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    words = "--rehearse", "--nodes", "2", str(script)
    code, out, error = preflight(slurm, ":", *words)
    assert code in (0, 1), error  # doctor may find something on this machine
    assert out.count("dp=2 tp=2: 4 ranks on 2 hosts, launcher slurm; gloo on cpu") == 1
    assert out.count("\nOK: 4 rows in ") == 1
    assert out.count("\n4 ranks, dp=2 tp=2. Played: 4, in ") == 1
    last = "OK: doctor, bench, rehearse." if code == 0 else "FAILED: doctor."
    assert out.splitlines()[-1] == last


@pytest.mark.slow
def test_preflight_names_the_node_whose_check_fails(slurm: Slurm) -> None:
    node = f"{SECOND_NODE}export NCCL_SOCKET_IFNAME=none"
    code, out, error = preflight(slurm, node, "--max-latency", "tp=1", "--json")
    assert code == 1, error
    report = json.loads(out)
    (host,) = report["doctor"]["other_hosts"]
    assert host.startswith("rack1node2: ")
    assert "nccl interface" in host
    assert report["bench"]["hosts"] == ["rack1node1"] * 2 + ["rack1node2"] * 2
    missed = [(row["option"], row["group"], row["hosts"]) for row in report["bench"]["missed"]]
    assert missed == [("max-latency", f"dp={i}", [f"rack1node{i + 1}"]) for i in range(2)]


@pytest.mark.slow
def test_preflight_names_the_node_that_does_not_come(slurm: Slurm) -> None:
    code, out, _ = preflight(slurm, f"{SECOND_NODE}exit 3", "--timeout", "5")
    assert code == 3
    assert out.startswith("doctor: ")
    assert "\n  Missing: 2, 3. Arrived: 0-1 on host rack1node1.\n" in out
    assert "\n  No rank came from host rack1node2.\n" in out
    assert out.splitlines()[-1].endswith("bench; not run: rehearse.")
