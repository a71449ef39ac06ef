"""Read a dataset as the micro batches of one rank, alone or in torch's DataLoader.

Ranks of one data coordinate read the same samples, and data coordinates read different ones. A
shuffled order is the same for every version of torch and numpy. With ``tail="pad"`` the samples
that fill the last step count twice. No array of all samples is made, except of ``order``.

An order of the user serves weights and grouping by length too, and each rank takes its share of it.
Each epoch reads the order anew. First its ``set_epoch(epoch)`` is called, if it has one. Then the
seed and the epoch seed its attribute ``generator`` and the global generators of torch, numpy and
Python.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, TypeVar, cast

from torch.nn import Module
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from ..call import parse_integer, quotes_call
from ..errors import BatchError
from ..launch.torch_program import find_reader
from ..text import Ints, article
from .batch import BatchPlan, MicroBatch
from .draws import Draws, draw_by_position
from .epoch import Epoch, SampleOrder, State, parse_count
from .order import OwnOrder, check_again, check_kind
from .source import check_reader, plan_facts, prepare_first_batch
from .stream import MicroBatchStream

Sample = TypeVar("Sample")
Batch = TypeVar("Batch")

READ_BY_KEYS = "It is read by keys.", "one of its values, or list(values)."
LABELS_FIX = "a Dataset that reads table.iloc[index]; or series.tolist()."
# kinds of objects that have a length but no samples by number, the reason, and what to give
NO_DATASETS: tuple[tuple[Any, str, str], ...] = (
    (DataLoader, "It yields batches.", "its dataset: loader.dataset."),
    (Sampler, "It yields indices.", "the dataset, and order=sampler for their order."),
    (MicroBatchStream, "It is the share of one rank already.", "the dataset that it reads."),
    ((str, bytes, PathLike), "It is a name, or text.", "the dataset that it names."),
    ((dict, UserDict), *READ_BY_KEYS),
    (
        tuple,
        "Its items may be the fields of one sample, or whole tensors.",
        "TensorDataset(*tensors), or list(samples).",
    ),
    (Module, "It is a model.", "the data."),
)


class MicroBatchSampler(Sampler[list[int]]):
    """The micro batches of one rank, for ``DataLoader(dataset, batch_sampler=sampler)``.

    Each item is the list of dataset indices of one micro batch, in the order of steps and micro
    steps. Every rank yields the same number of micro batches. The order is a function of seed and
    epoch, computed on demand without an array of all samples. Local. Created by ``mesh.sampler``.

    A pass ends with its last micro batch, and the next ``iter`` reads the next epoch. No order is
    repeated, even without ``set_epoch``. A pass that is left early starts again from its beginning;
    in another loader than that of ``mesh.loader`` not if workers have read its last micro batch.

    ``steps``, ``len`` and ``micro_batches`` describe the current pass until the next ``iter``,
    since a DataLoader with workers reads all indices well before the last batch is used. So begin a
    pass first::

        batches = iter(loader)
        for step in range(sampler.steps):
            for micro, batch in zip(sampler.micro_batches(step), batches):
                (loss_of(batch) * micro.weight).backward()

    While a DataLoader reads a sample, ``torch.rand``, ``random`` and ``numpy.random`` draw numbers
    that depend on the seeds, the epoch and the position of the sample in its order only, with any
    number of workers and on any mesh. A sample that comes twice draws other numbers each time.
    Afterwards the numbers of the trainer go on, as if the dataset had drawn none.
    Other samplers around this one change nothing, if they hand on whole micro batches. The current
    accelerator's generator follows the position too, in a process that has used it. A
    ``__getitems__`` of your own that looks at all indices before it reads draws with the numbers of
    the last sample, which depend on the micro batch too.

    The micro batches are the share of one rank: ``accelerator.prepare(loader)`` and other wrappers
    that divide them over the ranks again raise a BatchError.

    torchdata's ``StatefulDataLoader`` calls ``state_dict``, tested with torchdata 0.11 and 0 or 2
    workers. A loader state taken between steps resumes exactly, with the same number of workers. A
    state taken inside a step repeats that step. After a state taken at the end of a pass, without
    workers, the first pass is empty. On another mesh, load the sampler's own state.
    """

    first_batch: Callable[[], None] | None = None  # runs before the first batch

    job_seed = 0  # the seed of the random numbers that samples draw

    def __init__(self, epoch: Epoch) -> None:
        self._pass = epoch  # a new object for each pass
        self._num_done = 0  # whole steps of the pass that were yielded
        self._counted: Epoch | None = None  # the pass of which a loader counts its batches
        self._count = 0  # those that the trainer got
        self._has_begun = False
        self._has_ended = False

    @property
    def epoch(self) -> int:
        """The number of the current epoch."""
        return self._pass.number

    @property
    def steps(self) -> int:
        """Optimizer steps in this pass: all of an epoch, or the rest after a loaded state.

        ``iter`` begins the next pass, so read it after that.
        """
        self._end_if_empty()
        return self._pass.steps

    def __len__(self) -> int:
        """Return the number of micro batches in this pass; equal on every rank."""
        self._end_if_empty()
        return self._pass.num_micro_batches

    def _end_if_empty(self) -> None:
        """End an empty pass that was begun: a loop over its steps calls ``next`` never.

        ``__iter__`` cannot end it, since a DataLoader with workers calls ``iter`` twice a pass.
        """
        if self._has_begun and not self._pass.steps:
            self._has_ended = True

    def facts(self) -> dict[str, str]:
        """Return what must be equal on all ranks, as text."""
        epoch, facts = self._pass, plan_facts(self._pass.plan)
        facts |= {"length": str(epoch.length), "shuffle": str(epoch.shuffle), "tail": epoch.tail}
        facts |= {"seed": str(epoch.seed)} if epoch.shuffle or epoch.draw else {}
        return facts | ({"order": epoch.digest} if epoch.draw else {})

    @quotes_call("sampler.micro_batches")
    def micro_batches(self, step: int) -> list[MicroBatch]:
        """Return the micro batches of a step of this pass, as ``iter`` yields them.

        Their samples are dataset indices. Weighted gradients, averaged over the data coordinates,
        add up to the mean of the step. Cost: O(samples of the step).

        Args:
            step: from 0 to ``steps - 1``; after ``load_state_dict`` counted from the loaded state.

        Raises:
            CoordinateError: if the pass has no such step.
        """
        return self._pass.micro_batches(step)

    def __iter__(self) -> Iterator[list[int]]:
        """Begin a pass over the current epoch, or over the next epoch if the current one has ended.

        Raises:
            BatchError: if ``DataLoader(sampler=...)`` would batch the micro batches again, or a
                sampler of another library would divide them over ranks again.
        """
        check_reader(self)
        last = self._pass
        was_read = self._counted is not last or self._count >= last.num_micro_batches
        has_ended = self._has_ended and was_read
        self._pass = last.at(last.number + 1) if has_ended else replace(last)
        self._num_done, self._has_begun, self._has_ended = 0, True, False
        draws = Draws(self.job_seed, self._pass.seed, self.epoch)
        return draw_by_position(self._read(self._pass), find_reader(), draws)

    def count(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of the pass that was just begun, and count them for its end.

        Workers read ahead, so a pass that is left early ends only for them.
        """
        self._counted, self._count = self._pass, 0
        return CountedBatches(batches, partial(self._count_one, self._pass))

    def _count_one(self, epoch: Epoch) -> None:
        if self._counted is epoch:
            self._count += 1

    def _read(self, epoch: Epoch) -> Iterator[tuple[int, list[int]]]:
        """Yield the first position and the indices of each micro batch, and record whole steps."""
        self._record(epoch, 0)
        prepare_first_batch(self, in_each_pass=epoch.draw is not None)
        for step in range(epoch.steps):
            indices = [micro.samples.tolist() for micro in epoch.micro_batches(step)]
            firsts = [int(micro.samples[0]) for micro in epoch.positions(step)]
            *others, last = zip(firsts, indices, strict=True)
            yield from others
            self._record(epoch, step + 1)
            yield last

    def _record(self, epoch: Epoch, num_done: int) -> None:
        if self._pass is epoch:  # unless a later pass has begun
            self._has_begun, self._num_done = True, num_done
            self._has_ended = num_done == epoch.steps

    @quotes_call("sampler.set_epoch")
    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch at its start, as ``DistributedSampler.set_epoch`` does. Optional.

        An epoch that was loaded from a state keeps its position until it is read.
        """
        number = parse_count("epoch", epoch)
        if self._has_begun or number != self.epoch:
            self._begin(self._pass.at(number))

    @quotes_call("sampler.state_dict")
    def state_dict(self, *, steps: int | None = None) -> State:
        """Return the position in this pass for a checkpoint; equal on every rank.

        The state holds ints, bools and strings. ``consumed`` counts samples of the global order of
        the epoch, so the state is valid on every mesh. A DataLoader with workers reads ahead, and
        the sampler cannot know the trained micro batches. With workers, pass ``steps``.

        Args:
            steps: completed steps of this pass. None means the steps that were yielded, which is
                correct only without workers.

        Raises:
            CoordinateError: if the pass has fewer steps.
        """
        if steps is None:
            return self._pass.state(self._num_done)
        return self._pass.state(parse_count("steps", steps, self._pass.steps))

    @quotes_call("sampler.load_state_dict", by_name=("state",))
    def load_state_dict(self, state: State) -> None:
        """Continue from a state of any mesh and plan: the next pass is the rest of its epoch.

        Steps are then counted from that position, even if ``consumed`` is not a multiple of this
        plan's global batch. After a state from the end of an epoch, the next pass is empty, and the
        pass after it is the next epoch.

        Raises:
            BatchError: if the state is invalid, or has another order of samples: another length,
                another ``shuffle``, or another seed of a shuffled order. The sampler is unchanged.
        """
        self._begin(self._pass.resume(state))

    def _begin(self, epoch: Epoch) -> None:
        self._pass, self._num_done = epoch, 0
        self._has_begun, self._has_ended = False, False


class CountedBatches(Iterator[Batch]):
    """The batches of one pass, as many as those of torch's iterator, each of them counted."""

    def __init__(self, batches: Iterator[Batch], count: Callable[[], None]) -> None:
        self._batches, self._count = batches, count

    def __next__(self) -> Batch:
        batch = next(self._batches)
        self._count()
        return batch

    def __len__(self) -> int:
        return len(cast("Sized", self._batches))


def make_source(
    dataset: IterableDataset[Sample] | Sized | int, plan: BatchPlan, order: SampleOrder
) -> MicroBatchSampler | MicroBatchStream[Sample]:
    """Return the sampler or the stream of a rank's plan. See ``mesh.sampler``."""
    length = count_samples(dataset)
    if length is None:
        return make_stream(cast("IterableDataset[Sample]", dataset), plan, order)
    if order.order is None:
        return MicroBatchSampler(Epoch.of(length, plan, order))
    if order.shuffle is not False:
        line = "shuffle=True and order= both decide the order."
        raise BatchError(line, fix="leave out shuffle; RandomSampler(data) is an order.")
    check_kind(order.order)
    epoch = Epoch.of(length, plan, order, draw := OwnOrder(order.order, length, order.seed))
    check_again(order.order, cast("Ints", epoch.indices), draw(epoch.number))
    return MicroBatchSampler(epoch)


def make_stream(
    dataset: IterableDataset[Sample], plan: BatchPlan, order: SampleOrder
) -> MicroBatchStream[Sample]:
    """Return the stream of a rank's plan, which has no other order than its own."""
    changes = {"seed": "leave out seed"} if order.seed != 0 else {}
    if order.shuffle:
        changes["shuffle"] = "leave out shuffle, and shuffle in the dataset"
    if order.order is not None:
        changes["order"] = "leave out order, and yield the samples in that order in the dataset"
    if changes:
        line = "Its samples have no numbers, so no other order can be read."
        fix = f"{'; '.join(changes.values())}."
        raise BatchError("a stream is read in its own order.", line, fix=fix)
    if order.tail not in (None, "drop"):
        rule = "The end of a stream is not known before, so only whole steps are read."
        raise BatchError(f"tail is {order.tail!r}.", rule, fix="tail='drop'.")
    return MicroBatchStream(dataset, plan, parse_count("epoch", order.epoch))


def count_samples(dataset: object) -> int | None:
    """Return the samples of a dataset that is read by index; None for an iterable dataset.

    Raises:
        BatchError: if it is no dataset, even if it has a length, with a fix for each kind.
    """
    faults = [(line, fix) for kinds, line, fix in NO_DATASETS if isinstance(dataset, kinds)]
    if isinstance(dataset, Mapping) and all(key != 0 for key in dataset):
        faults.append(READ_BY_KEYS)
    # a table or a series of pandas, and no dataset around one
    if hasattr(type(dataset), "iloc") and not isinstance(dataset, Dataset):
        faults.append(("It is read by labels.", LABELS_FIX))
    if not faults:
        if isinstance(dataset, IterableDataset):
            return None
        is_scalar = getattr(dataset, "shape", None) == ()  # a tensor without a length
        # samples before the number, since a tensor of one element is both
        if isinstance(dataset, Sized) and hasattr(dataset, "__getitem__") and not is_scalar:
            return len(dataset)
        if (length := parse_integer(dataset)) is not None:
            return length
        line = "A dataset that is read by index has a len() and samples from 0 to len() - 1."
        fix = "a dataset, the number of samples, or a torch.utils.data.IterableDataset."
        faults.append((line, fix))
    line, fix = faults[0]
    raise BatchError(f"{article(type(dataset).__name__)} is no dataset.", line, fix=fix)
