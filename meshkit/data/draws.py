"""Random numbers of a dataset: they follow the position, not the rank, the worker or the model.

While a DataLoader reads a micro batch, the generators of torch on the cpu, of ``random`` and of
numpy draw from streams of the samples. Afterwards those of the trainer go on where they were::

    trainer           a b . . . . . . . . c d    the model draws c and d, as without a dataset
    position 4 of all     0 1 2                  by (seed, epoch, 4), on each rank that reads it
    position 5                  0 1 2            other numbers, also if it is the same sample
    collate_fn                        3          goes on with those of the last position

So does the generator of the accelerator's current device, if the process has used it. A stream
draws equally in each process that reads it, and its micro batches are collated with numbers of
their own.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import StackDataset, Subset, get_worker_info

from ..launch.torch_program import read_within
from .seeds import compute_seed

Generators = tuple[torch.Tensor, Any, Any, torch.Tensor | None]


class Draws(NamedTuple):
    """The random numbers of one epoch."""

    base: int  # the seed of the job
    order: int  # the seed of the order of samples
    epoch: int

    def seed(self, position: object) -> None:
        """Let the generators draw the numbers of a position in the global order of the epoch."""
        name = f"sample {self.order} {self.epoch} {position}"
        number = compute_seed(self.base, name, {})  # of 63 bits
        torch.default_generator.manual_seed(number)  # which uses the low 32 on the cpu
        random.seed(number)
        np.random.seed(number >> 31)  # the high 32, since numpy's generator is that of torch
        if (device := _used_device()) is not None:
            device.manual_seed(number)


class SampleIndices(list[int]):
    """The indices of one micro batch, whose samples draw numbers of their own as they are read.

    A dataset may go through it several times, as a StackDataset does for each of its parts, and
    draws other numbers each time.
    """

    def __init__(self, indices: list[int], draws: Draws, first: int) -> None:
        super().__init__(indices)
        self._draws, self._first = draws, first  # the position of the first sample
        self._turns = count()
        self._is_read = False  # whether this process reads the samples

    def __iter__(self) -> Iterator[int]:
        """Yield the indices, and begin the numbers of each before it is read."""
        turn = next(self._turns) if self._is_read else 0
        for position, index in enumerate(super().__iter__(), self._first):
            if self._is_read:
                self._draws.seed(f"{position} turn {turn}" if turn else position)
            yield index

    def of_subset(self, subset: Subset[Any]) -> SampleIndices:
        """Return the indices in the dataset of a Subset, which draw the numbers of these."""
        inner = SampleIndices([subset.indices[i] for i in self[:]], self._draws, self._first)
        inner._turns, inner._is_read = self._turns, self._is_read
        return inner

    def begin(self) -> SampleIndices:
        """Let the generators draw the numbers of the first sample; return itself."""
        self._is_read = True
        self._draws.seed(self._first)
        return self

    @contextmanager
    def active(self, dataset: object) -> Iterator[None]:
        """Draw the numbers of the samples inside; those of the trainer go on afterwards."""
        outer, changed = _read_generators(), read_subsets_in_turn(dataset)
        self.begin()
        try:
            yield
        finally:
            self._is_read = False  # the dataset may keep the indices
            for subset in changed:
                vars(subset).pop("__getitems__", None)
            _write_generators(outer)

    def __reduce__(self) -> tuple[Any, ...]:
        """Become the indices in a worker."""
        return _receive, (self[:], self._draws, self._first)


def _receive(indices: list[int], draws: Draws, first: int) -> SampleIndices:
    """Return indices; in a worker, also begin the numbers of the first one."""
    received, info = SampleIndices(indices, draws, first), get_worker_info()
    if info is None:
        return received
    read_subsets_in_turn(info.dataset)  # for good, as it is the dataset of the worker
    return received.begin()


def read_subsets_in_turn(dataset: object) -> list[Subset[Any]]:
    """Let each Subset in a dataset hand on :class:`SampleIndices`; return those changed.

    A Subset makes a list of indices for a dataset that reads several samples at once, as another
    Subset does. So it would go through all indices before the first sample is read.
    """
    if isinstance(dataset, StackDataset):
        held = dataset.datasets
        parts = held.values() if isinstance(held, dict) else held
        return [subset for part in parts for subset in read_subsets_in_turn(part)]
    if not isinstance(dataset, Subset) or type(dataset).__getitems__ is not Subset.__getitems__:
        return []
    if not callable(getattr(dataset.dataset, "__getitems__", None)):
        return []
    changed = [] if "__getitems__" in vars(dataset) else [dataset]
    for subset in changed:
        subset.__getitems__ = partial(_read_subset, subset)  # type: ignore[method-assign]
    return changed + read_subsets_in_turn(dataset.dataset)


def _read_subset(subset: Subset[Any], indices: list[int]) -> list[Any]:
    """Return samples of a Subset whose dataset has ``__getitems__``."""
    if isinstance(indices, SampleIndices):
        indices = indices.of_subset(subset)
    else:
        indices = [subset.indices[index] for index in indices]
    samples: list[Any] = subset.dataset.__getitems__(indices)  # type: ignore[attr-defined]
    return samples


def draw_by_position(
    batches: Iterator[tuple[int, list[int]]], reader: weakref.ref[Any] | None, draws: Draws
) -> Iterator[list[int]]:
    """Yield the micro batches of a pass; those that a DataLoader reads draw by their positions.

    Each micro batch comes with the position of its first sample.
    """
    for first, indices in batches:
        if reader is None:
            yield indices
            continue
        read_within(reader, _numbers_of)
        yield SampleIndices(indices, draws, first)


def _numbers_of(dataset: object, indices: object) -> AbstractContextManager[None]:
    """Return the context in which a DataLoader without workers reads samples."""
    return indices.active(dataset) if isinstance(indices, SampleIndices) else nullcontext()


class OwnNumbers:
    """Random numbers beside those of this process, for the time in which they are active."""

    def __init__(self, draws: Draws, name: str) -> None:
        self._draws, self._name = draws, name
        self._state: Generators | None = None  # None before the first number

    @contextmanager
    def active(self) -> Iterator[None]:
        """Draw these numbers inside; those of this process go on afterwards."""
        outer = _read_generators()
        if self._state is None:
            self._draws.seed(self._name)
        else:
            _write_generators(self._state)
        try:
            yield
        finally:
            self._state = _read_generators()
            _write_generators(outer)


def _read_generators() -> Generators:
    device = _used_device()
    of_device = None if device is None else device.get_rng_state()
    return torch.get_rng_state(), random.getstate(), np.random.get_state(), of_device


def _write_generators(state: Generators) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])
    if state[3] is not None and (device := _used_device()) is not None:
        device.set_rng_state(state[3])


def _used_device() -> Any | None:  # noqa: ANN401  # torch.cuda, or a module like it
    """Return the module of the accelerator, if this process has used one."""
    accelerator = torch.accelerator.current_accelerator()
    module = None if accelerator is None else torch.get_device_module(accelerator)
    is_used = getattr(module, "is_initialized", torch.accelerator.is_available)
    return module if module is not None and is_used() else None
