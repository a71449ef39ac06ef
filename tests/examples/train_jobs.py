"""What the ranks of test_train run. No pytest here: every child imports this."""

from __future__ import annotations

from collections.abc import Sequence

from examples import train

SMALL = ["--dtype=float64", "--steps=12", "--seq=32", "--dim=32", "--global-batch=8"]


def trained(rows: Sequence[str]) -> dict[str, list[float]]:
    """The losses of each row of arguments, each in a job and a mesh of its own.

    One process trains them all: torch's optimizers import more than a second's worth at their first
    step, which eight ranks a row would pay anew.
    """
    return {row: train.main([*SMALL, *row.split()]) for row in rows}
