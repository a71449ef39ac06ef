"""What the ranks of test_fsdp_tp.py run. No pytest here: every child imports this."""

from __future__ import annotations

from collections.abc import Sequence

from examples import fsdp_tp

SMALL = ["--dtype=float64", "--seq=32", "--dim=32", "--global-batch=8", "--micro-batch=1"]


def trained(rows: Sequence[str]) -> dict[str, list[float]]:
    """The losses of each row of arguments, each in a job and a mesh of its own."""
    return {row: fsdp_tp.main([*SMALL, *row.split()]) for row in rows}
