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
from meshkit.live import create

pytestmark = pytest.mark.skipif(not create.KEEPS_ORDER, reason="FSDP2 on the cpu: not in torch 2.6")
SMALL = ["--dtype=float64", "--seq=32", "--dim=32", "--global-batch=8", "--micro-batch=1"]


def trained(rows: Sequence[str]) -> dict[str, list[float]]:
    """The losses of each row of arguments, each in a job and a mesh of its own."""
    return {row: fsdp_tp.main([*SMALL, *row.split()]) for row in rows}


def test_a_checkpoint_of_one_mesh_is_resumed_on_another_with_the_same_losses(
    tmp_path: Path,
) -> None:
    saved = f"--steps=3 --dp=4 --tp=2 --save={tmp_path}/ckpt"
    other, third = (
        f"--steps=3 --resume={tmp_path}/ckpt {mesh}" for mesh in ("--dp=2 --tp=4", "--dp=2 --sp=4")
    )
    rows = [saved, other, third, "--steps=6 --dp=2 --sp=2 --tp=2"]
    results = meshkit.spawn(trained, 8, (rows,), timeout=300)
    (alone,) = meshkit.spawn(trained, 1, (["--steps=6"],), timeout=300)
    expected = alone["--steps=6"]
    assert len(expected) == 6
    assert expected[-1] < expected[0] - 0.3
    for found in results:
        assert found == results[0]  # the same number on every rank
        assert found[saved] == pytest.approx(expected[:3], rel=1e-9, abs=0)
        for resumed in (other, third):
            assert found[resumed] == pytest.approx(expected[3:], rel=1e-9, abs=0)
        assert found[rows[-1]] == pytest.approx(expected, rel=1e-9, abs=0)


def test_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += [fsdp_tp.__file__, "--dp=1", "--tp=2", "--steps=2", "--seq=32", "--dim=32"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    job = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environ)
    assert job.returncode == 0, job.stderr
    assert re.fullmatch(r"step    0  loss 5\.\d{4}\nstep    1  loss \d\.\d{4}\n", job.stdout)


@pytest.mark.parametrize("arguments", ["--heads=3 --tp=2", "--seq=31 --sp=2", "--dim=65"])
def test_what_cannot_be_split_is_refused(arguments: str) -> None:
    with pytest.raises(SystemExit, match="must divide by tp, --seq by sp"):
        fsdp_tp.main(arguments.split())
