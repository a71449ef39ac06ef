"""Checks of the job of every launcher, and of the programs that a machine needs to run one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

PROGRAM = str(Path(__file__).with_name("program.py"))
ROOT = str(Path(__file__).parents[2])
# Ray gives its workers the niceness 15, and beside other tests they would hardly run.
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}


def require_programs(package: str, *programs: str) -> None:
    """Skip the test if a program is missing, and name it with its Debian package."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not on this machine: {', '.join(missing)} (Debian's package {package})")


def clean_environ(**more: str) -> dict[str, str]:
    """Return an environment without variables of a launcher and without a chosen interface."""
    prefixes = ("SLURM_", "OMPI_", "PMI", "MPI_", "TORCHELASTIC_", "MASTER_", "MESHKIT_", "GLOO_")
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    names |= {"PYTHONUNBUFFERED"}  # with it, the lines of two ranks may mix
    kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes) and k not in names}
    path = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def program_command(folder: Path, sizes: Mapping[str, int]) -> list[str]:
    """Return the program and its arguments."""
    folder.mkdir(exist_ok=True)
    return [PROGRAM, str(folder), *(f"{axis}={size}" for axis, size in sizes.items())]


def run_job(
    command: Sequence[str], folder: Path, sizes: Mapping[str, int], **more: str
) -> list[dict[str, Any]]:
    """Run the program under a launcher, and return the record of each rank."""
    argv = [*command, *program_command(folder, sizes)]
    done = subprocess.run(
        argv, env=clean_environ(**more), capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return read_records(folder)


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return the record of each rank, in the order of ranks."""
    records = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(records, key=lambda record: record["world"][0])


def check_records(records: list[dict[str, Any]], sizes: Mapping[str, int], launcher: str) -> None:
    """Check each rank, and that the all-reduce over each group reached exactly its members."""
    coordinates = list(product(*(range(size) for size in sizes.values())))  # row-major
    assert [record["world"][:2] for record in records] == [
        [r, len(coordinates)] for r in range(len(coordinates))
    ]
    assert {record["launcher"] for record in records} == {launcher}
    assert len({record["pid"] for record in records}) == len(coordinates)
    assert len({record["drawn"] for record in records}) == 1
    for rank, record in enumerate(records):
        assert record["coordinate"] == dict(zip(sizes, coordinates[rank], strict=True))
        for key, reached in record["sums"].items():
            free = key.split() or list(sizes)
            fixed = [i for i, axis in enumerate(sizes) if axis not in free]
            members = [
                r
                for r, c in enumerate(coordinates)
                if all(c[i] == coordinates[rank][i] for i in fixed)
            ]
            assert reached == sorted(record["peers"][key]) == members, (rank, key)


PYTHON = [sys.executable, "-W", "error"]
