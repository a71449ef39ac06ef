"""Yield a rank's share of a dataset that can only be read in sequence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import TypeVar

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ...core.call import quotes_call
from ...core.data.batch import BatchPlan
from ...core.data.epoch import SampleOrder
from ...core.data.micro_batch import MicroBatch, micro_batches
from ...core.data.sampler_state import VERSION, State, parse_count, read_position, read_state
from ...core.errors import BatchError
from ...launch.torch_internals import iterate_unsplit
from .double_batching import check_not_batched_again

Sample = TypeVar("Sample")


class MicroBatchStream(IterableDataset[list[Sample]]):
    """A common stream of samples of which each rank keeps its own. Created by ``mesh.sampler``.

    Each item is the list of samples of one micro batch, in the order of an unshuffled sampler::

        loader = DataLoader(stream, batch_size=None, collate_fn=default_collate, num_workers=2)

    Every rank and every worker reads the whole stream and drops the samples of others. The dataset
    must therefore yield the same samples in the same order everywhere, and must not split itself by
    rank. A dataset that splits itself by ``get_worker_info`` finds one worker, so it yields all its
    samples. Worker ``w`` of ``W`` yields the micro batches ``w, w + W, ...``, and the
    DataLoader restores the exact order. Samples at the end that do not fill a global batch are
    dropped. A rank holds its share of one step at most. Local.

    Each pass starts from the last loaded state until ``set_epoch`` is called. The caller must pass
    the epoch to a dataset that shuffles itself.

    Args:
        dataset: the common stream.
        plan: the batch plan.
        data_index: the data coordinate of this rank.
        epoch: the number of the first pass.
    """

    def __init__(
        self, dataset: IterableDataset[Sample], plan: BatchPlan, data_index: int, epoch: int
    ) -> None:
        self._dataset = dataset
        self._plan = plan
        self._data_index = data_index
        # The epoch, and the samples of the stream to skip. Workers that live on read them too.
        self._position = torch.tensor([epoch, 0])
        self._position.share_memory_()  # type: ignore[no-untyped-call]

    @property
    def epoch(self) -> int:
        """The number of the current epoch."""
        return int(self._position[0])

    @quotes_call("stream.micro_batches")
    def micro_batches(self, step: int) -> list[MicroBatch]:
        """Return the micro batches of a step, with positions in the stream as ``samples``.

        Args:
            step: from 0; after ``load_state_dict`` counted from the loaded state.

        Raises:
            CoordinateError: if it is not an int of 0 or more.
        """
        return self._micro_batches(self._consumed(parse_count("step", step)))

    def _micro_batches(self, first: int) -> list[MicroBatch]:
        plan = self._plan
        share = (plan.global_batch, plan.micro_batch, plan.dp, self._data_index, first)
        return [*micro_batches(*share)]

    def __iter__(self) -> Iterator[list[Sample]]:
        """Read the stream from its beginning; yield the micro batches of this rank and worker.

        Raises:
            BatchError: if ``DataLoader(stream)`` has a batch size, and would batch them again.
        """
        check_not_batched_again(self)
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        begin = self._consumed(0)
        stream = islice(iterate_unsplit(self._dataset), begin, None)
        yielded = 0  # micro batches of this rank, over all workers
        for first in count(begin, self._plan.global_batch):
            of_rank = self._micro_batches(first)
            of_worker = [m for m in of_rank if (yielded + m.index) % workers == worker]
            yielded += len(of_rank)
            positions = {int(position) for m in of_worker for position in m.samples}
            samples = self._read_step(first, stream, positions)
            if samples is None:
                return
            yield from ([samples[int(position)] for position in m.samples] for m in of_worker)

    def _read_step(
        self, first: int, stream: Iterator[Sample], positions: set[int]
    ) -> dict[int, Sample] | None:
        """Return the samples of a step at some positions; None if the stream ends before."""
        samples, position = {}, -1
        for position, sample in enumerate(islice(stream, self._plan.global_batch), first):
            if position in positions:
                samples[position] = sample
        return samples if position == first + self._plan.global_batch - 1 else None

    @quotes_call("stream.set_epoch")
    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch at its start. An epoch that was loaded from a state is unchanged.

        Args:
            epoch: from 0.

        Raises:
            CoordinateError: if it is not an int of 0 or more.
        """
        number = parse_count("epoch", epoch)
        if number != self.epoch:
            self._position[:] = torch.tensor([number, 0])

    @quotes_call("stream.state_dict")
    def state_dict(self, *, steps: int) -> State:
        """Return the position after some steps for a checkpoint; equal on every rank.

        Args:
            steps: completed steps of this pass. The stream cannot count them, as workers read
                copies of it ahead of the trainer.

        Raises:
            CoordinateError: if it is not an int of 0 or more.
        """
        done = parse_count("steps", steps)
        return {"version": VERSION, "epoch": self.epoch, "consumed": self._consumed(done)}

    @quotes_call("stream.load_state_dict", by_name=("state",))
    def load_state_dict(self, state: State) -> None:
        """Continue from a state of any mesh and plan. Consumed samples are skipped.

        Cost: one read of each skipped sample.

        Args:
            state: the result of ``state_dict``.

        Raises:
            BatchError: if the state is invalid.
        """
        fields = read_state(state, ("version", "epoch", "consumed"))
        self._position[:] = torch.tensor(read_position(fields))

    def _consumed(self, steps: int) -> int:
        return int(self._position[1]) + steps * self._plan.global_batch


def make_stream(
    dataset: IterableDataset[Sample], plan: BatchPlan, data_index: int, order: SampleOrder
) -> MicroBatchStream[Sample]:
    """Return the stream of one data coordinate. See ``mesh.sampler``."""
    if order.shuffle or order.seed != 0:
        fix = "leave out shuffle and seed, and shuffle in the dataset."
        raise BatchError("a stream is read in its own order.", fix=fix)
    if order.tail not in (None, "drop"):
        rule = "The end of a stream is not known before, so only whole steps are read."
        raise BatchError(f"tail is {order.tail!r}.", rule, fix="tail='drop'.")
    return MicroBatchStream(dataset, plan, data_index, parse_count("epoch", order.epoch))
