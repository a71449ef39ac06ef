"""Launchers that let the other ranks go on when one dies, as in docs/how-to/recover.md."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.launchers.checks import RAY, clean_environ, require_programs
from tests.launchers.slurm import Slurm, two_nodes

RANKS, RAY_RANKS = 4, 3
JOB = str(Path(__file__).with_name("recovering.py"))
SHELL = ["sh", "-c", '"$0" "$@"; exit $?']  # for mpiexec a signal becomes an exit code
MPICH = ["mpiexec.mpich", "-disable-auto-cleanup", "-n", str(RANKS), *SHELL]
OPEN_MPI = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
OPEN_MPI += ["--enable-recovery", "-np", str(RANKS)]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with two_nodes(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def survivors(
    argv: Sequence[str], folder: Path, odd: int, environ: Mapping[str, str]
) -> dict[int, object]:
    """Run the job under a launcher, and return the records of the ranks that live."""
    command = [*argv, sys.executable, JOB, str(folder), str(odd)]
    subprocess.run(command, env=environ, capture_output=True, text=True, timeout=150, check=False)
    return {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}


def check(records: dict[int, object], launcher: str, odd: int) -> None:
    expected = {"launcher": launcher, "lost": [odd], "total": RANKS - 1.0}
    assert records == {rank: expected for rank in range(RANKS) if rank != odd}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "command", "package", "odd"),
    [("hydra", MPICH, "mpich", 0), ("openmpi", OPEN_MPI, "openmpi-bin", 2)],
)
def test_mpirun(launcher: str, command: list[str], package: str, odd: int, tmp_path: Path) -> None:
    require_programs(package, command[0])
    check(survivors(command, tmp_path, odd, clean_environ()), launcher, odd)


@pytest.mark.slow
def test_srun(slurm: Slurm, tmp_path: Path) -> None:
    srun = slurm.command("srun", "-N2", "--ntasks-per-node=2", "--kill-on-bad-exit=0")
    check(survivors(srun, tmp_path, 3, clean_environ()), "slurm", 3)


@pytest.mark.slow
def test_actors_of_ray(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install -e '.[ray]'")
    environ = clean_environ(**RAY)
    command = [
        sys.executable,
        str(Path(JOB).with_name("ray_actors.py")),
        f"file://{tmp_path}/store",
    ]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    sums = json.loads(done.stdout.splitlines()[-1])
    assert sums == [[RAY_RANKS - 1, RAY_RANKS], [RAY_RANKS], [RAY_RANKS - 1, RAY_RANKS]]
