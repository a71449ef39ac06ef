"""The mesh without an external launcher: plain python, hand-written variables, meshkit.spawn."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import meshkit
from tests.launchers.checks import PYTHON, check_records, clean_environ, program_command
from tests.preloaded_python import run_python


def test_plain_python(tmp_path: Path) -> None:
    sizes, out = {"dp": 1, "sp": 1, "tp": 1}, tmp_path / "out"
    program, *arguments = program_command(out, sizes)
    code = f"import runpy\nrunpy.run_path({program!r}, run_name='__main__')"
    done = run_python(code, *arguments, environ=clean_environ())
    assert done.returncode == 0, done.stderr
    check_records([json.loads((out / "0.json").read_text())], sizes, "single")


def test_hand_written_variables(tmp_path: Path) -> None:
    """Detect with arguments, export and start the children, as a launcher of the user does."""
    sizes, out = {"dp": 1, "tp": 2}, tmp_path / "out"
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29723"}
    children = []
    for rank in range(2):
        world = meshkit.detect(master, rank=rank, world_size=2)
        environ = clean_environ()
        world.export(environ)
        assert environ["LOCAL_WORLD_SIZE"] == environ["WORLD_SIZE"] == "2"
        argv = [*PYTHON, *program_command(out, sizes)]
        children.append(subprocess.Popen(argv, env=environ))
    assert [child.wait(120) for child in children] == [0] * 2
    records = [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]
    check_records(records, sizes, "hand-written")
