"""Weights that do not depend on the mesh, although no rank draws a whole weight.

    torchrun --nproc-per-node 8 examples/init_weights.py --tp 4

A weight consists of 8 blocks. Block b is drawn from ``stream_seed(seed, "layer.weight", block=b)``.
Each rank draws only its own blocks. Their seeds contain neither tp nor the rank, so blocks are
equal over dp and sp, and all blocks together equal those of one process. ``mesh.rng`` is simpler:
its numbers are equal over dp and sp and differ over tp, but they change with the size of tp.
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
    """Return one block of a weight, (ROWS, COLUMNS), equal on every rank and mesh."""
    generator = torch.Generator().manual_seed(meshkit.stream_seed(seed, name, block=number))
    return torch.randn(ROWS, COLUMNS, generator=generator) * COLUMNS**-0.5


def share(mesh: meshkit.Mesh, seed: int, name: str) -> dict[int, Tensor]:
    """Return this rank's blocks of a weight whose rows are divided over tp."""
    own = BLOCKS // mesh.size("tp")
    first = mesh.coordinate["tp"] * own
    return {number: block(seed, name, number) for number in range(first, first + own)}


def digest(*tensors: Tensor) -> str:
    """Return a short hash of tensors."""
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()[:8]


def report(mesh: meshkit.Mesh, seed: int) -> dict[str, Any]:
    """Return the hashes of this rank's blocks, of a whole bias, and of a random stream."""
    blocks = {number: digest(part) for number, part in share(mesh, seed, "layer.weight").items()}
    bias = digest(block(seed, "layer.bias", 0)[0])
    with mesh.rng("init", vary=("tp",)):
        plain = digest(torch.randn(BLOCKS * ROWS // mesh.size("tp"), COLUMNS))
    return {"at": mesh.coordinate, "blocks": blocks, "bias": bias, "plain": plain}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Draw weights and print their hashes; return the hashes."""
    parser = argparse.ArgumentParser(description="Draw weights that do not depend on the mesh.")
    parser.add_argument("--tp", type=int, choices=[1, 2, 4, 8], default=2)
    parser.add_argument("--sp", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    meshkit.init(device="cpu", seed=args.seed)
    try:
        with meshkit.build_mesh(sp=args.sp, tp=args.tp) as mesh:
            hashes = report(mesh, args.seed)
            coordinate = " ".join(f"{axis}={index}" for axis, index in hashes["at"].items())
            blocks = " ".join(hashes["blocks"].values())
            print(f"{coordinate}  bias {hashes['bias']}  plain {hashes['plain']}  blocks {blocks}")
            return hashes
    finally:
        meshkit.shutdown()


if __name__ == "__main__":
    main()
