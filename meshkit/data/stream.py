"""Read a common stream of samples as the micro batches of one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, count, islice, pairwise
from typing import Any, TypeVar

from torch.utils.data import IterableDataset, get_worker_info

from ..call import quotes_call
from ..errors import BatchError
from ..launch.log import LOGGER
from ..launch.torch_program import iterate_unsplit
from ..text import count_noun
from .batch import BatchPlan, MicroBatch
from .draws import Draws, OwnNumbers
from .epoch import VERSION, State, parse_count, read_position, read_state
from .passes import BEGIN, EPOCH, HAS_BEGUN, Batch, Pass, Passes
from .source import check_reader, find_fetcher, plan_facts, prepare_first_batch

FIELDS = ("version", "epoch", "consumed")  # of a state
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
    dropped. Local. A log line says so if an epoch has no global batch.

    A pass ends with its last micro batch, and the next ``iter`` reads the next epoch from its
    beginning, even without ``set_epoch``. The last one is known only if the next one is missing, so
    a micro batch is handed out after the next one has been read. A rank holds its share of two
    steps at most. A pass that is left early starts again from its beginning, unless workers have
    read its last micro batch. The numbers that the dataset draws by ``torch.rand``, ``random`` and
    ``numpy.random`` are equal in each process and worker, and others in each epoch, so it may
    shuffle itself with them. A dataset with generators of its own needs the epoch from the caller.
    The ``collate_fn`` of a DataLoader draws numbers of each micro batch, others on each data
    coordinate, and leaves those of the trainer alone.

    Loaders that divide the micro batches over the ranks again, as accelerate's ``prepare`` does,
    raise a BatchError. If workers read, only the ranks that read raise it, except from a loader
    that calls ``set_epoch``, as that of accelerate does.

    ``iter`` of a loader that ``mesh.loader`` has made begins a pass, and waits for its first batch.
    A plain ``DataLoader`` with workers begins a pass with its first batch: until then ``epoch``,
    ``micro_batches`` and ``state_dict`` describe the pass before it, and a pass without batches may
    be repeated if the loop does not read the ``StopIteration`` at its end.

    Args:
        dataset: the common stream.
        plan: the batch plan of this rank.
        epoch: the number of the first pass.
    """

    first_batch: Callable[[], None] | None = None  # runs before the first batch

    job_seed = 0  # the seed of the random numbers that the dataset draws
    batch_numbers: OwnNumbers  # those with which the last micro batch is collated

    def __init__(self, dataset: IterableDataset[Sample], plan: BatchPlan, epoch: int = 0) -> None:
        self._dataset = dataset
        self._plan = plan
        self._passes = Passes(epoch)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, which a worker that is not forked receives from the trainer."""
        check_reader(self)  # the loader of another library is not in the worker
        return vars(self)

    @property
    def epoch(self) -> int:
        """The number of the current epoch."""
        return self._passes[EPOCH]

    def facts(self) -> dict[str, str]:
        """Return what must be equal on all ranks, as text."""
        return plan_facts(self._plan)

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
        return [*self._plan.cut_step(self._plan.global_batch, first)]

    def __iter__(self) -> Iterator[list[Sample]]:
        """Begin a pass over the current epoch, or over the next epoch if the current one has ended.

        Raises:
            BatchError: if ``DataLoader(stream)`` has a batch size, and would batch them again, or a
                loader of another library would divide them over ranks again.
        """
        check_reader(self)
        if fetcher := find_fetcher(self):
            fetcher.collate_fn = partial(self._collate, fetcher.collate_fn)
        current = self._passes.begin()
        batches = self._read(current)
        if get_worker_info() is None:  # ends an empty pass, of which a loop may read nothing
            batches = chain([next(batches)], batches)
        return self._hand_out(current, batches)

    def _collate(self, collate_fn: Callable[[Any], Any], batch: list[Sample]) -> Any:  # noqa: ANN401
        """Return what a ``collate_fn`` makes of the last micro batch, with the numbers of that."""
        with self.batch_numbers.active():
            return collate_fn(batch)

    def count(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches of the pass that was just begun, and count them for its end."""
        return self._passes.count(batches)

    def _hand_out(
        self, current: Pass, batches: Iterator[tuple[int, list[Sample] | None]]
    ) -> Iterator[list[Sample]]:
        """Yield the micro batches of this worker, and record the last one of the pass."""
        prepare_first_batch(self)
        draws = Draws(self.job_seed, 0, self.epoch)
        for (index, batch), (total, following) in pairwise(batches):
            if following is None and index == total - 1:
                self._passes.end(current, total)
            position = current.begin + index * self._plan.micro_batch * self._plan.dp
            name = f"batch {position} {self._plan.data_index}"
            self.batch_numbers = OwnNumbers(draws, name)
            yield batch  # type: ignore[misc]  # only the last item has none

    def _read(self, current: Pass) -> Iterator[tuple[int, list[Sample] | None]]:
        """Yield the micro batches of this worker with their index in the pass; then their number.

        All workers together have this number, and the last item has no batch.
        """
        stream = iterate_unsplit(self._dataset)
        numbers = OwnNumbers(Draws(self.job_seed, 0, self.epoch), "stream")
        with numbers.active():
            skipped = sum(1 for _ in islice(stream, current.begin))
        if skipped < current.begin and current.number:  # else the pass is that of no worker
            raise BatchError(
                f"the state is of a longer stream: it has consumed {current.begin} samples.",
                f"This stream has {count_noun(skipped, 'sample')} in epoch {self.epoch}.",
                fix="the dataset of the state, or its own state.",
            )
        total = read = 0
        for first in count(current.begin, self._plan.global_batch):
            of_rank = self._micro_batches(first)
            mine = [m for m in of_rank if (total + m.index) % current.workers == current.worker]
            positions = {int(position) for m in mine for position in m.samples}
            with numbers.active():
                samples, read = self._read_step(first, stream, positions)
            if read < self._plan.global_batch:
                break
            for micro in mine:
                yield total + micro.index, [samples[int(place)] for place in micro.samples]
            total += len(of_rank)
        if not total:
            self._passes.end(current, 0)
            if not (current.begin or current.worker):
                line = "epoch %d of the stream has no step: %s do not fill a global batch of %d."
                samples_read = count_noun(read, "sample")
                LOGGER.warning(line, self.epoch, samples_read, self._plan.global_batch)
        yield total, None

    def _read_step(
        self, first: int, stream: Iterator[Sample], positions: set[int]
    ) -> tuple[dict[int, Sample], int]:
        """Return the samples of a step at some positions, and the number of all that were read."""
        samples, read = {}, 0
        for read, sample in enumerate(islice(stream, self._plan.global_batch), 1):
            if first + read - 1 in positions:
                samples[first + read - 1] = sample
        return samples, read

    @quotes_call("stream.set_epoch")
    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch at its start, as ``DistributedSampler.set_epoch`` does. Optional.

        An epoch that was loaded from a state keeps its position until it is read.

        Raises:
            BatchError: if a loader of another library would divide micro batches over ranks again.
        """
        check_reader(self)
        number = parse_count("epoch", epoch)
        if self._passes[HAS_BEGUN] or number != self.epoch:
            self._passes.set(number, 0)

    @quotes_call("stream.state_dict")
    def state_dict(self, *, steps: int | None = None) -> State:
        """Return the position after some steps for a checkpoint; equal on every rank.

        The stream cannot count the steps, as workers read copies of it ahead of the trainer. So
        torchdata's ``StatefulDataLoader``, which calls it without them, cannot save a stream.

        Raises:
            BatchError: without ``steps``.
        """
        if steps is None:
            raise BatchError(
                "the stream does not know how many steps are trained.",
                "A StatefulDataLoader asks without steps, and workers read ahead of the trainer.",
                fix="DataLoader of torch, or mesh.loader, and stream.state_dict(steps=...).",
            )
        done = parse_count("steps", steps)
        return {"version": VERSION, "epoch": self.epoch, "consumed": self._consumed(done)}

    @quotes_call("stream.load_state_dict", by_name=("state",))
    def load_state_dict(self, state: State) -> None:
        """Continue from a state of any mesh and plan. Cost: one read of each consumed sample.

        Raises:
            BatchError: if the state is invalid, or that of a sampler; by the first batch, if the
                stream ends before that position.
        """
        fields = read_state(state, FIELDS)
        if others := [name for name in fields if name not in FIELDS]:
            line = f"It has {', '.join(others)}, as that of a dataset which is read by index."
            fix = "the result of stream.state_dict(steps=...)."
            raise BatchError("the state is not that of a stream.", line, fix=fix)
        self._passes.set(*read_position(fields))

    def _consumed(self, steps: int) -> int:
        return self._passes[BEGIN] + steps * self._plan.global_batch
