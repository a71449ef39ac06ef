"""Yield the dataset indices of a rank, one micro batch at a time, for torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset, Sampler

from ...core.call import Call, Verbatim, public
from ...core.data.batch import BatchPlan
from ...core.data.epoch import Epoch, checked_epoch
from ...core.data.micro_batch import MicroBatch
from ...core.data.sampler_state import State, checked_count, resume_epoch, state
from ...core.errors import BatchError
from ...core.text import article
from ...core.validate import parse_integer
from .stream import MicroBatchStream, check_stream


class MicroBatchSampler(Sampler[list[int]]):
    """The micro batches of one rank, for ``DataLoader(dataset, batch_sampler=sampler)``.

    Each item is the list of dataset indices of one micro batch, in the order of steps and micro
    steps. Every rank yields equally many. The order is a function of seed and epoch, computed on
    demand without an array of all samples. Local. Created by ``mesh.sampler``.

    A pass ends with its last micro batch, and the next ``iter`` reads the next epoch. No order is
    repeated, even without ``set_epoch``. A pass that is left early starts again from its beginning,
    unless workers have read its last micro batch.

    ``steps``, ``len`` and ``micro_batches`` describe the current pass until the next ``iter``,
    since a DataLoader with workers reads all indices well before the last batch is used. So begin a
    pass first::

        batches = iter(loader)
        for step in range(sampler.steps):
            for micro, batch in zip(sampler.micro_batches(step), batches):
                (loss_of(batch) * micro.weight).backward()

    torchdata's ``StatefulDataLoader`` calls ``state_dict``. Tested with version 0.11 and 0 and 2
    workers: a loader state taken between steps resumes exactly, with the same number of workers. A
    state taken inside a step repeats that step. A state taken after the end of a pass, without
    workers, reads an empty pass before the next. On another mesh, load the sampler's own state.

    Args:
        epoch: the first pass, validated.
    """

    def __init__(self, epoch: Epoch) -> None:
        self._now = epoch  # a new object for each pass
        self._done = 0  # whole steps of it handed out
        self._begun = False
        self._over = False

    @property
    def epoch(self) -> int:
        """The number of the current epoch."""
        return self._now.number

    @property
    def steps(self) -> int:
        """Optimizer steps in this pass: all of an epoch, or the rest after a loaded state."""
        return self._now.steps

    def __len__(self) -> int:
        """Return the number of micro batches in this pass; equal on every rank."""
        return self._now.num_micro_batches

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """Return the micro batches of a step of this pass, as ``iter`` yields them.

        Cost: O(samples of the step).

        Args:
            step: from 0 to ``steps - 1``; after ``load_state_dict`` counted from the loaded state.

        Returns:
            The micro batches of this rank, fillers included, with dataset indices as ``samples``.
            Weighted gradients, averaged over the data coordinates, add up to the mean of the step.

        Raises:
            CoordinateError: if the pass has no such step.
        """
        return self._now.micro_batches(step)

    def __iter__(self) -> Iterator[list[int]]:
        """Begin a pass over the current epoch, or over the next one if that has ended."""
        now = self._now
        self._now = replace(now, number=now.number + 1, begin=0) if self._over else replace(now)
        self._done, self._over = 0, False
        return self._handed(self._now)

    def _handed(self, now: Epoch) -> Iterator[list[int]]:
        self._note(now, 0)
        for step in range(now.steps):
            *others, last = (micro.samples.tolist() for micro in now.micro_batches(step))
            yield from others
            self._note(now, step + 1)
            yield last

    def _note(self, now: Epoch, done: int) -> None:
        if self._now is now:  # unless a later pass has begun
            self._begun, self._done, self._over = True, done, done == now.steps

    @public("sampler.set_epoch")
    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch at its start, as ``DistributedSampler.set_epoch`` does. Optional.

        An epoch that was loaded from a state keeps its position until it is read.

        Args:
            epoch: from 0.

        Raises:
            CoordinateError: if it is not an int of 0 or more.
        """
        number = checked_count("epoch", epoch)
        if self._begun or number != self.epoch:
            self._begin(replace(self._now, number=number, begin=0))

    @public("sampler.state_dict")
    def state_dict(self, *, steps: int | None = None) -> State:
        """Return the position in this pass for a checkpoint; equal on every rank.

        It holds ints, bools and strings. ``consumed`` counts samples of the global order of the
        epoch, so the state is valid on every mesh. A DataLoader with workers reads ahead, and the
        sampler cannot know the trained micro batches. Pass the number of completed steps then.

        Args:
            steps: completed steps of this pass. None means the steps that were yielded, which is
                correct only without workers.

        Raises:
            CoordinateError: if the pass has fewer steps.
        """
        if steps is None:
            return state(self._now, self._done)
        return state(self._now, checked_count("steps", steps, self.steps))

    @public("sampler.load_state_dict")
    def load_state_dict(self, state: State) -> None:
        """Continue from a state of any mesh and plan: the next pass is the rest of its epoch.

        Steps are then counted from that position, even if ``consumed`` is not a multiple of this
        plan's global batch. After a state from the end of an epoch, the next pass is empty, and the
        pass after it is the next epoch.

        Args:
            state: the result of ``state_dict``.

        Raises:
            BatchError: if the state is invalid, or of another order of samples: another length or
                shuffle, or with shuffle another seed. Nothing is changed then.
        """
        self._begin(resume_epoch(self._now, state))

    def _begin(self, epoch: Epoch) -> None:
        self._now, self._done, self._begun, self._over = epoch, 0, False, False


def length_of(source: object) -> int:
    """Return the number of samples: the number given, or the ``len`` of a dataset.

    Raises:
        BatchError: if the dataset has no ``len``.
    """
    number = None if isinstance(source, Sized) else parse_integer(source)  # a tensor of one is both
    if number is not None:
        return number
    if isinstance(source, Sized):
        return len(source)
    raise BatchError(
        f"{article(type(source).__name__)} has no len().",
        "What is read by index must say how many samples it has.",
        fix="the number of samples, or a torch.utils.data.IterableDataset.",
    )


def sampler_call(dataset: object, order: Mapping[str, object]) -> Call:
    """Return the call of ``mesh.sampler`` as written, without defaults."""
    number = parse_integer(dataset)
    said = {name: value for name, value in order.items() if value not in (False, 0, None)}
    return Call(
        "mesh.sampler", (Verbatim("dataset") if number is None else number, Verbatim("plan")), said
    )


def make_sampler(
    dataset: object, plan: BatchPlan, data_index: int, order: Mapping[str, Any]
) -> MicroBatchSampler | MicroBatchStream[Any]:
    """Return the sampler or stream of one data coordinate. See :meth:`meshkit.Mesh.sampler`.

    Args:
        dataset: a dataset, its length, or an ``IterableDataset``.
        plan: the batch plan.
        data_index: the data coordinate of this rank.
        order: ``shuffle``, ``seed``, ``epoch`` and ``tail``.

    Raises:
        BatchError: if a value is invalid.
    """
    if isinstance(dataset, IterableDataset):
        check_stream(order["shuffle"], order["seed"], order["tail"])
        return MicroBatchStream(dataset, plan, data_index, checked_count("epoch", order["epoch"]))
    tail = "keep" if order["tail"] is None else order["tail"]
    numbers = (order["shuffle"], order["seed"], tail, order["epoch"])
    return MicroBatchSampler(checked_epoch(Epoch(length_of(dataset), plan, data_index, *numbers)))
