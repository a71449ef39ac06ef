"""The commonest first error: python train.py, where torchrun was meant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import meshkit
from meshkit.launch.launchers import program
from tests.launchers.checks import clean_environ
from tests.preloaded_python import run_python

MESH = "import meshkit\n\nmeshkit.build_mesh(dp=4, sp=2)\n"


def run(folder: Path, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=folder,
        env=clean_environ(**more),
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_script_without_a_launcher_proposes_its_own_command(tmp_path: Path) -> None:
    """The last line can be typed, and the traceback shows the line of the script first."""
    (tmp_path / "train.py").write_text(MESH)
    done = run(tmp_path, "train.py", "--name", "a b")
    lines = done.stderr.splitlines()
    assert lines[-3:] == [
        "meshkit.core.errors.SpecError: build_mesh(dp=4, sp=2) needs 8 ranks, the world has 1.",
        "  dp 4 x sp 2 = 8; there is 1 process and no launcher.",
        "  Fix: torchrun --nproc-per-node 8 train.py --name 'a b'",
    ]
    files = [line.strip() for line in lines if line.strip().startswith("File ")]
    assert files[0].endswith('train.py", line 3, in <module>')
    slurm = run(tmp_path, "train.py", SLURM_NTASKS="8", SLURM_JOB_ID="1")
    assert slurm.stderr.endswith("  Fix: srun -n 8 python train.py\n")


@pytest.mark.slow
def test_a_module_without_a_launcher_proposes_its_own_command(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(MESH)
    (package / "train.py").write_text(MESH.replace("dp=4", "dp=-1"))
    assert run(tmp_path, "-m", "pack").stderr.endswith(
        "  Fix: torchrun --nproc-per-node 8 -m pack\n"
    )
    assert run(tmp_path, "-m", "pack.train", "-x").stderr.endswith(
        "  Fix: torchrun --nproc-per-node 2 -m pack.train -x\n"
    )


def test_a_prompt_proposes_spawn(tmp_path: Path) -> None:
    done = run_python(MESH, environ=clean_environ(), cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("  Fix: meshkit.spawn(fn, 8), with build_mesh(dp=4, sp=2) in fn.\n")


def test_a_rank_of_a_launcher_keeps_the_fix() -> None:
    world = meshkit.detect({"RANK": "0", "WORLD_SIZE": "1"})
    error = meshkit.SpecError("too few.", fix="start 8 ranks.", num_ranks=8)
    program.propose_command(error, world, 8)
    assert error.fix_text == "start 8 ranks."
