"""Read a dataset through this rank's sampler, or through torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import chain, islice
from typing import Any, TypeVar, cast, overload

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    default_collate,
)

from ..call import quotes_call
from ..errors import BatchError
from ..groups.live_mesh import LiveMesh
from ..text import article
from .batch import BatchPlan
from .epoch import SampleOrder
from .first_batch import FirstBatch
from .micro_batches import plan_of_rank
from .rng import base_seed
from .sampler import MicroBatchSampler, make_source
from .stream import MicroBatchStream

Sample = TypeVar("Sample")

DECIDED = ("batch_size", "sampler", "batch_sampler", "drop_last")  # options of DataLoader


@overload
def sampler(  # noqa: D418
    self: LiveMesh,
    dataset: IterableDataset[Sample],
    plan: BatchPlan,
    *,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    tail: str | None = None,
) -> MicroBatchStream[Sample]:
    """Return the stream of an iterable dataset."""


@overload
def sampler(  # noqa: D418
    self: LiveMesh,
    dataset: Sized | int,
    plan: BatchPlan,
    *,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    tail: str | None = None,
    order: Iterable[int] | None = None,
) -> MicroBatchSampler:
    """Return the sampler of a dataset that is read by index."""


@quotes_call("mesh.sampler", by_name=("plan",))
def sampler(  # noqa: D417  # self
    self: LiveMesh,
    dataset: IterableDataset[Any] | Sized | int,
    plan: BatchPlan,
    *,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    tail: str | None = None,
    order: Iterable[int] | None = None,
) -> MicroBatchSampler | MicroBatchStream[Any]:
    """Return this rank's micro batches of a dataset, for torch's DataLoader. Local.

    There is one global order of samples for any mesh, so a state that is saved on one mesh
    resumes on another. :mod:`meshkit.data.sampler` and :mod:`meshkit.data.first_batch` say how.

    Args:
        dataset: a dataset that is read by index, or its number of samples; or an
            ``IterableDataset``.
        plan: the result of :meth:`batch`; or a plain :class:`meshkit.BatchPlan` over the data
            axes of the mesh.
        shuffle: whether each epoch has its own order, by ``seed`` and its number. Not for a
            stream.
        seed: any int, the same on every rank.
        epoch: the first epoch, from 0.
        tail: the use of the samples at the end that do not fill a global batch. ``"keep"``
            makes a smaller last step of them, with weights to match. ``"drop"`` leaves them
            out. ``"pad"`` repeats the first samples of the epoch. None is ``"keep"``;
            ``"drop"`` for a stream.
        order: the dataset indices of an epoch, with repeats or gaps: a ``Sampler`` of torch of
            single samples, or a sequence of ints. It is global, read anew for each epoch.

    Returns:
        A ``Sampler[list[int]]`` for ``DataLoader(dataset, batch_sampler=...)``. For an iterable
        dataset, a :class:`~meshkit.data.stream.MicroBatchStream` for ``DataLoader(stream,
        batch_size=None)``.

    Raises:
        BatchError: if the dataset is empty, or is none, such as a DataLoader or a dict; if a
            tail is invalid; if ``"drop"`` leaves no step; if the plan is of another mesh; if an
            order has no length, yields no dataset index, or differs when one epoch is read
            twice.
        DisagreementError: by the first batch, if ranks differ in an argument or in the length.

    Cost: 0.1 microseconds per sample with shuffle, and 0.3 milliseconds per step; 8 bytes an
    index of ``order``. One store operation at the first batch, which waits for no rank.

    Example:
        >>> plan = mesh.batch(global_batch=8, micro_batch=2)
        >>> list(mesh.sampler(range(16), plan))
        [[4, 5], [12, 13]]
    """
    return _open(self, dataset, plan, SampleOrder(shuffle, seed, epoch, tail, order))


@quotes_call("mesh.loader", by_name=("dataset", "plan"))
def loader(
    self: LiveMesh,
    dataset: IterableDataset[Any] | Sized,
    plan: BatchPlan,
    *,
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    tail: str | None = None,
    order: Iterable[int] | None = None,
    **options: Any,  # noqa: ANN401  # any option of DataLoader
) -> DataLoader[Any]:
    """Return torch's DataLoader over this rank's micro batches of a dataset. Local.

    Each item is one collated micro batch. ``options`` are more options of ``DataLoader``, as
    ``num_workers``; all other arguments are those of :meth:`sampler`. The position for a
    checkpoint is ``loader.batch_sampler.state_dict(steps=...)``, for an iterable dataset
    ``loader.dataset.state_dict(steps=...)``. ``loader.set_epoch(epoch)`` is that of the sampler or
    the stream; the Trainer of Transformers calls it.

    Raises:
        BatchError: as :meth:`sampler`; if an option would change the samples of a batch, such
            as ``batch_size``; if the dataset is a number.

    Example:
        ``for batch in mesh.loader(dataset, plan, shuffle=True): train(batch)``
    """
    source = _open(self, dataset, plan, SampleOrder(shuffle, seed, epoch, tail, order))
    return make_loader(dataset, source, options)


def _open(
    self: LiveMesh,
    dataset: IterableDataset[Any] | Sized | int,
    plan: BatchPlan,
    samples: SampleOrder,
) -> MicroBatchSampler | MicroBatchStream[Any]:
    """Return the sampler or the stream of this rank, which compares its first batch. Local."""
    mesh, job = self._groups, self._proposal.job
    if isinstance(dataset, BatchPlan):
        raise BatchError("the dataset is a batch plan.", fix="the dataset first, then the plan.")
    source = make_source(dataset, plan_of_rank(mesh, plan), samples)
    source.job_seed = base_seed(job.seed)
    mesh.num_samplers += 1
    if mesh.plan.layout.num_ranks > 1:
        source.first_batch = FirstBatch(mesh, job, mesh.num_samplers, source)
    return source


class EpochLoader(DataLoader[Any]):
    """A DataLoader whose epoch a trainer sets, as that of Transformers does where it resumes.

    It counts the batches that the trainer gets, as workers read ahead.
    """

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # of the batches of one pass
        """Begin a pass."""
        batches, source = super().__iter__(), self.batch_sampler
        return source.count(batches) if isinstance(source, MicroBatchSampler) else batches

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch at its start, as the sampler or the stream does."""
        source: Any = self.dataset if self.batch_sampler is None else self.batch_sampler
        source.set_epoch(epoch)


class StreamLoader(EpochLoader):
    """A DataLoader whose ``iter`` waits for the first batch of a stream.

    After it the workers have begun the pass, and an empty pass has ended, whatever the trainer
    reads of it. The batches that the trainer gets are counted, as workers read ahead.
    """

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # likewise
        """Begin a pass."""
        batches = super().__iter__()
        first = [*islice(batches, 1)]
        return cast("MicroBatchStream[Any]", self.dataset).count(chain(first, batches))


def make_loader(
    dataset: object, source: MicroBatchSampler | MicroBatchStream[Any], options: Mapping[str, Any]
) -> DataLoader[Any]:
    """Return a DataLoader that yields one micro batch at a time. See ``mesh.loader``."""
    for name in (name for name in options if name in DECIDED):
        value = options[name]
        shown = repr(value) if isinstance(value, int | None) else article(type(value).__name__)
        line = f"{name} is {shown}, and the plan decides which samples a batch holds."
        raise BatchError(line, fix=f"{find_counterpart(name, value, source)}.")
    if isinstance(source, MicroBatchStream):
        collate = options.get("collate_fn") or default_collate
        return StreamLoader(source, batch_size=None, **{**options, "collate_fn": collate})
    if not hasattr(dataset, "__getitem__"):
        line = f"the dataset is {article(type(dataset).__name__)}, which has no samples."
        raise BatchError(line, fix="a dataset; mesh.sampler(...) accepts a number of samples.")
    return EpochLoader(dataset, batch_sampler=source, **options)  # type: ignore[arg-type]


def find_counterpart(name: str, value: object, source: object) -> str:
    """Return what says the same as an option of DataLoader that the plan decides."""
    order = value.sampler if isinstance(value, BatchSampler) else value
    if value is None or value is False:
        return f"leave out {name}"
    if name == "batch_size":
        return "leave out batch_size, or mesh.batch(micro_batch=...)"
    if name == "drop_last":
        return 'mesh.loader(dataset, plan, tail="drop")'
    if isinstance(source, MicroBatchStream):
        return f"leave out {name}, and shuffle in the dataset"
    if isinstance(order, MicroBatchSampler):
        return "DataLoader(dataset, batch_sampler=sampler)"
    if isinstance(order, DistributedSampler):
        return f"mesh.loader(dataset, plan{', shuffle=True' * order.shuffle})"
    if name == "sampler":
        return "mesh.loader(dataset, plan, order=sampler)"
    if isinstance(value, BatchSampler):
        return "mesh.loader(dataset, plan, order=batch_sampler.sampler)"
    return "order=..., which yields single samples; the plan makes the batches"
