"""Decide which ranks of a mesh share a sample: the data index of each rank.

Ranks of equal index along the data axes share samples. The functions here give this rank its batch
plan, its sampler, its tokens of a sequence, and the weights of its micro batches.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import torch
from torch.utils.data import IterableDataset

from ...core.data.batch import BatchPlan
from ...core.data.epoch import SampleOrder
from ...core.data.sequence import Order, plan_sequence
from ...core.errors import BatchError
from ...core.grid.axis_names import DEFAULT_DATA_AXES, resolve_axes
from ...core.grid.group_rank import group_rank
from ...core.text import article, format_sizes
from ..groups.mesh_groups import MeshGroups
from .check_batch import check_batches
from .rank_batch import RankBatch, token_weights
from .sampler import MicroBatchSampler, make_sampler
from .sequence import SequenceShard
from .stream import MicroBatchStream, make_stream

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
    dp = layout.size(*axes) if axes else 1
    plan = BatchPlan.solve(dp=dp, round=round, uneven=uneven, **sizes)
    return RankBatch(plan, axes, _data_index(mesh, axes))


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
    mesh: MeshGroups,
    dataset: IterableDataset[Any] | Sized | int,
    plan: BatchPlan | RankBatch,
    order: SampleOrder,
) -> MicroBatchSampler | MicroBatchStream[Any]:
    """Return the sampler or stream of this rank. Local. See :meth:`meshkit.Mesh.sampler`."""
    mesh.check_usable()
    data_index = _check_plan(mesh, plan)
    batch_plan = plan.plan if isinstance(plan, RankBatch) else plan
    if isinstance(dataset, IterableDataset):
        return make_stream(dataset, batch_plan, data_index, order)
    return make_sampler(dataset, batch_plan, data_index, order)


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
    names = resolve_axes("axes", axes, layout.axes)
    plan = plan_sequence(layout, names, length, order=order, pad=pad)
    part = group_rank(layout, mesh.rank, names) if names else 0
    return SequenceShard(plan, part, device, lambda: mesh.get(names))


def _data_index(mesh: MeshGroups, axes: tuple[str, ...]) -> int | None:
    """Return this rank's index along the data axes; None on a rank outside the mesh."""
    layout = mesh.plan.layout
    if mesh.rank not in layout:
        return None
    return group_rank(layout, mesh.rank, axes) if axes else 0


def _check_plan(mesh: MeshGroups, plan: BatchPlan | RankBatch) -> int:
    """Return this rank's data index in a plan, if the plan fits the mesh."""
    if not isinstance(plan, BatchPlan | RankBatch):
        line = f"the plan is {article(type(plan).__name__)}."
        raise BatchError(line, fix="mesh.batch(...), or schedule.at(consumed).")
    layout = mesh.plan.layout
    axes = plan.axes if isinstance(plan, RankBatch) else DEFAULT_DATA_AXES
    resolve_axes("data", axes, layout.axes)
    size, index = layout.size(*axes) if axes else 1, _data_index(mesh, axes) or 0
    if plan.dp != size or (isinstance(plan, RankBatch) and plan.data_index != index):
        data = format_sizes({axis: layout.sizes[axis] for axis in axes})
        line = f"It divides the samples by {plan.dp}; this mesh has {data or 'no such axes'}."
        raise BatchError("the plan is of another mesh.", line, fix="mesh.batch(...).")
    return index
