"""Give this rank its batch plan, sampler, tokens of a sequence, and weights of micro batches.

Each function computes the index of this rank along the data axes or the sequence axes, and passes
the index on. ``core/data/data_axes.py`` decides which axes are data axes.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any

import torch
from torch.utils.data import IterableDataset

from ...core.call import Call, Verbatim
from ...core.data.batch import BatchPlan
from ...core.data.data_axes import (
    data_choices,
    describe_data,
    num_data_coordinates,
    resolve_data_axes,
)
from ...core.data.epoch import SampleOrder
from ...core.data.sequence import Order, plan_sequence, sequence_axes
from ...core.errors import BatchError, SpecError
from ...core.grid.axis_names import Names, resolve_axes
from ...core.grid.group_rank import group_rank
from ...core.grid.layout import Layout
from ...core.grid.roles import (
    axes_with_unknown,
    gradient_axes,
    unknown_axes,
    unknown_role_error,
)
from ...core.text import article, format_sizes
from ..group_registry import MeshGroups
from .check_batch import check_batches
from .rank_batch import RankBatch, token_weights
from .sampler import MicroBatchSampler, make_sampler
from .sequence import SequenceShard
from .stream import MicroBatchStream, make_stream

Axes = str | tuple[str, ...]


def plan_rank_batch(
    mesh: MeshGroups,
    data: Axes | None,
    round: str | None,
    uneven: bool,
    **sizes: int | None,
) -> RankBatch:
    """Return the batch plan of this rank. Local. See :meth:`meshkit.Mesh.batch`."""
    layout = mesh.plan.layout
    axes = resolve_data_axes(data, layout.sizes)
    dp = num_data_coordinates(layout.sizes, axes)
    try:
        plan = BatchPlan.solve(dp=dp, round=round, uneven=uneven, **sizes)
    except BatchError as error:
        error.evidence += describe_data(layout.sizes, axes)
        raise
    return RankBatch(plan, axes, _data_index(mesh, axes))


def weigh_tokens(
    mesh: MeshGroups,
    counts: Sequence[int] | torch.Tensor,
    axes: tuple[Names, ...],
    device: torch.device,
) -> torch.Tensor:
    """Return the weights of micro batches by tokens. See :meth:`meshkit.Mesh.token_weights`."""
    mesh.check_can_communicate()
    sizes = mesh.plan.layout.sizes
    if not axes and unknown_axes(sizes):
        choices = axes_with_unknown(sizes, gradient_axes(sizes))
        calls = [str(Call("mesh.token_weights", (Verbatim("counts"), *c))) for c in choices if c]
        raise unknown_role_error(sizes, f"{', or '.join(calls)}.")
    return token_weights(counts, mesh.get(axes) if axes else mesh.gradient_group(), device)


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


def compare_batches(
    mesh: MeshGroups, batch: object, data: Axes | None, device: torch.device
) -> None:
    """Compare the batches of all ranks. See :meth:`meshkit.Mesh.check_batch`."""
    axes = resolve_data_axes(data, mesh.plan.layout.sizes)
    mesh.check_usable()
    check_batches(batch, mesh.plan.layout, axes, mesh.collective_group(()), device)


def shard_sequence(
    mesh: MeshGroups, length: int, axes: Axes | None, order: Order, pad: bool, device: torch.device
) -> SequenceShard:
    """Return this rank's tokens of a sequence. Local. See :meth:`meshkit.Mesh.sequence`."""
    mesh.check_usable()
    layout = mesh.plan.layout
    names = sequence_axes(layout) if axes is None else resolve_axes("axes", axes, layout.axes)
    plan = plan_sequence(layout, names, length, order=order, pad=pad)
    part = group_rank(layout, mesh.rank, names) if names else 0
    return SequenceShard(plan, part, device, lambda: mesh.collective_group(names))


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
    if not isinstance(plan, RankBatch) and unknown_axes(layout.sizes):
        raise _unknown_data_axes_error(layout, plan)
    axes = resolve_data_axes(plan.axes if isinstance(plan, RankBatch) else None, layout.sizes)
    size, index = num_data_coordinates(layout.sizes, axes), _data_index(mesh, axes) or 0
    if plan.dp != size or (isinstance(plan, RankBatch) and plan.data_index != index):
        data = format_sizes({axis: layout.sizes.get(axis, 1) for axis in axes})
        line = f"It divides the samples by {plan.dp}; this mesh has {data or 'no such axes'}."
        raise BatchError("the plan is of another mesh.", line, fix="mesh.batch(...).")
    return index


def _unknown_data_axes_error(layout: Layout, plan: BatchPlan) -> SpecError:
    """Return the error for a plan of no mesh, as its data axes are unknown."""
    sizes = {"global_batch": plan.global_batch, "micro_batch": plan.micro_batch}
    options = {**sizes, "uneven": plan.uneven or None}
    calls = [
        f"plan = {Call('mesh.batch', kwargs={**options, 'data': ' '.join(axes)})}"
        for axes in data_choices(layout.sizes, plan.dp)[:2]
    ]
    return unknown_role_error(layout.sizes, f"{', or '.join(calls)}.")
