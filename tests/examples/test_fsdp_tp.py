"""FSDP2 with TP: losses that do not depend on the mesh, also across a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import meshkit
from examples import fsdp_tp
from meshkit.testing import rehearse

SMALL = ["--dtype=float64", "--seq=32", "--dim=32", "--global-batch=8", "--micro-batch=1"]


def train_rows(rows: Sequence[str]) -> dict[str, list[float]]:
    """Return the losses of each row of arguments, each in a job and a mesh of its own."""
    return {row: fsdp_tp.main([*SMALL, *row.split()]) for row in rows}


@pytest.fixture(scope="module")
def reference() -> list[float]:
    """Return the losses of six steps on one process."""
    (alone,) = meshkit.spawn(train_rows, 1, (["--steps=6"],), timeout=300)
    return alone["--steps=6"]


@pytest.mark.slow
def test_a_checkpoint_of_one_mesh_is_resumed_on_another_with_the_same_losses(
    reference: list[float], tmp_path: Path
) -> None:
    saved = f"--steps=3 --dp=2 --tp=2 --save={tmp_path}/ckpt"
    resumed = f"--steps=3 --resume={tmp_path}/ckpt --dp=1 --sp=2 --tp=2"
    results = meshkit.spawn(train_rows, 4, ([saved, resumed],), timeout=300)
    assert len(reference) == 6
    assert reference[-1] < reference[0] - 0.3
    for losses in results:
        assert losses == results[0]  # the same number on every rank
        assert losses[saved] == pytest.approx(reference[:3], rel=1e-9, abs=0)
        assert losses[resumed] == pytest.approx(reference[3:], rel=1e-9, abs=0)


@pytest.mark.parametrize("arguments", ["--heads=3 --tp=2", "--seq=31 --sp=2", "--dim=65"])
def test_indivisible_sizes_raise(arguments: str) -> None:
    with pytest.raises(SystemExit, match="must divide by tp, --seq by sp"):
        fsdp_tp.main(arguments.split())


def test_a_job_of_8192_ranks_is_rehearsed() -> None:
    words = ["--dim=32", "--seq=32", "--dp=256", "--sp=4", "--tp=8"]
    words += ["--steps=1", "--global-batch=1024"]
    report = rehearse(fsdp_tp.main, 8192, (words,), nodes=1024, ranks=[0, 7, 8, 31, 32, 8183, 8191])
    report.raise_if_mismatched()
    assert {"dp sp", "sp", "tp"} <= {*report.bytes_by_axis}
