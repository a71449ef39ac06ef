"""The file that ranks of one node share is that of the launcher's process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import meshkit
from meshkit.launch.mpi import store_of_one_node
from tests.launch.recorded import OPEN_MPI_4, OPEN_MPI_5
from tests.launchers.checks import clean_environ

CODE = """
import json, meshkit
from meshkit.launch.mpi import store_of_one_node
world = store_of_one_node(meshkit.detect())
print(json.dumps(world and world.init_method))
"""


def store_in_child(folder: Path, *wrapper: str, **environ: str) -> str | None:
    """Return the store of a process that this one starts with other variables."""
    done = subprocess.run(
        [*wrapper, sys.executable, "-c", CODE],
        env={**clean_environ(TMPDIR=str(folder)), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_ranks_of_one_launcher_share_a_file(tmp_path: Path) -> None:
    """This process plays mpirun: it lacks the variables that its children have."""
    plain = store_in_child(tmp_path, **OPEN_MPI_4)
    wrapped = store_in_child(tmp_path, "sh", "-c", '"$@"; exit $?', "sh", **OPEN_MPI_4)
    assert plain is not None
    assert plain == wrapped
    folder = tmp_path / f"meshkit-{os.getuid()}"
    assert plain.startswith(f"file://{folder}/{os.getpid()}-")
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / f"meshkit-{os.getuid()}"
    folder.mkdir()
    folder.chmod(mode)
    assert store_in_child(tmp_path, **OPEN_MPI_4) is None


def test_ranks_that_may_be_elsewhere_have_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_of_one_node(meshkit.detect(OPEN_MPI_5)) is None  # two nodes
    for name, value in OPEN_MPI_4.items():
        monkeypatch.setenv(name, value)
    assert store_of_one_node(meshkit.detect(rank=1)) is None  # not the launcher's rank
