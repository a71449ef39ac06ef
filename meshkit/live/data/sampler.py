"""The dataset indices of a rank, micro batch after micro batch, for torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from dataclasses import replace
from typing import Any

from torch.utils.data import IterableDataset, Sampler

from ...core.batch import BatchPlan
from ...core.call import Call, Word
from ...core.epoch import Epoch, checked_epoch
from ...core.errors import BatchError, told
from ...core.integers import integer
from ...core.micro import MicroBatch
from ...core.resume import State, checked_count, resumed, state
from ...core.words import article
from .stream import MicroBatchStream, check_stream


class MicroBatchSampler(Sampler[list[int]]):
    """The micro batches of one rank, for ``DataLoader(dataset, batch_sampler=sampler)``.

    Each item is the dataset indices of one micro batch; they come micro step after micro step, step
    after step, on every rank as many. The order is a function of seed and epoch, computed where it
    is read: no array of all samples. Local; nothing communicates. Made by ``mesh.sampler``.

    A pass that has handed out its last micro batch is over, and the next ``iter`` reads the next
    epoch: without ``set_epoch`` no order is repeated. One left early begins again where it began,
    unless workers were handed its last micro batch.
    ``steps``, ``len`` and ``micro_batches`` speak of the pass under way until then, as a DataLoader
    with workers asks for all indices well before the last batch is used. So begin a pass first::

        batches = iter(loader)
        for step in range(sampler.steps):
            for micro, batch in zip(sampler.micro_batches(step), batches):
                (loss_of(batch) * micro.weight).backward()

    torchdata's ``StatefulDataLoader`` finds ``state_dict`` here and calls it. Seen with 0.11, with
    0 and 2 workers: a state of the loader taken between steps resumes exactly, with as many
    workers, which it asks for; one taken inside a step begins that step again; one taken after the
    end of a pass, without workers, reads an empty pass before the next. On another mesh load the
    sampler's own state.

    Args:
        epoch: the first pass, checked.
    """

    def __init__(self, epoch: Epoch) -> None:
        self._now = epoch  # a new object for each pass
        self._done = 0  # whole steps of it handed out
        self._begun = False
        self._over = False

    @property
    def epoch(self) -> int:
        """The number of the epoch under way."""
        return self._now.number

    @property
    def steps(self) -> int:
        """Optimizer steps in this pass: those of an epoch, or what a loaded state leaves of it."""
        return self._now.steps

    def __len__(self) -> int:
        """Micro batches in this pass; the same on every rank."""
        return self._now.num_micro_batches

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """The micro batches of a step of this pass, as ``iter`` hands them out. O(their samples).

        Args:
            step: from 0 to ``steps - 1``; after ``load_state_dict`` counted from where that stands.

        Returns:
            Those of this rank, fillers included, with dataset indices as ``samples``, and weights
            by which gradients averaged over the data coordinates add up to the mean of the step.

        Raises:
            CoordinateError: where the pass has no such step.
        """
        return self._now.micro_batches(step)

    def __iter__(self) -> Iterator[list[int]]:
        """Begin a pass: the epoch set or loaded, or where that is over, the next."""
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
        if self._now is now:  # no later pass has begun
            self._begun, self._done, self._over = True, done, done == now.steps

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch at its start, as ``DistributedSampler.set_epoch`` does. Not needed.

        The epoch that a state was loaded for keeps its position until it is read.

        Args:
            epoch: from 0.

        Raises:
            CoordinateError: where it is no int of 0 or more.
        """
        number = checked_count(Call("sampler.set_epoch", (epoch,)), "epoch", epoch)
        if self._begun or number != self.epoch:
            self._begin(replace(self._now, number=number, begin=0))

    def state_dict(self, *, steps: int | None = None) -> State:
        """Where this pass stands, in ints, bools and str: for a checkpoint. The same on every rank.

        ``consumed`` counts samples of the epoch's one global order, so that the state means the
        same on every mesh. A DataLoader with workers reads ahead of the trainer, so the sampler
        cannot know which micro batches were trained on: say how many steps are done.

        Args:
            steps: whole steps done in this pass; None means those that were handed out, which is
                right without workers only.

        Raises:
            CoordinateError: where the pass has fewer steps.
        """
        if steps is None:
            return state(self._now, self._done)
        call = Call("sampler.state_dict", kwargs={"steps": steps})
        return state(self._now, checked_count(call, "steps", steps, self.steps))

    def load_state_dict(self, said: State) -> None:
        """Read on where a state stands, of whatever mesh and plan: the next pass is the rest.

        Steps are then counted from there, also where ``consumed`` is no multiple of this plan's
        global batch. Of a state taken at the end of an epoch nothing is left: the next pass is
        empty, and the one after it the next epoch.

        Args:
            said: what ``state_dict`` gave.

        Raises:
            BatchError: for a state that cannot be read, or of another order of samples: another
                length or shuffle, or with shuffle another seed. Nothing is changed then.
        """
        self._begin(resumed(Call("sampler.load_state_dict", (Word("state"),)), self._now, said))

    def _begin(self, epoch: Epoch) -> None:
        self._now, self._done, self._begun, self._over = epoch, 0, False, False


def length_of(call: Call, source: object) -> int:
    """How many samples there are: the number given, or the ``len`` of a dataset.

    Raises:
        BatchError: for a dataset without ``len``.
    """
    number = None if isinstance(source, Sized) else integer(source)  # a tensor of one is both
    if number is not None:
        return number
    if isinstance(source, Sized):
        return len(source)
    text = told(
        f"{call}: {article(type(source).__name__)} has no len().",
        "What is read by index must say how many samples it has.",
        fix="the number of samples, or a torch.utils.data.IterableDataset.",
    )
    raise BatchError(text)


def sampler_call(dataset: object, order: Mapping[str, object]) -> Call:
    """``mesh.sampler`` as it was written, without what was left at its default."""
    number = integer(dataset)
    said = {name: value for name, value in order.items() if value not in (False, 0, None)}
    return Call("mesh.sampler", (Word("dataset") if number is None else number, Word("plan")), said)


def make_sampler(
    call: Call, dataset: object, plan: BatchPlan, data_index: int, order: Mapping[str, Any]
) -> MicroBatchSampler | MicroBatchStream[Any]:
    """The micro batches of one data coordinate. See :meth:`meshkit.Mesh.sampler`.

    Args:
        call: the call to quote.
        dataset: a dataset, its length, or an ``IterableDataset``.
        plan: how a step is cut.
        data_index: which data coordinate this is.
        order: ``shuffle``, ``seed``, ``epoch`` and ``tail``.

    Raises:
        BatchError: for what cannot be.
    """
    if isinstance(dataset, IterableDataset):
        check_stream(call, order["shuffle"], order["seed"], order["tail"])
        return MicroBatchStream(
            dataset, plan, data_index, checked_count(call, "epoch", order["epoch"])
        )
    tail = "keep" if order["tail"] is None else order["tail"]
    numbers = (order["shuffle"], order["seed"], tail, order["epoch"])
    return MicroBatchSampler(
        checked_epoch(call, Epoch(length_of(call, dataset), plan, data_index, *numbers))
    )
