"""The mesh under the launchers of Accelerate and DeepSpeed, if these libraries are installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.launchers.checks import check_records, run_job

SIZES = {"dp": 2, "tp": 1}
COMMANDS = {
    "accelerate": [
        *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_machines", "1"),
        *("--num_processes", "2", "--mixed_precision", "no", "--dynamo_backend", "no"),
        *("--main_process_port", "0"),
    ],
    "deepspeed": [
        *("-m", "deepspeed.launcher.runner", "--num_gpus", "2", "--no_local_rank"),
        *("--master_port", "29641"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("library", COMMANDS)
def test_two_ranks(library: str, tmp_path: Path) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install -e '.[interop]'")
    command = [sys.executable, *COMMANDS[library]]
    more = {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_CPU": "true"}
    records = run_job(command, tmp_path / "out", SIZES, **more)
    check_records(records, SIZES, library)
    assert [record["world"][2:] for record in records] == [[0, 2], [1, 2]]
    assert [record["node"] for record in records] == [[0, 1], [0, 1]]
