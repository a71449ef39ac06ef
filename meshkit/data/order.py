"""Read the order of samples that a caller gives: a sampler of torch, or any sequence of indices.

The order of an epoch is drawn at once, from generators that are seeded by the seed of the sampler
and the number of the epoch. So it is the same on every rank, and again after a resume. Each rank
then takes its share by the batch formula.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Set, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

from ..errors import BatchError
from ..text import Ints, article, count_noun
from .seeds import stream_seed

SOURCES = "torch's, numpy's or Python's global generator, its attribute generator, or set_epoch"


@dataclass(frozen=True)
class OwnOrder:
    """The order of each epoch, as an object of the caller gives it."""

    indices: Any  # an iterable with a length
    num_samples: int  # in the dataset
    seed: int

    def __call__(self, epoch: int) -> Ints:
        """Return the dataset indices of an epoch, int64 (samples of the epoch,)."""
        with seeded(stream_seed(self.seed, "order", epoch=epoch), self.indices):
            if callable(set_epoch := getattr(self.indices, "set_epoch", None)):
                set_epoch(epoch)
            items = to_array(self.indices)
        valid = f"indices from 0 to {self.num_samples - 1}."
        if items.ndim != 1 or not items.size or items.dtype.kind not in "iu":
            shown = f"{items.flat[:2].tolist()}" if items.size else "nothing"
            fix = valid
            if items.dtype.kind == "b":
                fix = "numpy.flatnonzero(mask)."
            elif items.dtype.kind == "f" and items.size == self.num_samples:
                weighted = f"WeightedRandomSampler(weights, {self.num_samples})"
                fix = f"{valid[:-1]}; or order={weighted}, if these are weights."
            elif items.ndim > 1 or items.dtype == object:
                fix = "a sampler of single samples; the plan makes the batches."
            line = "An order yields the dataset index of one sample at a time."
            raise BatchError(f"the order of epoch {epoch} yields {shown}.", line, fix=fix)
        outside = items[(items < 0) | (items >= self.num_samples)]
        if len(outside):
            raise BatchError(
                f"the order of epoch {epoch} yields the index {outside[0]}.",
                f"The dataset has {count_noun(self.num_samples, 'sample')}.",
                fix=valid,
            )
        indices: Ints = items.astype(np.int64)
        return indices


def check_again(indices: object, first: Ints, second: Ints) -> None:
    """Raise if two readings of one epoch differ.

    Raises:
        BatchError: if they do, as the order could be neither resumed nor equal on all ranks.
    """
    if not np.array_equal(first, second):
        raise BatchError(
            "the order of one epoch differs between two readings.",
            f"It comes from {article(type(indices).__name__)} with a state of its own, so it "
            "cannot be resumed, and ranks may differ.",
            fix=f"draw it from {SOURCES}(epoch).",
        )


def to_array(indices: Any) -> NDArray[Any]:  # noqa: ANN401  # an iterable
    """Return all items; those that are no numbers as objects or as text."""
    if isinstance(indices, torch.Tensor):
        return np.asarray(indices.detach().cpu())
    items = indices if isinstance(indices, np.ndarray | range) else [*indices]
    try:
        return np.asarray(items)
    except ValueError:  # lists of different lengths
        return np.array([items[0], None], dtype=object)[:1]


def check_kind(indices: object) -> None:
    """Raise unless an object may be an order of single samples that can be read again.

    Raises:
        BatchError: with a fix for each kind of object.
    """
    fix = "a Sampler of torch with a length, or a sequence of dataset indices."
    if isinstance(indices, DistributedSampler):
        line = "It yields the share of one rank already."
        fix = "leave it out; shuffle=True shuffles."
    elif isinstance(indices, BatchSampler):
        line = "It yields batches, and the plan makes the batches."
        fix = "order=batch_sampler.sampler."
    elif isinstance(indices, str | bytes | Mapping | Set | DataLoader | Dataset | type):
        line = "It holds no dataset indices in order."
    elif not isinstance(indices, Iterable):
        line = "It yields no dataset indices."
    elif isinstance(indices, Iterator):
        line, fix = "It can be read once, so its second epoch would be empty.", "order=list(...)."
    elif not isinstance(indices, Sized):
        line = "It has no len(), so the steps of an epoch are unknown, and it may never end."
    else:
        return
    raise BatchError(f"the order is {article(type(indices).__name__)}.", line, fix=fix)


@contextmanager
def seeded(seed: int, indices: object) -> Iterator[None]:
    """Seed all generators that an order may draw from, and restore them afterwards. Local."""
    own = getattr(indices, "generator", None)
    generators = [torch.default_generator, *([own] if isinstance(own, torch.Generator) else [])]
    with ExitStack() as stack:
        for generator in generators:
            stack.callback(generator.set_state, generator.get_state())
            generator.manual_seed(seed)
        stack.callback(np.random.set_state, np.random.get_state())
        np.random.seed(seed % 2**32)
        stack.callback(random.setstate, random.getstate())
        random.seed(seed)
        yield
