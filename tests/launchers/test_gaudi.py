"""A Gaudi job end to end, with a fake of Habana's package that runs hccl over gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.launchers.checks import (
    PYTHON,
    ROOT,
    check_records,
    clean_environ,
    require_programs,
    run_job,
)
from tests.preloaded_python import run_python

STAND_IN = str(Path(__file__).with_name("gaudi"))
SIZES = {"dp": 2, "sp": 1}
PATH = {"PYTHONPATH": f"{STAND_IN}:{ROOT}"}
MODULES = "4,7"


@pytest.mark.slow
def test_under_torchrun(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    records = run_job(command, tmp_path / "out", SIZES, **PATH, HABANA_VISIBLE_MODULES=MODULES)
    check_records(records, SIZES, "torchrun")
    assert [record["module"] for record in records] == MODULES.split(",")
    assert {(record["backend"], record["device"]) for record in records} == {("hccl", "hpu:0")}
    assert [record["world"][2:] for record in records] == [[rank, 2] for rank in range(2)]
    assert all(record["node"] == [0, 1] for record in records)


@pytest.mark.slow
def test_the_bridge_reads_its_rank_from_the_environment_under_mpirun(tmp_path: Path) -> None:
    """Without HABANA_VISIBLE_MODULES and without an address: the bridge chooses by LOCAL_RANK."""
    require_programs("openmpi-bin", "mpirun.openmpi")
    mpirun = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    records = run_job([*mpirun, "-np", "2", *PYTHON], tmp_path / "out", {"dp": 2}, **PATH)
    check_records(records, {"dp": 2}, "openmpi")
    assert [record["bridge"] for record in records] == [["0", "2", "0"], ["1", "2", "1"]]


IDENTITY = "import torch, meshkit; meshkit.init({}); print(torch.hpu.identity)"
DOCTOR = """
import os
from meshkit.cli.doctor import checkup
findings = {finding.name: finding for finding in checkup(os.environ)}
print(findings["devices"].ok, os.environ.get("HLS_MODULE_ID"))
"""
SPAWN = """
from meshkit.launch.worker import rank_environment
print('HLS_MODULE_ID' in rank_environment(0, 2, 'file:///x', 29500))
"""
WORLD = "import meshkit; world = meshkit.init(); print(world.device, world.backend)"
CASES = {  # code, variables, output
    "the bridge reads the rank": (IDENTITY.format("rank=0, world_size=1"), {}, "['0', '1', '0']"),
    "the bridge reads that of one process": (IDENTITY.format(""), {}, "['0', '1', '0']"),
    "a bridge without a device uses the cpu": (WORLD, {"STAND_IN_DEVICES": "0"}, "cpu gloo"),
    "the doctor selects no module": (
        DOCTOR,
        {"HLS_MODULE_ID": "1", "HABANA_VISIBLE_MODULES": MODULES},
        "True 1",
    ),
    "spawned ranks select their own modules": (SPAWN, {"HLS_MODULE_ID": "1"}, "False"),
}


@pytest.mark.parametrize(("code", "variables", "output"), CASES.values(), ids=CASES)
def test_one_process(code: str, variables: dict[str, str], output: str) -> None:
    done = run_python(code, environ=clean_environ(**PATH, **variables))
    assert done.stdout == f"{output}\n", done.stderr


def test_detect_and_import_touch_no_device() -> None:
    code = "import sys, meshkit; meshkit.detect(); print(sorted(sys.modules))"
    environ = clean_environ(**PATH, HABANA_VISIBLE_MODULES=MODULES)
    output = subprocess.check_output([*PYTHON, "-c", code], env=environ, text=True, timeout=60)
    assert "habana_frameworks" not in output
    assert "'torch'" not in output
