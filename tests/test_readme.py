"""The README: one screen, with a trainer that runs, and texts that are real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import meshkit
from meshkit.call import Call
from tests.pages import ROOT, read_blocks
from tests.test_docs import raised_by

README = (ROOT / "README.md").read_text()
BLOCKS = read_blocks(README)


def test_it_is_one_screen_of_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_the_first_two_sh_blocks_are_one_line_each() -> None:
    commands = [block.body for block in BLOCKS if block.kind == "sh"]
    assert [command.count("\n") for command in commands] == [1, 1]
    assert "torchrun --nproc-per-node 8 examples/train.py --dp 4 --sp 2 --tp 1" in commands[0]
    assert "pytest" in commands[1]


(TRAINER,) = (block.body for block in BLOCKS if block.title.endswith(".py"))


def test_the_trainer_is_short() -> None:
    assert 25 <= len([line for line in TRAINER.splitlines() if line]) <= 30


@pytest.mark.nightly  # .ci/package runs it too, and the page itself on ranks that are spawned
def test_the_trainer_is_complete_and_runs_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    shown = next(block.body for block in BLOCKS if block.kind == "console")
    command, _, output = shown.partition("\n")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *command.split()[2:]],
        **{"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == output
    assert (tmp_path / "checkpoint.pt").is_file()


def test_the_error_shown_is_the_one_raised() -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "6"}
    sizes = {"dp": 4, "sp": 2, "tp": 1}
    spec = raised_by(Call("build_mesh", (), sizes), lambda: meshkit.factor_world(6, **sizes))
    assert spec.replace("world_size = 6", meshkit.detect(torchrun).size_evidence) in README


def test_the_picture_is_that_of_the_mesh() -> None:
    layout = meshkit.Layout(dp=4, sp=2)
    grid = [line.strip() for line in layout.draw(mark=5).splitlines()[1:]]
    picture = next(block.body for block in BLOCKS if block.kind == "text")
    assert picture in (ROOT / "docs" / "index.md").read_text()
    assert all(line in picture for line in grid)
    assert str(layout.coordinate(5)) in picture
    assert str(layout.peers(5, "dp")) in picture


def test_the_pages_show_the_version() -> None:
    assert f"copyright: meshkit {meshkit.__version__} (" in (ROOT / "mkdocs.yml").read_text()
