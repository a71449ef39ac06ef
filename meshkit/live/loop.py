"""One rank's loop over the micro batches of a step, with gradients synchronised on the last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from ..core.batch import BatchPlan
from ..core.micro import MicroBatch
from ..core.seats import Ints


@dataclass(frozen=True, eq=False)
class RankPlan(BatchPlan):
    """The plan of one rank: a :class:`meshkit.BatchPlan` that knows whose share is meant.

    Made by ``mesh.batch``. Equal to a plan that cuts alike, on whatever rank.

    Attributes:
        data_index: this rank's data coordinate; None on a rank outside the mesh.

    Example:
        A whole training step, whatever the model is wrapped in::

            for micro in plan.micro_batches(step):
                with plan.sync_on_last(model, micro):
                    loss = criterion(model(data[micro.samples]))
                    (loss * micro.weight).backward()
    """

    data_index: int | None = None

    def samples(self, step: int, data_index: int | None = None, *, first: int = 0) -> Ints:
        """As :meth:`meshkit.BatchPlan.samples`; without ``data_index``, this rank's own."""
        whose = self.data_index if data_index is None else data_index
        return super().samples(step, whose, first=first)  # type: ignore[arg-type]

    def micro_batches(
        self, step: int, data_index: int | None = None, *, first: int = 0
    ) -> Iterator[MicroBatch]:
        """As :meth:`meshkit.BatchPlan.micro_batches`; without ``data_index``, this rank's own."""
        whose = self.data_index if data_index is None else data_index
        return super().micro_batches(step, whose, first=first)  # type: ignore[arg-type]

    @contextmanager
    def sync_on_last(self, model: nn.Module, micro: MicroBatch) -> Iterator[None]:
        """Let a backward inside synchronise gradients only if this micro batch is the last.

        Local. Every DDP in the model is told by ``no_sync``, every module under ``fully_shard`` by
        ``set_requires_gradient_sync``; FSDP2 then holds unsharded gradients until the last one.
        Any other model is left as it is. However the block is left, the model is as before.

        Args:
            model: what forward is called on; compiled or not.
            micro: of :meth:`micro_batches`.
        """
        with ExitStack() as until:
            for part in () if micro.is_last else model.modules():
                if isinstance(part, DistributedDataParallel):
                    until.enter_context(part.no_sync())
                if isinstance(part, FSDPModule):
                    part.set_requires_gradient_sync(False, recurse=False)
                    until.callback(part.set_requires_gradient_sync, True, recurse=False)
            yield
