"""FSDP2 with TP: losses that do not depend on the mesh, also across a checkpoint."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import meshkit
from examples import fsdp_tp
from meshkit.live.groups import create

pytestmark = pytest.mark.skipif(not create.KEEPS_ORDER, reason="FSDP2 on the cpu: not in torch 2.6")
SMALL = ["--dtype=float64", "--seq=32", "--dim=32", "--global-batch=8", "--micro-batch=1"]


def train_rows(rows: Sequence[str]) -> dict[str, list[float]]:
    """Return the losses of each row of arguments, each in a job and a mesh of its own."""
    return {row: fsdp_tp.main([*SMALL, *row.split()]) for row in rows}


@pytest.fixture(scope="module")
def reference() -> list[float]:
    """Return the losses of six steps on one process."""
    (alone,) = meshkit.spawn(train_rows, 1, (["--steps=6"],), timeout=300)
    return alone["--steps=6"]


@pytest.mark.parametrize(
    "mesh", ["--dp=2 --tp=4", pytest.param("--dp=2 --sp=4", marks=pytest.mark.slow)]
)
def test_a_checkpoint_of_one_mesh_is_resumed_on_another_with_the_same_losses(
    mesh: str, reference: list[float], tmp_path: Path
) -> None:
    saved = f"--steps=3 --dp=4 --tp=2 --save={tmp_path}/ckpt"
    resumed = f"--steps=3 --resume={tmp_path}/ckpt {mesh}"
    results = meshkit.spawn(train_rows, 8, ([saved, resumed],), timeout=300)
    assert len(reference) == 6
    assert reference[-1] < reference[0] - 0.3
    for losses in results:
        assert losses == results[0]  # the same number on every rank
        assert losses[saved] == pytest.approx(reference[:3], rel=1e-9, abs=0)
        assert losses[resumed] == pytest.approx(reference[3:], rel=1e-9, abs=0)


@pytest.mark.slow
def test_six_steps_on_three_axes_have_the_losses_of_one_process(reference: list[float]) -> None:
    row = "--steps=6 --dp=2 --sp=2 --tp=2"
    results = meshkit.spawn(train_rows, 8, ([row],), timeout=300)
    for losses in results:
        assert losses == results[0]
        assert losses[row] == pytest.approx(reference, rel=1e-9, abs=0)


@pytest.mark.slow
def test_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += [fsdp_tp.__file__, "--dp=1", "--tp=2", "--steps=2", "--seq=32", "--dim=32"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    job = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environ)
    assert job.returncode == 0, job.stderr
    assert re.fullmatch(r"step    0  loss 5\.\d{4}\nstep    1  loss \d\.\d{4}\n", job.stdout)


@pytest.mark.parametrize("arguments", ["--heads=3 --tp=2", "--seq=31 --sp=2", "--dim=65"])
def test_indivisible_sizes_raise(arguments: str) -> None:
    with pytest.raises(SystemExit, match="must divide by tp, --seq by sp"):
        fsdp_tp.main(arguments.split())
