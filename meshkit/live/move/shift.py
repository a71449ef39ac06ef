"""Pass a tensor along an axis, as a ring does, with the gradient back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...core.grid.axis_names import parse_axis
from ...core.validate import check_integer
from ..group_registry import MeshGroups
from ..status import in_collective, is_tracked
from .operations import check_tensor


@dataclass(frozen=True, eq=False)
class Ring:
    """The ranks along one axis, as seen by this rank."""

    group: dist.ProcessGroup
    index: int  # the coordinate of this rank
    size: int
    name: str  # the call, for reports of hangs

    def pass_on(self, x: Tensor, steps: int) -> Tensor:
        """Send a tensor some steps along the axis; return the one that arrives. Collective."""
        if steps % self.size == 0:
            return x
        target, origin = (self.index + steps) % self.size, (self.index - steps) % self.size
        source = x.contiguous()
        result = torch.empty_like(source)
        if torch.compiler.is_compiling():
            return self._pass_all_to_all(source, target, origin)
        if not is_tracked():
            self._exchange(source, result, target, origin)
            return result
        with in_collective(self.name, self.group):
            self._exchange(source, result, target, origin)
        return result

    def _pass_all_to_all(self, source: Tensor, target: int, origin: int) -> Tensor:
        """Return the tensor that arrives, by the collective that torch.compile can trace."""
        result, ranks = torch.empty_like(source).view(-1), range(self.size)
        received = [source.numel() * (rank == origin) for rank in ranks]
        sent = [source.numel() * (rank == target) for rank in ranks]
        dist.all_to_all_single(result, source.view(-1), received, sent, group=self.group)
        return result.view(source.shape)

    def _exchange(self, source: Tensor, result: Tensor, target: int, origin: int) -> None:
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, source, group=self.group, group_peer=target),
                dist.P2POp(dist.irecv, result, group=self.group, group_peer=origin),
            ]
        )
        for work in works:
            work.wait()


class Shift(torch.autograd.Function):
    """A shift, whose gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ring: Ring, steps: int) -> Tensor:  # noqa: ANN401
        """Pass the tensor on."""
        ctx.ring, ctx.steps = ring, steps
        y = ring.pass_on(x, steps)
        return y.view_as(y) if y is x else y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401
        """Pass the gradient back."""
        return apply_shift(grad, ctx.ring, -ctx.steps), None, None


apply_shift: Callable[..., Tensor] = Shift.apply


def make_ring(mesh: MeshGroups, axis: str) -> Ring:
    """Return the ring of this rank along an axis. Local."""
    layout = mesh.plan.layout
    name = parse_axis(axis, layout.axes)
    index = layout.coordinate(mesh.rank).get(name, 0)  # an absent axis has size 1
    return Ring(mesh.get((name,)), index, layout.size(name), f"shift over {name}")


def shift_tensor(ring: Ring, x: Tensor, steps: int) -> Tensor:
    """Pass a tensor along an axis. See :meth:`meshkit.Mesh.shift`."""
    check_tensor(x)
    return apply_shift(x, ring, check_integer("steps", steps))
