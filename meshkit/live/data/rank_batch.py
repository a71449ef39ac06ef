"""The micro batches of one rank: their weights, and when gradients are synchronized."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...core.arrays import Ints
from ...core.call import quotes_call
from ...core.data.batch import BatchPlan
from ...core.data.micro_batch import MicroBatch
from ...core.errors import CoordinateError, SpecError
from ...core.text import count_noun

MAX_TOKENS = 2**40  # tokens of a micro batch, so that the sum over any job fits an int64


@dataclass(frozen=True, eq=False)
class RankBatch:
    """A batch plan with the data coordinate of one rank. Created by ``mesh.batch``.

    It has the attributes of its :class:`meshkit.BatchPlan`, and equals every plan with the same
    sizes, of any rank or of none.

    Attributes:
        plan: the batch plan of all ranks.
        axes: the axes that divide the samples.
        data_index: this rank's index along these axes; None on a rank outside the mesh.

    Example:
        A whole training step, for any wrapper of the model::

            for micro in plan.micro_batches(step):
                with plan.sync_on_last(model, micro):
                    loss = criterion(model(data[micro.samples]))
                    (loss * micro.weight).backward()
    """

    plan: BatchPlan
    axes: tuple[str, ...]
    data_index: int | None = None

    @property
    def dp(self) -> int:
        """The number of data coordinates that divide the samples."""
        return self.plan.dp

    @property
    def global_batch(self) -> int:
        """Samples in one optimizer step, over all ranks."""
        return self.plan.global_batch

    @property
    def micro_batch(self) -> int:
        """Samples in one forward and backward of one rank."""
        return self.plan.micro_batch

    @property
    def accumulation_steps(self) -> int:
        """Micro batches that a rank runs before one optimizer step."""
        return self.plan.accumulation_steps

    @property
    def uneven(self) -> bool:
        """Whether some micro batches are fillers."""
        return self.plan.uneven

    @property
    def asked(self) -> int | None:
        """The requested global batch, if it was rounded; else None."""
        return self.plan.asked

    @quotes_call("plan.samples")
    def samples(self, step: int, data_index: int | None = None, *, first: int = 0) -> Ints:
        """Return :meth:`meshkit.BatchPlan.samples` of a rank, by default of this one."""
        return self.plan.samples(step, self._index(data_index), first=first)

    @quotes_call("plan.micro_batches")
    def micro_batches(
        self, step: int, data_index: int | None = None, *, first: int = 0
    ) -> Iterator[MicroBatch]:
        """Return :meth:`meshkit.BatchPlan.micro_batches` of a rank, by default of this one."""
        return self.plan.micro_batches(step, self._index(data_index), first=first)

    @quotes_call("plan.num_micro_batches")
    def num_micro_batches(self, data_index: int | None = None) -> int:
        """Return :meth:`meshkit.BatchPlan.num_micro_batches` of a rank, by default of this one."""
        return self.plan.num_micro_batches(self._index(data_index))

    def resize(self, dp: int) -> BatchPlan:
        """Return :meth:`meshkit.BatchPlan.resize`, a plan of no rank."""
        return self.plan.resize(dp)

    def with_global_batch(self, global_batch: int, *, uneven: bool = False) -> RankBatch:
        """Return :meth:`meshkit.BatchPlan.with_global_batch` for the same rank."""
        return replace(self, plan=self.plan.with_global_batch(global_batch, uneven=uneven))

    def _index(self, data_index: int | None) -> int:
        index = self.data_index if data_index is None else data_index
        if index is None:
            raise CoordinateError("this rank is outside the mesh.", fix="check mesh.inside first.")
        return index

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

        with ExitStack() as stack:
            for module in () if micro.is_last else model.modules():
                if isinstance(module, DistributedDataParallel):
                    stack.enter_context(module.no_sync())
                if isinstance(module, FSDPModule):
                    module.set_requires_gradient_sync(False, recurse=False)
                    stack.callback(module.set_requires_gradient_sync, True, recurse=False)
            yield

    def __eq__(self, other: object) -> bool:
        return self.plan == (other.plan if isinstance(other, RankBatch) else other)

    def __hash__(self) -> int:
        return hash(self.plan)

    def __str__(self) -> str:
        return str(self.plan)


def token_weights(counts: object, group: dist.ProcessGroup, device: torch.device) -> torch.Tensor:
    """Return the weight of each micro batch by its tokens. See ``mesh.token_weights``.

    Collective over the group: one all-reduce of two numbers.
    """
    tokens = _parse_counts(counts)
    # a rank with invalid counts joins the all-reduce too, as its peers wait for it
    sums = torch.tensor([0 if tokens is None else int(tokens.sum()), tokens is None], device=device)
    dist.all_reduce(sums, group=group)
    total, num_invalid = sums.tolist()
    if tokens is None or num_invalid or not total:
        raise _invalid_counts_error(tokens is not None, num_invalid)
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


def _invalid_counts_error(valid: bool, num_invalid: int) -> SpecError:
    """Return the error of a step without weights."""
    if not valid:
        line = "counts are whole numbers of 0 or more, one a micro batch."
        return SpecError(line, fix="[int(mask.sum()) for mask in masks].")
    if num_invalid:
        line = f"{count_noun(num_invalid, 'rank')} passed invalid counts."
        return SpecError(line, fix="see the error in the log of that rank.")
    return SpecError("no rank has a token.", fix="skip this step on all ranks.")
