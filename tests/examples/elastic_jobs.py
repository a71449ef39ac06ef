"""What the ranks of test_elastic.py run. No pytest here: every child imports this."""

from __future__ import annotations

from pathlib import Path

import torch

import meshkit
from examples import elastic

SMALL = ["--dtype=float64", "--seq=16", "--dim=16", "--global-batch=8", "--micro-batch=1"]
SMALL += ["--save-every=5", "--log-every=5", "--timeout=30"]


def lives(folder: str, parts: list[tuple[int, int]]) -> list[float] | None:
    """One life after another, each on so many ranks up to so many steps; the losses at the end."""
    losses: list[float] | None = None
    for dp, steps in parts:
        args = elastic.parse([*SMALL, f"--steps={steps}", f"--save={folder}"])
        meshkit.init(seed=args.seed)
        with meshkit.build_mesh(dp=dp, sp=1, ranks=range(dp)) as mesh:
            losses = elastic.train(mesh, args, torch.device("cpu")) if mesh.inside else None
    return losses


def all_of(folder: str, parts: list[tuple[int, int]], steps: int) -> list[object]:
    """Those lives; one life of one rank, for comparison; and what rank 0's own checkpoint does."""
    for name in ("job", "alone", "0", "1"):
        Path(folder, name).mkdir(exist_ok=True)
    found = [lives(f"{folder}/job", parts), lives(f"{folder}/alone", [(1, steps)])]
    return [*found, of_ones_own(folder)]


def of_ones_own(folder: str) -> str | None:
    """Two ranks whose folders are not one: rank 0's holds five steps, and rank 1's nothing."""
    lives(f"{folder}/0", [(1, 5)])
    with meshkit.build_mesh(dp=2, sp=1, ranks=range(2)) as mesh:
        if not mesh.inside:
            return None
        args = elastic.parse([*SMALL, "--steps=9", f"--save={folder}/{mesh.rank}"])
        try:
            elastic.train(mesh, args, torch.device("cpu"))
        except meshkit.DisagreementError as error:
            return str(error)
    return "nothing was said"
