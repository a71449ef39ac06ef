"""A pattern as DTensor's placements, and the move with plain tensors on both ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from meshkit.redistribute.pattern import Side, parse_pattern

Placements = list[Any]


@dataclass(frozen=True)
class DTensorMove:
    """A move by DTensor.

    Attributes:
        mesh: the axes of the pattern.
        left: the placements before.
        right: the placements after; its dims are numbered as on the left.
        gradient: the placements of the gradient of the result.
        shape: the local shape before, with each dim of a bracket on its own.
        order: the dims of the right side, numbered as on the left.
        joined: the local dims of the result, as the dims of the right side in each.
    """

    mesh: DeviceMesh
    left: Placements
    right: Placements
    gradient: Placements
    shape: tuple[int, ...]
    order: tuple[int, ...]
    joined: tuple[int, ...]

    def begin(self, x: Tensor) -> DTensor:
        """Return the local tensor as a DTensor."""
        return DTensor.from_local(x.reshape(self.shape), self.mesh, self.left, run_check=False)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the local tensor after the move."""
        moved = self.begin(x).redistribute(placements=self.right)
        y = moved.to_local(grad_placements=self.gradient).permute(self.order)
        sizes = iter(y.shape)
        return y.reshape([math.prod(islice(sizes, count)) for count in self.joined])


def make_dtensor_move(
    text: str, mesh: DeviceMesh, shape: tuple[int, ...], op: str = "sum"
) -> DTensorMove:
    """Return the move of a pattern, from the local shape of each dim on the left side."""
    pattern = parse_pattern(text)
    names = [dim.name for dim in pattern.left.dims]
    left, right = (_placements(side, names, mesh, op) for side in (pattern.left, pattern.right))
    mirrored = _placements(pattern.mirror.left, names, mesh, "sum")
    order = tuple(names.index(dim.name) for dim in pattern.right.dims)
    joined = tuple(map(len, pattern.right.entries))
    return DTensorMove(mesh, left, right, mirrored, shape, order, joined)


def _placements(side: Side, names: list[str], mesh: DeviceMesh, op: str) -> Placements:
    """Return the placement on each axis of the mesh."""
    dims = {axis: names.index(dim.name) for dim in side.dims for axis in dim.axes}
    marks = {"+": Partial(op), "*": Replicate(), "=": Replicate()}
    return [
        Shard(dims[axis]) if axis in dims else marks[side.types[axis].symbol]
        for axis in mesh.mesh_dim_names or ()
    ]
