"""One rank's loop over the micro batches of a step: what each weighs, when ranks communicate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..core.batch import BatchPlan
from ..core.call import Call
from ..core.errors import CoordinateError, SpecError, told
from ..core.micro import MicroBatch
from ..core.seats import Ints
from ..core.words import count_noun

MOST = 2**40  # tokens of a micro batch, so that their sum over any job is an int64


@dataclass(frozen=True, eq=False)
class RankPlan(BatchPlan):
    """The plan of one rank: a :class:`meshkit.BatchPlan` that knows whose share is meant.

    Made by ``mesh.batch``. Equal to a plan that cuts alike, on whatever rank.

    Attributes:
        axes: the axes that divide the samples.
        data_index: this rank's place along them; None on a rank outside the mesh.

    Example:
        A whole training step, whatever the model is wrapped in::

            for micro in plan.micro_batches(step):
                with plan.sync_on_last(model, micro):
                    loss = criterion(model(data[micro.samples]))
                    (loss * micro.weight).backward()
    """

    axes: tuple[str, ...] = ("dp",)
    data_index: int | None = None

    def samples(self, step: int, data_index: int | None = None, *, first: int = 0) -> Ints:
        """As :meth:`meshkit.BatchPlan.samples`; without ``data_index``, this rank's own."""
        return super().samples(step, self._whose("samples", data_index), first=first)

    def micro_batches(
        self, step: int, data_index: int | None = None, *, first: int = 0
    ) -> Iterator[MicroBatch]:
        """As :meth:`meshkit.BatchPlan.micro_batches`; without ``data_index``, this rank's own."""
        return super().micro_batches(step, self._whose("micro_batches", data_index), first=first)

    def own_steps(self, data_index: int | None = None) -> int:
        """As :meth:`meshkit.BatchPlan.own_steps`; without ``data_index``, this rank's own."""
        return super().own_steps(self._whose("own_steps", data_index))

    def _whose(self, question: str, data_index: int | None) -> int:
        found = self.data_index if data_index is None else data_index
        if found is None:
            line = f"plan.{question}(...): this rank is outside the mesh."
            raise CoordinateError(told(line, fix="ask only where mesh.inside."))
        return found

    @contextmanager
    def sync_on_last(self, model: nn.Module, micro: MicroBatch) -> Iterator[None]:
        """Let a backward inside synchronise gradients only if this micro batch is the last.

        Local. Every DDP in the model is told by ``no_sync``, every module under ``fully_shard`` by
        ``set_requires_gradient_sync``; FSDP2 then holds unsharded gradients until the last one.
        Any other model is left as it is. However the block is left, the model synchronises again.
        (DDP's ``static_graph=True`` cannot do without, in torch itself.)

        Args:
            model: what forward is called on; compiled or not.
            micro: of :meth:`micro_batches`.
        """
        from torch.distributed.fsdp import FSDPModule  # 600 modules: not for everyone

        with ExitStack() as until:
            for part in () if micro.is_last else model.modules():
                if isinstance(part, DistributedDataParallel):
                    until.enter_context(part.no_sync())
                if isinstance(part, FSDPModule):
                    part.set_requires_gradient_sync(False, recurse=False)
                    until.callback(part.set_requires_gradient_sync, True, recurse=False)
            yield


def token_weights(
    call: Call, counts: object, group: dist.ProcessGroup, device: torch.device
) -> torch.Tensor:
    """What each micro batch weighs by its tokens. Collective. See ``mesh.token_weights``.

    Args:
        call: the call to quote.
        counts: the tokens of each micro batch of this rank.
        group: over which gradients are averaged.
        device: where tensors of a collective must lie.

    Raises:
        SpecError: on every rank of the group, where one has counts that are none.
    """
    own = _counts(counts)
    # a rank that must refuse tells the others, which wait for it
    sums = torch.tensor([0 if own is None else int(own.sum()), own is None], device=device)
    dist.all_reduce(sums, group=group)
    total, refused = sums.tolist()
    if own is None or refused or not total:
        raise _no_weights(call, own is not None, refused)
    weights: torch.Tensor = own.double() * group.size() / total
    return weights


def _counts(counts: object) -> torch.Tensor | None:
    """Whole numbers of 0 or more in one row, on the cpu; None for anything else."""
    try:
        given = torch.as_tensor(counts).detach().cpu()
        own = given.to(torch.int64)
    except (TypeError, ValueError, RuntimeError):
        return None
    kinds = given.is_floating_point(), given.is_complex(), given.dtype == torch.bool
    large = own.ndim == 1 and bool(((own < 0) | (own > MOST)).any())
    return None if own.ndim != 1 or any(kinds) or large else own


def _no_weights(call: Call, whole: bool, refused: int) -> SpecError:
    """Why there are no weights, here or on another rank."""
    why = f"{call}: counts are whole numbers of 0 or more, one a micro batch."
    fix = "[int(mask.sum()) for mask in masks]."
    if whole and refused:
        why, fix = (
            f"{call}: {count_noun(refused, 'rank')} refused its own counts.",
            "see their logs.",
        )
    elif whole:
        why, fix = f"{call}: no rank has a token.", "leave this step out on all ranks."
    return SpecError(told(why, fix=fix))
