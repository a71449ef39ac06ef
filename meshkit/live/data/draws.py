"""Random numbers of a dataset: they follow the position, not the rank, the worker or the model.

While a DataLoader reads a micro batch, the generators of torch on the cpu, of ``random`` and of
numpy draw from streams of the samples. Afterwards those of the trainer go on where they were::

    trainer           a b . . . . . . . . c d    the model draws c and d, as without a dataset
    position 4 of all     0 1 2                  by (seed, epoch, 4), on each rank that reads it
    position 5                  0 1 2            other numbers, also if it is the same sample
    collate_fn                        3          goes on with those of the last position

A stream draws equally in each process that reads it, and its micro batches are collated with
numbers of their own.
"""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

from ...core.seeds import compute_seed

Generators = tuple[torch.Tensor, Any, Any]


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


class SampleIndices(list[int]):
    """The indices of one micro batch, whose samples draw numbers of their own as they are read.

    It lives as long as a DataLoader reads the micro batch. In the process of the trainer, which has
    numbers of its own, these go on when it is dropped.
    """

    def __init__(self, indices: list[int], draws: Draws, first: int) -> None:
        super().__init__(indices)
        self._draws, self._first = draws, first  # the position of the first sample
        self._outer: Generators | None = None

    def __iter__(self) -> Iterator[int]:
        """Yield the indices, and begin the numbers of each before it is read."""
        is_reading = self._outer is not None or get_worker_info() is not None
        for position, index in enumerate(super().__iter__(), self._first):
            if is_reading:
                self._draws.seed(position)
            yield index

    def begin(self) -> SampleIndices:
        """Let the generators draw the numbers of the first sample, until the end; return itself."""
        self._outer = _read_generators()
        self._draws.seed(self._first)
        return self

    def end(self) -> None:
        """Let the numbers of the trainer go on. Harmless to repeat."""
        if self._outer is not None:
            _write_generators(self._outer)
            self._outer = None

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.end()

    def __reduce__(self) -> tuple[Any, ...]:
        """Become the indices in a worker."""
        return _receive, (self[:], self._draws, self._first)


def _receive(indices: list[int], draws: Draws, first: int) -> SampleIndices:
    """Return indices; in a worker, also begin the numbers of the first one."""
    if get_worker_info() is not None:
        draws.seed(first)
    return SampleIndices(indices, draws, first)


def draw_by_position(
    batches: Iterator[tuple[int, list[int]]], loader: DataLoader[Any] | None, draws: Draws
) -> Iterator[list[int]]:
    """Yield the micro batches of a pass; those that a DataLoader reads draw by their positions.

    Each micro batch comes with the position of its first sample.
    """
    last: weakref.ref[SampleIndices] | None = None

    def hand_out(indices: list[int], first: int, is_read_here: bool) -> SampleIndices:
        nonlocal last
        owned = SampleIndices(indices, draws, first)
        last = weakref.ref(owned)
        return owned.begin() if is_read_here else owned

    for first, indices in batches:
        if last and (held := last()) is not None:  # somebody keeps what has been read
            held.end()
            del held
        # no name here refers to what is yielded, so that it lives as long as it is read
        yield indices if loader is None else hand_out(indices, first, not loader.num_workers)


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


class StreamCollate:
    """A ``collate_fn`` that draws by the micro batch of a stream."""

    def __init__(self, source: Any, collate_fn: Callable[[Any], Any]) -> None:  # noqa: ANN401
        self._source, self._collate_fn = source, collate_fn

    def __call__(self, batch: Any) -> Any:  # noqa: ANN401
        """Return the collated batch."""
        with self._source.batch_numbers.active():
            return self._collate_fn(batch)


def _read_generators() -> Generators:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def _write_generators(state: Generators) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])
