"""The micro batches of one rank: their weights, and when gradients are synchronized."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...core.arrays import Ints
from ...core.data.batch import BatchPlan
from ...core.data.micro_batch import MicroBatch
from ...core.errors import CoordinateError, SpecError
from ...core.text import count_noun

MAX_TOKENS = 2**40  # tokens of a micro batch, so that the sum over any job fits an int64


@dataclass(frozen=True, eq=False)
class RankBatch(BatchPlan):
    """The batch plan of one rank: a :class:`meshkit.BatchPlan` with a data coordinate.

    Created by ``mesh.batch``. Equal plans of different ranks compare equal.

    Attributes:
        axes: the axes that divide the samples.
        data_index: this rank's index along these axes; None on a rank outside the mesh.

    Example:
        A whole training step, for any wrapper of the model::

            for micro in plan.micro_batches(step):
                with plan.sync_on_last(model, micro):
                    loss = criterion(model(data[micro.samples]))
                    (loss * micro.weight).backward()
    """

    axes: tuple[str, ...] = ("dp",)
    data_index: int | None = None

    def samples(self, step: int, data_index: int | None = None, *, first: int = 0) -> Ints:
        """Return :meth:`meshkit.BatchPlan.samples` of a rank, by default of this one."""
        return super().samples(step, self._whose("samples", data_index), first=first)

    def micro_batches(
        self, step: int, data_index: int | None = None, *, first: int = 0
    ) -> Iterator[MicroBatch]:
        """Return :meth:`meshkit.BatchPlan.micro_batches` of a rank, by default of this one."""
        return super().micro_batches(step, self._whose("micro_batches", data_index), first=first)

    def num_micro_batches(self, data_index: int | None = None) -> int:
        """Return :meth:`meshkit.BatchPlan.num_micro_batches` of a rank, by default of this one."""
        return super().num_micro_batches(self._whose("num_micro_batches", data_index))

    def _whose(self, question: str, data_index: int | None) -> int:
        found = self.data_index if data_index is None else data_index
        if found is None:
            line = f"plan.{question}(...): this rank is outside the mesh."
            raise CoordinateError(line, fix="ask only where mesh.inside.")
        return found

    @contextmanager
    def sync_on_last(self, model: nn.Module, micro: MicroBatch) -> Iterator[None]:
        """Synchronize gradients of a backward inside only if this micro batch is the last.

        Local. It uses ``no_sync`` for every DDP in the model, and ``set_requires_gradient_sync``
        for every module under ``fully_shard``. FSDP2 then holds unsharded gradients until the last
        micro batch. Other models are unchanged. After the block, also after an error, the model
        synchronizes again. DDP with ``static_graph=True`` does not support ``no_sync``.

        Args:
            model: the module that forward is called on; compiled or not.
            micro: a micro batch from :meth:`micro_batches`.
        """
        from torch.distributed.fsdp import FSDPModule  # imports 600 modules, so only on use

        with ExitStack() as until:
            for part in () if micro.is_last else model.modules():
                if isinstance(part, DistributedDataParallel):
                    until.enter_context(part.no_sync())
                if isinstance(part, FSDPModule):
                    part.set_requires_gradient_sync(False, recurse=False)
                    until.callback(part.set_requires_gradient_sync, True, recurse=False)
            yield


def token_weights(counts: object, group: dist.ProcessGroup, device: torch.device) -> torch.Tensor:
    """Return the weight of each micro batch by its tokens. See ``mesh.token_weights``.

    Collective over the group: one all-reduce of two numbers.

    Args:
        counts: the tokens of each micro batch of this rank.
        group: the group over which gradients are averaged.
        device: the device that tensors of a collective must be on.

    Raises:
        SpecError: on every rank of the group, if one rank has invalid counts.
    """
    own = _read_counts(counts)
    # a rank with invalid counts joins the all-reduce too, as its peers wait for it
    sums = torch.tensor([0 if own is None else int(own.sum()), own is None], device=device)
    dist.all_reduce(sums, group=group)
    total, refused = sums.tolist()
    if own is None or refused or not total:
        raise _no_weights_error(own is not None, refused)
    weights: torch.Tensor = own.double() * group.size() / total
    return weights


def _read_counts(counts: object) -> torch.Tensor | None:
    """Return whole numbers of 0 or more in one row, on the cpu; None for anything else."""
    try:
        given = torch.as_tensor(counts).detach().cpu()
        own = given.to(torch.int64)
    except (TypeError, ValueError, RuntimeError):
        return None
    kinds = given.is_floating_point(), given.is_complex(), given.dtype == torch.bool
    large = own.ndim == 1 and bool(((own < 0) | (own > MAX_TOKENS)).any())
    return None if own.ndim != 1 or any(kinds) or large else own


def _no_weights_error(whole: bool, refused: int) -> SpecError:
    """Return the error that says why there are no weights, here or on another rank."""
    why = "counts are whole numbers of 0 or more, one a micro batch."
    fix = "[int(mask.sum()) for mask in masks]."
    if whole and refused:
        why, fix = (
            f"{count_noun(refused, 'rank')} refused its own counts.",
            "see their logs.",
        )
    elif whole:
        why, fix = "no rank has a token.", "leave this step out on all ranks."
    return SpecError(why, fix=fix)
