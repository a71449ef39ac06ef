"""Which samples a rank reads in each step of an epoch: one global order, whatever the mesh.

The order of an epoch is cut into steps of a global batch, and each step into micro batches
(:mod:`meshkit.core.data.micro_batch`). What is left for the last step is kept, dropped or filled up::

    10 samples, global_batch 4      step 0     step 1     step 2
    tail="keep"                    0 1 2 3    4 5 6 7    8 9
    tail="drop"                    0 1 2 3    4 5 6 7
    tail="pad"                     0 1 2 3    4 5 6 7    8 9 0 1
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..call import Call
from ..errors import BatchError, Change, CoordinateError
from ..text import count_noun
from ..validate import parse_integer
from .batch import BatchPlan
from .micro_batch import MicroBatch, micro_batches
from .shuffle import shuffled

TAILS = ("keep", "drop", "pad")
MAX_LENGTH = 2**62  # so that a step that begins inside it ends inside int64


@dataclass(frozen=True)
class Epoch:
    """One pass over the data, or the rest of one, as one data coordinate reads it.

    Attributes:
        length: samples in the data.
        plan: how a step is cut.
        data_index: which data coordinate this is.
        shuffle: whether the order is shuffled, by ``seed`` and ``number``.
        seed: of the shuffled orders.
        tail: what becomes of samples that do not fill a step.
        number: which epoch this is, from 0.
        begin: samples of its order read before; step 0 begins there.
    """

    length: int
    plan: BatchPlan
    data_index: int
    shuffle: bool
    seed: int
    tail: str
    number: int = 0
    begin: int = 0

    @property
    def steps(self) -> int:
        """Steps from ``begin`` to the end."""
        whole, rest = divmod(self.length - self.begin, self.plan.global_batch)
        return whole + (rest > 0 and self.tail != "drop")

    @property
    def num_micro_batches(self) -> int:
        """Micro batches of a rank from ``begin`` to the end; the same on every rank. O(1)."""
        if not self.steps:
            return 0
        last = self._cuts(self.total(self.steps - 1))
        return (self.steps - 1) * self._cuts(self.plan.global_batch) + last

    def total(self, step: int) -> int:
        """Samples in a step, over all ranks."""
        left = self.length - self.begin - step * self.plan.global_batch
        return min(self.plan.global_batch, left) if self.tail == "keep" else self.plan.global_batch

    def consumed(self, steps: int) -> int:
        """Samples of the epoch's order read after so many more steps."""
        return min(self.begin + steps * self.plan.global_batch, self.length)

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """The micro batches of this rank in a step, with what stands in the order. O(its samples).

        Raises:
            CoordinateError: where the epoch has no such step.
        """
        index = parse_integer(step)
        if index is None or not 0 <= index < self.steps:
            raise self._no_step(step)
        plan, first = self.plan, self.begin + index * self.plan.global_batch
        share = (self.total(index), plan.micro_batch, plan.dp, self.data_index, first)
        found = [*micro_batches(*share)]
        places = np.concatenate([micro.samples for micro in found]) % self.length
        if self.shuffle:
            places = shuffled(places, self.length, self.seed, self.number)
        ends = np.cumsum([len(micro.samples) for micro in found])
        parts = np.split(places, ends[:-1])
        return [replace(micro, samples=part) for micro, part in zip(found, parts, strict=True)]

    def _cuts(self, total: int) -> int:
        return -(-total // self.plan.micro_batch // self.plan.dp)

    def _no_step(self, step: object) -> CoordinateError:
        last = f", 0 to {self.steps - 1}" if self.steps else ""
        there = f"Epoch {self.number} has {count_noun(self.steps, 'step')}"
        before = f" after the first {count_noun(self.begin, 'sample')}" if self.begin else ""
        return CoordinateError(
            f"{Call('sampler.micro_batches', (step,))}: there is no such step.",
            f"{there}{before}{last}.",
            fix="for step in range(sampler.steps).",
            index=step,
            size=self.steps,
        )


def checked_epoch(epoch: Epoch) -> Epoch:
    """The epoch with plain ints in it.

    Raises:
        BatchError: for what cannot be: no sample, no whole step with ``tail="drop"``, a seed that
            is no int, a plan of another mesh.
    """
    length, seed, number = (parse_integer(n) for n in (epoch.length, epoch.seed, epoch.number))
    if length is None or not 1 <= length <= MAX_LENGTH:
        line = f"the number of samples is {epoch.length!r}."
        raise BatchError(line, fix=f"1 sample or more, {MAX_LENGTH} at most.")
    if epoch.tail not in TAILS:
        line = f"tail is {epoch.tail!r}."
        known = '"keep" the rest as a smaller step, "drop" it, or "pad" it with the first samples.'
        raise BatchError(line, known, fix=(Change(tail="keep"), "."))
    if seed is None or number is None or number < 0 or not isinstance(epoch.shuffle, bool):
        raise _no_order(epoch)
    if epoch.tail == "drop" and length < epoch.plan.global_batch:
        raise _no_whole_step(length, epoch.plan)
    return replace(epoch, length=length, seed=seed, number=number)


def _no_order(epoch: Epoch) -> BatchError:
    asked = f"shuffle={epoch.shuffle!r}, seed={epoch.seed!r}, epoch={epoch.number!r}"
    number = parse_integer(epoch.number)
    wrong: dict[str, object] = {} if isinstance(epoch.shuffle, bool) else {"shuffle": True}
    wrong |= {"seed": 0} if parse_integer(epoch.seed) is None else {}
    wrong |= {"epoch": 0} if number is None or number < 0 else {}
    return BatchError(
        "there is no such order.",
        f"{asked}, where a bool, an int and an int of 0 or more are needed.",
        fix=(Change(**wrong), "."),
    )


def _no_whole_step(length: int, plan: BatchPlan) -> BatchError:
    return BatchError(
        f"{count_noun(length, 'sample')} give no whole step of {plan.global_batch}.",
        fix=(Change(tail="keep"), f", or a global batch of at most {length}."),
        global_batch=plan.global_batch,
        below=length,
    )
