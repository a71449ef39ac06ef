"""Weights that do not depend on the mesh, though no rank draws a whole one.

    torchrun --nproc-per-node 8 examples/init_weights.py --tp 4

A weight is cut into 8 blocks, and block b is drawn from ``stream_seed(seed, "layer.weight",
block=b)``. A rank draws its own blocks only, and neither tp nor the rank is in their seeds: they
are equal over dp and sp, and together those of one process. Beside it the plain way, ``mesh.rng``:
equal over dp and sp and different over tp too, but other numbers where tp has another size.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import meshkit

BLOCKS, ROWS, COLUMNS = 8, 16, 32  # a weight is (BLOCKS * ROWS, COLUMNS)


def block(seed: int, name: str, number: int) -> Tensor:
    """One block of a weight, (ROWS, COLUMNS), the same on every rank and mesh."""
    generator = torch.Generator().manual_seed(meshkit.stream_seed(seed, name, block=number))
    return torch.randn(ROWS, COLUMNS, generator=generator) * COLUMNS**-0.5


def share(mesh: meshkit.Mesh, seed: int, name: str) -> dict[int, Tensor]:
    """Return this rank's blocks of a weight with its rows sharded over tp."""
    own = BLOCKS // mesh.size("tp")
    first = mesh.coordinate["tp"] * own
    return {number: block(seed, name, number) for number in range(first, first + own)}


def digest(*tensors: Tensor) -> str:
    """Return a few digits that differ for different tensors."""
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()[:8]


def report(mesh: meshkit.Mesh, seed: int) -> dict[str, Any]:
    """Return the digests of this rank's blocks, of a whole bias, and of a stream."""
    blocks = {number: digest(one) for number, one in share(mesh, seed, "layer.weight").items()}
    bias = digest(block(seed, "layer.bias", 0)[0])
    with mesh.rng("init", vary=("tp",)):
        plain = digest(torch.randn(BLOCKS * ROWS // mesh.size("tp"), COLUMNS))
    return {"at": mesh.coordinate, "blocks": blocks, "bias": bias, "plain": plain}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Draw, and print what this rank has drawn; returns the digests."""
    parser = argparse.ArgumentParser(description="Draw weights that do not depend on the mesh.")
    parser.add_argument("--tp", type=int, choices=[1, 2, 4, 8], default=2)
    parser.add_argument("--sp", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    meshkit.init(device="cpu", seed=args.seed)
    try:
        with meshkit.build_mesh(sp=args.sp, tp=args.tp) as mesh:
            found = report(mesh, args.seed)
            place = " ".join(f"{axis}={index}" for axis, index in found["at"].items())
            blocks = " ".join(found["blocks"].values())
            print(f"{place}  bias {found['bias']}  plain {found['plain']}  blocks {blocks}")
            return found
    finally:
        meshkit.shutdown()


if __name__ == "__main__":
    main()
