"""Answer a mesh's questions about data: this rank's samples, tokens and their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...core.call import drop_none
from ...core.data.batch import BatchPlan
from ...core.data.batch_solver import solve_batch
from ...core.data.sequence import Order
from ...core.errors import BatchError
from ...core.grid.axis_names import resolve_axes
from ...core.grid.position import group_rank
from ...core.text import article, format_sizes
from ..groups.mesh_groups import MeshGroups
from .check_batch import check_batches
from .rank_batch import RankBatch, token_weights
from .sampler import MicroBatchSampler, make_sampler
from .sequence import SequenceShard, sequence_shard
from .stream import MicroBatchStream

Axes = str | tuple[str, ...]
AVERAGED = ("dp", "cp", "sp")  # axes over which gradients are averaged by default


def plan_rank_batch(
    mesh: MeshGroups,
    data: Axes,
    round: str | None,
    uneven: bool,
    **sizes: int | None,
) -> RankBatch:
    """Return the batch plan of this rank. Local. See :meth:`meshkit.Mesh.batch`."""
    layout = mesh.plan.layout
    axes = resolve_axes("data", data, layout.axes)
    sizes = {"dp": layout.size(*axes) if axes else 1, **drop_none(**sizes)}  # type: ignore[dict-item]
    plan = solve_batch(sizes, round, uneven)
    return RankBatch.of(plan, axes=axes, data_index=_data_index(mesh, axes))


def weigh_tokens(
    mesh: MeshGroups,
    counts: Sequence[int] | torch.Tensor,
    axes: tuple[str, ...],
    device: torch.device,
) -> torch.Tensor:
    """Return the weights of micro batches by tokens. See :meth:`meshkit.Mesh.token_weights`."""
    mesh.check_usable()
    averaged = axes or tuple(axis for axis in AVERAGED if axis in mesh.plan.layout.axes)
    return token_weights(counts, mesh.get(averaged), device)


def sample(
    mesh: MeshGroups, dataset: object, plan: BatchPlan, order: Mapping[str, Any]
) -> MicroBatchSampler | MicroBatchStream[Any]:
    """Return the sampler or stream of this rank. Local. See :meth:`meshkit.Mesh.sampler`."""
    mesh.check_usable()
    return make_sampler(dataset, plan, _check_plan(mesh, plan), order)


def compare_batches(mesh: MeshGroups, batch: object, data: Axes, device: torch.device) -> None:
    """Compare the batches of all ranks. See :meth:`meshkit.Mesh.check_batch`."""
    axes = resolve_axes("data", data, mesh.plan.layout.axes)
    mesh.check_usable()
    check_batches(batch, mesh.plan.layout, axes, mesh.get(()), device)


def shard_sequence(
    mesh: MeshGroups, length: int, axes: Axes, order: Order, pad: bool, device: torch.device
) -> SequenceShard:
    """Return this rank's tokens of a sequence. Local. See :meth:`meshkit.Mesh.sequence`."""
    mesh.check_usable()
    layout = mesh.plan.layout

    def find(*names: str) -> dist.ProcessGroup:
        return mesh.get(names)

    def rank_in(*names: str) -> int:
        return group_rank(layout, mesh.rank, names)

    return sequence_shard(layout, rank_in, find, device, length, axes, order, pad)


def _data_index(mesh: MeshGroups, axes: tuple[str, ...]) -> int | None:
    """Return this rank's index along the data axes; None on a rank outside the mesh."""
    layout = mesh.plan.layout
    if mesh.rank not in layout:
        return None
    return group_rank(layout, mesh.rank, axes) if axes else 0


def _check_plan(mesh: MeshGroups, plan: BatchPlan) -> int:
    """Return this rank's data index in a plan, if the plan fits the mesh.

    Raises:
        BatchError: if it is no plan, or a plan of another mesh.
    """
    if not isinstance(plan, BatchPlan):
        line = f"the plan is {article(type(plan).__name__)}."
        raise BatchError(line, fix="mesh.batch(...), or schedule.at(consumed).")
    layout = mesh.plan.layout
    axes = plan.axes if isinstance(plan, RankBatch) else ("dp",)
    resolve_axes("data", axes, layout.axes)
    size, index = layout.size(*axes) if axes else 1, _data_index(mesh, axes) or 0
    if plan.dp != size or (isinstance(plan, RankBatch) and plan.data_index != index):
        data = format_sizes({axis: layout.sizes[axis] for axis in axes})
        line = f"It divides the samples by {plan.dp}; this mesh has {data or 'no such axes'}."
        raise BatchError("the plan is of another mesh.", line, fix="mesh.batch(...).")
    return index
