"""A rank's share of a dataset that can only be read from its beginning to its end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import TypeVar

from torch.utils.data import IterableDataset, get_worker_info

from ...core.batch import BatchPlan
from ...core.call import Call, Word
from ...core.errors import BatchError, told
from ...core.micro import MicroBatch, micro_batches
from ...core.resume import VERSION, State, checked_count, position, read

Sample = TypeVar("Sample")


class MicroBatchStream(IterableDataset[list[Sample]]):
    """One common stream, of which each rank keeps its own samples. Made by ``mesh.sampler``.

    Each item is the list of samples of one micro batch, in the order of a sampler without shuffle::

        loader = DataLoader(stream, batch_size=None, collate_fn=default_collate, num_workers=2)

    Every rank, and every worker, reads the whole stream and drops what others own, so the dataset
    must give the same samples in the same order everywhere: it must not split itself by rank or by
    worker. Worker ``w`` of ``W`` yields the micro batches ``w, w + W, ...``, which the DataLoader
    puts together again in the exact order. Only whole steps are yielded: samples at the end that do
    not fill a global batch are dropped. A rank holds its share of one step at most. Local.

    Every pass begins where the last loaded state stands, or at the start of the epoch of the last
    ``set_epoch``: without it, what a loaded state skipped is skipped in every pass. A
    dataset that shuffles itself must be told of the epoch by the caller.

    Args:
        dataset: the common stream.
        plan: how a step is cut.
        data_index: which data coordinate this is.
        epoch: the number of the first pass.
    """

    def __init__(
        self, dataset: IterableDataset[Sample], plan: BatchPlan, data_index: int, epoch: int
    ) -> None:
        self._dataset = dataset
        self._plan = plan
        self._data_index = data_index
        self._epoch = epoch
        self._begin = 0  # samples of the stream to skip

    @property
    def epoch(self) -> int:
        """The number of the pass."""
        return self._epoch

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """The micro batches of a step, with positions in the stream as ``samples``.

        Args:
            step: from 0; after ``load_state_dict`` counted from where that stands.

        Raises:
            CoordinateError: where it is no int of 0 or more.
        """
        done = checked_count(Call("stream.micro_batches", (step,)), "step", step)
        plan, first = self._plan, self._consumed(done)
        share = (plan.global_batch, plan.micro_batch, plan.dp, self._data_index, first)
        return [*micro_batches(*share)]

    def __iter__(self) -> Iterator[list[Sample]]:
        """Read the stream from its beginning, and yield what is this rank's and this worker's."""
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        stream = islice(self._dataset, self._begin, None)
        handed = 0  # micro batches of this rank, over all workers
        for step in count():
            all_mine = self.micro_batches(step)
            mine = [m for m in all_mine if (handed + m.index) % workers == worker]
            handed += len(all_mine)
            kept = self._kept(step, stream, {int(place) for m in mine for place in m.samples})
            if kept is None:
                return
            yield from ([kept[int(place)] for place in m.samples] for m in mine)

    def _kept(self, step: int, stream: Iterator[Sample], own: set[int]) -> dict[int, Sample] | None:
        """The samples of a step at some positions; None where the stream ends inside the step."""
        first, kept, place = self._consumed(step), {}, -1
        for place, sample in enumerate(islice(stream, self._plan.global_batch), first):
            if place in own:
                kept[place] = sample
        return kept if place == first + self._plan.global_batch - 1 else None

    def set_epoch(self, epoch: int) -> None:
        """Begin another pass at its start. The pass that a state was loaded for is left as it is.

        Args:
            epoch: from 0.

        Raises:
            CoordinateError: where it is no int of 0 or more.
        """
        number = checked_count(Call("stream.set_epoch", (epoch,)), "epoch", epoch)
        if number != self._epoch:
            self._epoch, self._begin = number, 0

    def state_dict(self, *, steps: int) -> State:
        """Where the pass stands after so many steps: for a checkpoint. The same on every rank.

        Args:
            steps: whole steps done in this pass. The stream cannot count them: workers read copies
                of it, ahead of the trainer.

        Raises:
            CoordinateError: where it is no int of 0 or more.
        """
        done = checked_count(Call("stream.state_dict", kwargs={"steps": steps}), "steps", steps)
        return {"version": VERSION, "epoch": self._epoch, "consumed": self._consumed(done)}

    def load_state_dict(self, said: State) -> None:
        """Read on where a state stands, of whatever mesh and plan. What was consumed is skipped.

        Skipping reads it once more: the cost is that of the samples before.

        Args:
            said: what ``state_dict`` gave.

        Raises:
            BatchError: for a state that cannot be read.
        """
        call = Call("stream.load_state_dict", (Word("state"),))
        found = read(call, said, ("version", "epoch", "consumed"))
        self._epoch, self._begin = position(call, found)

    def _consumed(self, steps: int) -> int:
        return self._begin + steps * self._plan.global_batch


def check_stream(call: Call, shuffle: object, seed: object, tail: object) -> None:
    """Refuse what a stream cannot do.

    Raises:
        BatchError: for a shuffle or the seed of one, and for a tail that is not dropped.
    """
    if shuffle or seed != 0:
        line = f"{call}: a stream is read in its own order."
        raise BatchError(
            told(line, fix=f"{call.but(shuffle=None, seed=None)}, and shuffle in the dataset.")
        )
    if tail not in (None, "drop"):
        line = f"{call}: tail is {tail!r}."
        whole = "Where a stream ends is not known before, so only whole steps are read."
        raise BatchError(told(line, whole, fix=f"{call.but(tail='drop')}."))
