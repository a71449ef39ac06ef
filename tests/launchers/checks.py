"""What every launcher's job must have seen; and what a machine must have to run one."""

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


def need(package: str, *programs: str) -> None:
    """Skip where a program is missing, and say which and where it comes from."""
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not on this machine: {', '.join(missing)} (Debian's package {package})")


def clean(**more: str) -> dict[str, str]:
    """The environment of a user's shell: no launcher's variables, no interface chosen."""
    prefixes = ("SLURM_", "OMPI_", "PMI", "MPI_", "TORCHELASTIC_", "MASTER_", "MESHKIT_", "GLOO_")
    names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes) and k not in names}
    path = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def program(folder: Path, sizes: Mapping[str, int]) -> list[str]:
    """The program and its arguments."""
    folder.mkdir(exist_ok=True)
    return [PROGRAM, str(folder), *(f"{axis}={size}" for axis, size in sizes.items())]


def job(
    command: Sequence[str], folder: Path, sizes: Mapping[str, int], **more: str
) -> list[dict[str, Any]]:
    """Run the program under a launcher; what each rank of a whole job saw."""
    argv = [*command, *program(folder, sizes)]
    done = subprocess.run(argv, env=clean(**more), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(said, key=lambda one: one["world"][0])


def check(said: list[dict[str, Any]], sizes: Mapping[str, int], launcher: str) -> None:
    """Every rank once, each group met exactly its members, by a derivation of its own."""
    places = list(product(*(range(size) for size in sizes.values())))  # row-major, as the contract
    assert [one["world"][:2] for one in said] == [[r, len(places)] for r in range(len(places))]
    assert {one["launcher"] for one in said} == {launcher}
    assert len({one["pid"] for one in said}) == len(places)
    assert len({one["drawn"] for one in said}) == 1
    for rank, one in enumerate(said):
        assert one["coordinate"] == dict(zip(sizes, places[rank], strict=True))
        for key, met in one["sums"].items():
            free = key.split() or list(sizes)
            fixed = [i for i, axis in enumerate(sizes) if axis not in free]
            members = [
                r for r, p in enumerate(places) if all(p[i] == places[rank][i] for i in fixed)
            ]
            assert met == sorted(one["peers"][key]) == members, (rank, key)


PYTHON = [sys.executable, "-W", "error"]
