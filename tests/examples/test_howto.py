"""The programs of the how-to pages: the same losses on every mesh, and a resume without a gap."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import meshkit
from examples.howto import sampler_resume
from tests.pages import ROOT, run_program

MESHES = {  # of each program, whose ranks import it: a collection of the tests need not
    "ddp_sp": [{"dp": 4, "sp": 1}, {"dp": 2, "sp": 2}, {"dp": 1, "sp": 4}],
    "fsdp_tp": [{"dp": 4, "tp": 1}, {"dp": 2, "tp": 2}, {"dp": 1, "tp": 4}],
    "moe": [{"dp": 4, "ep": 1}, {"dp": 2, "ep": 2}, {"dp": 1, "ep": 4}],
    "pipeline": [{"dp": 4, "pp": 1}, {"dp": 2, "pp": 2}, {"dp": 1, "pp": 4}],
}


def train_on_meshes(name: str) -> list[list[float]]:
    """Return the losses of a program on each of its meshes."""
    program = importlib.import_module(f"examples.howto.{name}")
    return [program.main(**sizes) for sizes in MESHES[name]]


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in MESHES if name != "moe"]


@pytest.mark.parametrize("name", ["moe", *SLOW])
def test_the_losses_do_not_depend_on_the_mesh(name: str) -> None:
    for losses in meshkit.spawn(train_on_meshes, 4, (name,), timeout=300):
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
        assert losses[2] == pytest.approx(losses[0], rel=1e-4)
        assert losses[0][-1] < losses[0][0]


def test_a_resumed_run_reads_the_rest_of_the_epoch_and_the_next_one_on_other_ranks(
    tmp_path: Path,
) -> None:
    program = sampler_resume.__file__
    args = (str(tmp_path), [program])
    runs = ["".join(meshkit.spawn(run_program, ranks, args)) for ranks in (4, 2, 2, 4)]
    for texts in (runs[:2], runs[2:]):  # two epochs
        rows = re.findall(r"samples (\[.*\])", "".join(texts))
        assert sorted(sample for row in rows for sample in json.loads(row)) == [*range(64)]


@pytest.mark.slow
def test_a_launcher_of_ones_own_starts_ranks_that_find_each_other() -> None:
    command = [sys.executable, "-m", "examples.howto.launch", "4", "examples/hello.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ranks = re.findall(r"rank (\d) of 4 .* hears 4", done.stdout)
    assert sorted(ranks) == ["0", "1", "2", "3"]
