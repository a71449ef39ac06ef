"""Epoch: the samples that a rank reads in each step of one pass, in an order equal on every mesh.

The order of an epoch is cut into steps of a global batch, and each step into micro batches. If the
samples left do not fill the last step, ``tail`` makes the step smaller, drops it, or fills it up
with the first samples::

    10 samples, global_batch 4      step 0     step 1     step 2
    tail="keep"                    0 1 2 3    4 5 6 7    8 9
    tail="drop"                    0 1 2 3    4 5 6 7
    tail="pad"                     0 1 2 3    4 5 6 7    8 9 0 1
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..call import changes
from ..errors import BatchError, CoordinateError
from ..text import count_noun
from ..validate import parse_integer
from .batch import BatchPlan
from .micro_batch import MicroBatch, micro_batches
from .shuffle import shuffle_indices

TAILS = ("keep", "drop", "pad")
MAX_LENGTH = 2**62  # samples, so that the last step ends within int64


@dataclass(frozen=True)
class SampleOrder:
    """The order in which samples are read, as given to ``mesh.sampler``; not validated."""

    shuffle: bool = False  # whether each epoch has an order of its own
    seed: int = 0
    epoch: int = 0  # the first epoch, from 0
    # the treatment of samples that do not fill a step; None is the default of the dataset
    tail: str | None = None


@dataclass(frozen=True)
class Epoch:
    """One pass over the data, or the rest of one, for one data coordinate."""

    length: int  # samples in the data
    plan: BatchPlan
    data_index: int
    shuffle: bool  # whether the order is shuffled, by ``seed`` and ``number``
    seed: int
    tail: str  # the treatment of samples that do not fill a step: ``keep``, ``drop`` or ``pad``
    number: int = 0  # the number of the epoch, from 0
    # samples of the epoch's order that earlier passes read; step 0 begins after them
    begin: int = 0

    @property
    def steps(self) -> int:
        """Optimizer steps from ``begin`` to the end."""
        whole, leftover = divmod(self.length - self.begin, self.plan.global_batch)
        return whole + (leftover > 0 and self.tail != "drop")

    @property
    def num_micro_batches(self) -> int:
        """Micro batches of a rank from ``begin`` to the end; equal on every rank. O(1)."""
        if not self.steps:
            return 0
        last = self._accumulation_steps(self.total(self.steps - 1))
        return (self.steps - 1) * self._accumulation_steps(self.plan.global_batch) + last

    def total(self, step: int) -> int:
        """Return the number of samples in a step, over all ranks."""
        left = self.length - self.begin - step * self.plan.global_batch
        return min(self.plan.global_batch, left) if self.tail == "keep" else self.plan.global_batch

    def consumed(self, steps: int) -> int:
        """Return how many samples of the epoch's order are read after ``steps`` of this pass."""
        return min(self.begin + steps * self.plan.global_batch, self.length)

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """Return the micro batches of this rank in a step, with dataset indices as samples.

        Cost: O(samples of this rank in the step).
        """
        index = parse_integer(step)
        if index is None or not 0 <= index < self.steps:
            raise self._missing_step_error(step)
        plan, first = self.plan, self.begin + index * self.plan.global_batch
        share = (self.total(index), plan.micro_batch, plan.dp, self.data_index, first)
        batches = [*micro_batches(*share)]
        indices = np.concatenate([micro.samples for micro in batches]) % self.length
        if self.shuffle:
            indices = shuffle_indices(indices, self.length, self.seed, self.number)
        ends = np.cumsum([len(micro.samples) for micro in batches])
        parts = np.split(indices, ends[:-1])
        return [replace(micro, samples=part) for micro, part in zip(batches, parts, strict=True)]

    def _accumulation_steps(self, total: int) -> int:
        """Return the micro batches of a rank, fillers included, in a step of ``total`` samples."""
        return -(-total // self.plan.micro_batch // self.plan.dp)

    def _missing_step_error(self, step: object) -> CoordinateError:
        steps = f"Epoch {self.number} has {count_noun(self.steps, 'step')}"
        after = f" after the first {count_noun(self.begin, 'sample')}" if self.begin else ""
        known = f", 0 to {self.steps - 1}" if self.steps else ""
        return CoordinateError(
            f"the pass has no step {step!r}.",
            f"{steps}{after}{known}.",
            fix="for step in range(sampler.steps).",
            index=step,
            size=self.steps,
        )


def validate_epoch(epoch: Epoch) -> Epoch:
    """Return the epoch with plain ints, after a check of all values."""
    length, seed, number = (parse_integer(n) for n in (epoch.length, epoch.seed, epoch.number))
    if length is None or not 1 <= length <= MAX_LENGTH:
        line = f"the number of samples is {epoch.length!r}."
        raise BatchError(line, fix=f"1 sample or more, {MAX_LENGTH} at most.")
    if epoch.tail not in TAILS:
        line = f"tail is {epoch.tail!r}."
        known = '"keep" shortens the last step, "drop" omits it, "pad" fills it up.'
        raise BatchError(line, known, fix="tail='keep'.")
    if seed is None or number is None or number < 0 or not isinstance(epoch.shuffle, bool):
        raise _invalid_order_error(epoch)
    if epoch.tail == "drop" and length < epoch.plan.global_batch:
        raise _no_whole_step_error(length, epoch.plan)
    return replace(epoch, length=length, seed=seed, number=number)


def _invalid_order_error(epoch: Epoch) -> BatchError:
    number = parse_integer(epoch.number)
    valid: dict[str, object] = {} if isinstance(epoch.shuffle, bool) else {"shuffle": True}
    valid |= {"seed": 0} if parse_integer(epoch.seed) is None else {}
    valid |= {"epoch": 0} if number is None or number < 0 else {}
    values = f"shuffle={epoch.shuffle!r}, seed={epoch.seed!r}, epoch={epoch.number!r}"
    return BatchError(
        f"the order of samples is invalid: {values}.",
        "shuffle is a bool, seed is an int, and epoch is an int of 0 or more.",
        fix=f"{changes(**valid)}.",
    )


def _no_whole_step_error(length: int, plan: BatchPlan) -> BatchError:
    return BatchError(
        f"{count_noun(length, 'sample')} do not fill one step of {plan.global_batch}.",
        fix=f"tail='keep', or a global batch of at most {length}.",
        global_batch=plan.global_batch,
        below=length,
    )
