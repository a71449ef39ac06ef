"""Which samples are this rank's to read, in which micro batches, and what they weigh."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Any, TypeVar, overload

import torch
from torch.utils.data import IterableDataset

from ..core.call import public
from ..core.data.batch import BatchPlan
from ..core.data.epoch import SampleOrder
from ..core.errors import BatchError
from ..core.grid.axis_names import resolve_axes
from ..core.text import article, format_sizes
from .data.check_batch import check_batches
from .data.rank_batch import RankBatch, token_weights
from .data.sampler import MicroBatchSampler, make_sampler
from .data.stream import MicroBatchStream, make_stream
from .grouped import Grouped

Sample = TypeVar("Sample")


class Reader(Grouped):
    """A rank with its groups, and its exact share of the samples."""

    @public("mesh.batch")
    def batch(
        self,
        *,
        global_batch: int | None = None,
        micro_batch: int | None = None,
        accumulation_steps: int | None = None,
        data: str | tuple[str, ...] = ("dp",),
        round: str | None = None,
        uneven: bool = False,
    ) -> RankBatch:
        """How the global batch is cut for this mesh: any two of the three give the third. Local.

        Args:
            global_batch: samples in one optimizer step, over all ranks.
            micro_batch: samples in one forward and backward of one rank.
            accumulation_steps: micro batches a rank runs before one optimizer step.
            data: the axes that divide the samples, ``"dp ep"`` or ``("dp", "ep")``; the ranks of
                all others share them. Empty means that all ranks read the same.
            round: ``"down"`` or ``"up"``, see :meth:`meshkit.BatchPlan.solve`.
            uneven: let some ranks run one micro batch more than others; see there.

        Returns:
            The plan, which knows this rank's share: ``plan.samples(step)``,
            ``plan.micro_batches(step)`` and ``plan.sync_on_last(model, micro)``.

        Raises:
            BatchError: where they do not divide, with the nearest batches that do.
            UnknownAxisError: for an axis in ``data`` that the mesh does not have.
        """
        axes = resolve_axes("data", data, self.layout.axes)
        plan = BatchPlan.solve(
            dp=self.size(*axes) if axes else 1,
            global_batch=global_batch,
            micro_batch=micro_batch,
            accumulation_steps=accumulation_steps,
            round=round,
            uneven=uneven,
        )
        return RankBatch(plan, axes, self._index(axes))

    @public("mesh.token_weights")
    def token_weights(self, counts: Sequence[int] | torch.Tensor, *axes: str) -> torch.Tensor:
        """By what to scale the mean loss of each micro batch, where samples differ in length.

        Collective over the group of the axes: one all-reduce of one number. Scaled so, the gradient
        averaged over that group is exactly that of the mean over all tokens of the step: the weight
        is ``size(*axes) * tokens / all tokens``.

        Args:
            counts: how many tokens count in each micro batch of the step on this rank, without
                padding and what is masked; 0 for a filler. (A mean over none is NaN, and stays so
                when it is scaled by 0: divide by one at least.)
            *axes: those over which gradients are averaged and tokens are different; without any,
                ``dp``, and ``cp`` and ``sp`` where the mesh has them.

        Returns:
            float64 (micro batches,), on the cpu. It replaces ``micro.weight``.

        Raises:
            SpecError: for counts that are not whole numbers of 0 or more, or where no rank has a
                token; for a group that was not asked for.
            UnknownAxisError: for an axis the mesh does not have.
        """
        self._check_here()
        over = axes or tuple(axis for axis in ("dp", "cp", "sp") if axis in self.layout.axes)
        return token_weights(counts, self.group(*over), self._device())

    @overload
    def sampler(  # noqa: D418
        self,
        dataset: IterableDataset[Sample],
        plan: BatchPlan | RankBatch,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        tail: str | None = None,
    ) -> MicroBatchStream[Sample]:
        """Of a stream."""

    @overload
    def sampler(  # noqa: D418
        self,
        dataset: Sized | int,
        plan: BatchPlan | RankBatch,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        tail: str | None = None,
    ) -> MicroBatchSampler:
        """Of data read by index."""

    @public("mesh.sampler", by_name=("plan",))
    def sampler(
        self,
        dataset: IterableDataset[Any] | Sized | int,
        plan: BatchPlan | RankBatch,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        tail: str | None = None,
    ) -> MicroBatchSampler | MicroBatchStream[Any]:
        """This rank's micro batches of a dataset, for torch's DataLoader. Local, no communication.

        One global order of samples, whatever the mesh: ranks of one data coordinate read the same
        samples, data coordinates different ones, and a state saved on one mesh is read on from on
        another. No array of all samples is made: 0.1 microseconds a sample with shuffle, and some
        0.3 milliseconds a step.

        Args:
            dataset: anything with ``len``, or that number; or an ``IterableDataset``, of which a
                :class:`~meshkit.live.data.stream.MicroBatchStream` is made.
            plan: what :meth:`batch` gives; or a plain :class:`meshkit.BatchPlan` over this dp.
            shuffle: whether each epoch has its own order, by ``seed`` and the number of the epoch;
                the same on every version of torch and numpy. Not of a stream.
            seed: any int, the same on every rank.
            epoch: the first epoch, from 0.
            tail: what becomes of the samples at the end that do not fill a global batch:
                ``"keep"`` makes a smaller last step of them, with weights to match; ``"drop"``
                leaves them out; ``"pad"`` fills the step up with the first samples of the same
                epoch, which then count twice. None is ``"keep"``, and ``"drop"`` of a stream, which
                can do nothing else.

        Returns:
            A ``Sampler[list[int]]`` for ``DataLoader(dataset, batch_sampler=...)`` with any number
            of workers; of an iterable dataset a ``MicroBatchStream`` for ``DataLoader(stream,
            batch_size=None)``.

        Raises:
            BatchError: for data of no sample, or without ``len``; for an order or a tail that
                cannot be; for fewer samples than a global batch with ``"drop"``; for a plan of
                another mesh.
            CoordinateError: on a rank outside the mesh.

        Example:
            ``DataLoader(data, batch_sampler=mesh.sampler(data, plan, shuffle=True, seed=1))``
        """
        self._check_here()
        index, order = self._data_index(plan), SampleOrder(shuffle, seed, epoch, tail)
        of_all = plan.plan if isinstance(plan, RankBatch) else plan
        if isinstance(dataset, IterableDataset):
            return make_stream(dataset, of_all, index, order)
        return make_sampler(dataset, of_all, index, order)

    @public("mesh.check_batch", by_name=("batch",))
    def check_batch(self, batch: object, *, data: str | tuple[str, ...] = ("dp",)) -> None:
        """Prove that ranks which share samples hold equal batches, and data coordinates other ones.

        Collective over the mesh: one gather of 41 bytes a rank, and where something is wrong one
        more. Tensors are copied to the host and hashed there, a second or two a gigabyte: for the
        first steps of a job, or now and then. Give it the batch as it was read, before sp cuts the
        sequence, and no filler, which is another's by intent. A batch that a dataset holds twice
        can come to two data coordinates by chance.

        Args:
            batch: a tensor, or dicts, lists and tuples of tensors, of int, float, str, bytes, bool
                and None, nested as you like. Compared are dtype, shape and bytes, not the device;
                the order of keys does not matter.
            data: the axes that divide the samples, as in :meth:`batch`. Empty means that all ranks
                must hold the same.

        Raises:
            BatchError: the same on every rank: where ranks of one data coordinate hold different
                batches, with the first key that differs; where two data coordinates hold equal
                ones; where a rank holds something that is none of the above.
            UnknownAxisError: for an axis in ``data`` that the mesh does not have.
            CoordinateError: on a rank outside the mesh.
            MeshkitError: after ``close``, or after ``shutdown``.

        Example:
            ``mesh.check_batch(next(iter(loader)))``
        """
        axes = resolve_axes("data", data, self.layout.axes)
        self._check_here()
        check_batches(batch, self.layout, axes, self.group(), self._device())

    def _data_index(self, plan: BatchPlan | RankBatch) -> int:
        """This rank's share of a plan: over the axes it was made for, or else over dp."""
        if not isinstance(plan, BatchPlan | RankBatch):
            line = f"the plan is {article(type(plan).__name__)}."
            raise BatchError(line, fix="mesh.batch(...), or schedule.at(consumed).")
        axes = plan.axes if isinstance(plan, RankBatch) else ("dp",)
        resolve_axes("data", axes, self.layout.axes)
        size, index = self.size(*axes) if axes else 1, self._index(axes) or 0
        if plan.dp != size or (isinstance(plan, RankBatch) and plan.data_index != index):
            over = format_sizes({axis: self.layout.sizes[axis] for axis in axes})
            line = f"It divides the samples by {plan.dp}; this mesh has {over or 'no such axes'}."
            raise BatchError("the plan is of another mesh.", line, fix="mesh.batch(...).")
        return index

    def _index(self, axes: tuple[str, ...]) -> int | None:
        """This rank's data coordinate; None outside the mesh."""
        if not self.inside:
            return None
        return self.group_rank(*axes) if axes else 0
