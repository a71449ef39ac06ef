"""The file that ranks of one node share; tests/launchers/test_mpi.py has the real launchers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import meshkit
from meshkit.launch.mpi import store_of_one_node
from tests.launch.recorded import OPEN_MPI_4, OPEN_MPI_5
from tests.launchers.checks import clean_environ
from tests.preloaded_python import run_python

CODE = """
import tempfile
import meshkit
tempfile.tempdir = None  # it is remembered
from meshkit.launch.mpi import store_of_one_node
world = store_of_one_node(meshkit.detect())
print(world and world.init_method)
"""


@pytest.mark.parametrize("mode", [None, 0o770, 0o702])
def test_ranks_of_one_launcher_share_a_file_in_a_folder_of_their_own(
    mode: int | None, tmp_path: Path
) -> None:
    """The parent plays mpirun: it lacks the variables of a rank. Others can write some folders."""
    folder = tmp_path / f"meshkit-{os.getuid()}"
    if mode is not None:
        folder.mkdir()
        folder.chmod(mode)
    done = run_python(CODE, environ=clean_environ(TMPDIR=str(tmp_path), **OPEN_MPI_4))
    if mode is not None:
        assert done.stdout == "None\n", done.stderr
        return
    assert re.fullmatch(rf"file://{folder}/\d+-\d+\n", done.stdout), done.stderr
    assert folder.stat().st_mode & 0o777 == 0o700


def test_ranks_that_may_be_elsewhere_have_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_of_one_node(meshkit.detect(OPEN_MPI_5)) is None  # two nodes
    for name, value in OPEN_MPI_4.items():
        monkeypatch.setenv(name, value)
    assert store_of_one_node(meshkit.detect(rank=1)) is None  # not the launcher's rank
