"""The batch plan of one rank, by its index along the data axes, and the weights of its samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..call import Call, Verbatim, format_value, quotes_call
from ..errors import BatchError, SpecError
from ..groups.live_mesh import LiveMesh
from ..groups.registry import MeshGroups
from ..launch.torch_program import keep_gradient_sync
from ..layout.axes import Names, axes_with_unknown, gradient_axes, unknown_axes, unknown_role_error
from ..layout.position import group_rank
from ..text import article, count_noun, format_sizes
from .batch import (
    BatchPlan,
    MicroBatch,
    data_choices,
    describe_data,
    num_data_coordinates,
    resolve_data_axes,
)

Axes = str | tuple[str, ...]
MAX_TOKENS = 2**40  # tokens of a micro batch, so that the sum over any job fits an int64

# DDP with static_graph=True whose first backward, which must synchronize, is over
_LEARNED: WeakSet[DistributedDataParallel] = WeakSet()


@dataclass(frozen=True, eq=False, init=False, repr=False)
class RankBatch(BatchPlan):
    """The batch plan of one rank: ``samples`` and ``micro_batches`` are those of this rank.

    It equals every plan with the same sizes, of any rank or of none. Created by ``mesh.batch``.

    Example:
        A whole training step, for any wrapper of the model::

            for micro in plan.micro_batches(step):
                with plan.sync_on_last(model, micro):
                    loss = criterion(model(data[micro.samples]))
                    (loss * micro.weight).backward()
    """

    axes: tuple[str, ...] = field(default=(), kw_only=True)  # the axes that divide the samples

    def __init__(self, *, axes: tuple[str, ...], **fields: Any) -> None:  # noqa: ANN401
        super().__init__(**fields)
        vars(self).update(axes=axes)

    @property
    def plan(self) -> BatchPlan:
        """The same plan, of no rank."""
        return self.resize(self.dp)

    def __repr__(self) -> str:
        return repr(self.plan)

    @contextmanager
    @quotes_call("plan.sync_on_last", by_name=("model", "micro"))
    def sync_on_last(self, model: nn.Module, micro: MicroBatch) -> Iterator[None]:
        """Synchronize gradients of a backward inside only if this micro batch is the last.

        Local. It uses ``no_sync`` for every DDP in the model, and ``set_requires_gradient_sync``
        for every module under ``fully_shard``. FSDP2 then holds unsharded gradients until the last
        micro batch. Other models are unchanged. After the block, also after an error, the model
        synchronizes as before. If the caller has turned synchronization off, it stays off. DDP with
        ``static_graph=True`` also synchronizes in its first backward, in which it learns the graph.

        Raises:
            SpecError: if ``micro`` is no micro batch, such as its number; if ``model`` is none.
        """
        from torch.distributed.fsdp import FSDPModule  # imports 600 modules, so only on use

        if not isinstance(micro, MicroBatch):
            fix = "for micro in sampler.micro_batches(step), or in plan.micro_batches(step)."
            if isinstance(model, MicroBatch):
                fix = "plan.sync_on_last(model, micro), the model first."
            value = format_value(micro, "a model")
            raise SpecError(f"micro is {value}, not a micro batch.", fix=fix)
        if not isinstance(model, nn.Module):
            fix = "torch.nn.ModuleList(models), or a with for each of them."
            raise SpecError(f"model is {article(type(model).__name__)}, not a module.", fix=fix)
        learning = set[DistributedDataParallel]()
        with ExitStack() as stack:
            for module in () if micro.is_last else model.modules():
                if isinstance(module, DistributedDataParallel):
                    if module.static_graph and module not in _LEARNED:
                        learning.add(module)
                    else:
                        stack.enter_context(module.no_sync())
                if isinstance(module, FSDPModule):
                    stack.callback(keep_gradient_sync(module))
                    module.set_requires_gradient_sync(False, recurse=False)
            yield
        _LEARNED.update(learning)


@quotes_call("mesh.batch")
def batch(  # noqa: D417  # self
    self: LiveMesh,
    *,
    global_batch: int | None = None,
    micro_batch: int | None = None,
    accumulation_steps: int | None = None,
    data: str | tuple[str, ...] | None = None,
    uneven: bool = False,
) -> RankBatch:
    """Return the batch plan of this mesh: any two of the three sizes give the third. Local.

    Args:
        global_batch: samples in one optimizer step, over all ranks.
        micro_batch: samples in one forward and backward of one rank.
        accumulation_steps: micro batches per rank and optimizer step.
        data: the axes that divide the samples; ranks along all others share them. Empty: all
            ranks read the same samples. None: the axes whose names have the role of data or of
            experts.
        uneven: let some ranks run one micro batch more than others if the micro batches do not
            divide; see :meth:`meshkit.BatchPlan.solve`.

    Returns:
        The plan, which knows this rank's share: ``plan.samples(step)``,
        ``plan.micro_batches(step)`` and ``plan.sync_on_last(model, micro)``. Its ``repr`` is
        equal on all ranks, for ``agree``.

    Raises:
        BatchError: if they do not divide, with the nearest batches that do.

    Example:
        >>> print(mesh.batch(global_batch=32, micro_batch=2))
        global_batch 32 = micro_batch 2 x accumulation_steps 4 x dp 4
    """
    layout, rank = self._groups.plan.layout, self._groups.rank
    axes = resolve_data_axes(data, layout.sizes)
    dp = num_data_coordinates(layout.sizes, axes)
    try:
        plan = BatchPlan.solve(
            dp=dp,
            global_batch=global_batch,
            micro_batch=micro_batch,
            accumulation_steps=accumulation_steps,
            uneven=uneven,
        )
    except BatchError as error:
        raise error.but(evidence=(*error.evidence, *describe_data(layout.sizes, axes))) from None
    index = group_rank(layout, rank, axes) if rank in layout else None
    return RankBatch(**{**vars(plan), "data_index": index, "axes": axes})


@quotes_call("mesh.token_weights")
def token_weights(  # noqa: D417  # self
    self: LiveMesh, counts: Sequence[int] | torch.Tensor, *axes: Names
) -> torch.Tensor:
    """Return the factors for the mean loss of each micro batch if samples differ in length.

    Collective over the group of the axes: one all-reduce of two numbers. The factor is
    ``size(*axes) * tokens / all tokens``: the gradient averaged over that group is then exactly
    that of the mean over all tokens of the step.

    Args:
        counts: the tokens that count in each micro batch of the step on this rank, without
            padding and masked ones; 0 for a filler. A mean over no token is NaN, also after
            scaling by 0, so divide by at least one.
        *axes: the axes over which gradients are averaged and tokens differ; without any, those
            of :meth:`gradient_group`.

    Returns:
        float64 (micro batches,), on the cpu. It replaces ``micro.weight``.

    Raises:
        SpecError: if counts are not whole numbers of 0 or more, or no rank has a token.
    """
    mesh = self._groups
    mesh.check_can_communicate()
    sizes = mesh.plan.layout.sizes
    if not axes and unknown_axes(sizes):
        choices = axes_with_unknown(sizes, gradient_axes(sizes))
        calls = [str(Call("mesh.token_weights", (Verbatim("counts"), *c))) for c in choices if c]
        raise unknown_role_error(sizes, f"{', or '.join(calls)}.")
    group = mesh.get(axes) if axes else mesh.gradient_group()
    tokens = _parse_counts(counts)
    # a rank with invalid counts joins the all-reduce too, as its peers wait for it
    total = 0 if tokens is None else int(tokens.sum())
    sums = torch.tensor([total, tokens is None], device=self.device)
    dist.all_reduce(sums, group=group)
    total, num_invalid = sums.tolist()
    if tokens is None:
        line = "counts are whole numbers of 0 or more, one a micro batch."
        raise SpecError(line, fix="[int(mask.sum()) for mask in masks].")
    if num_invalid:
        line = f"{count_noun(num_invalid, 'rank')} passed invalid counts."
        raise SpecError(line, fix="see the error in the log of that rank.")
    if not total:
        raise SpecError("no rank has a token.", fix="skip this step on all ranks.")
    weights: torch.Tensor = tokens.double() * group.size() / total
    return weights


def _parse_counts(counts: object) -> torch.Tensor | None:
    """Return whole numbers of 0 or more in one row, on the cpu; None for anything else."""
    try:
        tensor = torch.as_tensor(counts).detach().cpu()
        tokens = tensor.to(torch.int64)
    except (TypeError, ValueError, RuntimeError):
        return None
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        return None
    if tokens.ndim != 1 or bool(((tokens < 0) | (tokens > MAX_TOKENS)).any()):
        return None
    return tokens


def plan_of_rank(mesh: MeshGroups, plan: BatchPlan) -> BatchPlan:
    """Return a plan with this rank's data index, if the plan fits the mesh. Local."""
    mesh.check_usable()
    if not isinstance(plan, BatchPlan):
        line = f"the plan is {article(type(plan).__name__)}."
        raise BatchError(line, fix="mesh.batch(...), or schedule.at(consumed).")
    sizes = mesh.plan.layout.sizes
    if isinstance(plan, RankBatch):
        axes = resolve_data_axes(plan.axes, sizes)
    elif unknown_axes(sizes):
        options = {"global_batch": plan.global_batch, "micro_batch": plan.micro_batch}
        options |= {"uneven": True} if plan.uneven else {}
        calls = [
            f"plan = {Call('mesh.batch', kwargs={**options, 'data': ' '.join(choice)})}"
            for choice in data_choices(sizes, plan.dp)[:2]
        ]
        raise unknown_role_error(sizes, f"{', or '.join(calls)}.")
    else:
        axes = resolve_data_axes(None, sizes)
    index = group_rank(mesh.plan.layout, mesh.rank, axes) if axes else 0
    if plan.dp != num_data_coordinates(sizes, axes) or plan.data_index not in (None, index):
        data = format_sizes({axis: sizes.get(axis, 1) for axis in axes})
        line = f"It divides the samples by {plan.dp}; this mesh has {data or 'no such axes'}."
        raise BatchError("the plan is of another mesh.", line, fix="mesh.batch(...).")
    return replace(plan, data_index=index)
