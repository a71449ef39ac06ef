"""Epoch: the samples that a rank reads in each step of one pass, in an order equal on every mesh.

The order of an epoch is cut into steps of a global batch, and each step into micro batches. If the
samples left do not fill the last step, ``tail`` makes the step smaller, drops it, or fills it up
with the first samples::

    10 samples, global_batch 4      step 0     step 1     step 2
    tail="keep"                    0 1 2 3    4 5 6 7    8 9
    tail="drop"                    0 1 2 3    4 5 6 7
    tail="pad"                     0 1 2 3    4 5 6 7    8 9 0 1

A shuffled order is computed for any of its positions without an array, equally on every machine. A
Feistel network permutes positions. It cuts the bits of a position in two halves, and changes each
half in turn by a hash of the other. Each round is invertible, so no two positions collide. A result
beyond the last sample goes through the network again until it is a sample (cycle walking)::

    high  --xor-------------- ... --  high
             |       |                        then again, if that is no sample
           hash    hash
             |       |
    low   ---------xor------- ... --  low

Unequal halves and one hash a round follow Mitchell, Stokes, Frank and Holmes, "Bandwidth-Optimal
Random Shuffling for GPUs" (arXiv:2106.06161). Cycle walking is from Black and Rogaway, "Ciphers
with Arbitrary Finite Domains" (CT-RSA 2002). The hash is the finalizer of SplitMix64 (Steele, Lea
and Flood, OOPSLA 2014). For training, not for secrets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..call import parse_integer
from ..errors import BatchError, CoordinateError
from ..text import Ints, article, count_noun
from .batch import BatchPlan, MicroBatch

State = dict[str, int | bool | str]
Words = NDArray[np.uint64]

TAILS = ("keep", "drop", "pad")
VERSION = 1  # of the fields of a state
FIELDS = ("version", "length", "shuffle", "seed", "epoch", "consumed")  # of every state
MAX_LENGTH = 2**62  # samples, so that the last step ends within int64
MIN_BITS = 6  # with halves of fewer than three bits the orders are not uniform
SHIFTS = np.array([30, 27, 31], dtype=np.uint64)
FACTORS = np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64)


@dataclass(frozen=True)
class SampleOrder:
    """The order in which samples are read, as given to ``mesh.sampler``; not validated."""

    shuffle: bool = False  # whether each epoch has an order of its own
    seed: int = 0
    epoch: int = 0  # the first epoch, from 0
    # the treatment of samples that do not fill a step; None is the default of the dataset
    tail: str | None = None
    order: object = None  # an iterable of dataset indices that the caller gives


@dataclass(frozen=True)
class Epoch:
    """One pass over the data, or the rest of one, for the data index of a plan."""

    length: int  # samples in the data
    plan: BatchPlan
    shuffle: bool = False  # whether the order is shuffled, by ``seed`` and ``number``
    seed: int = 0
    tail: str = "keep"  # the treatment of samples that do not fill a step, one of TAILS
    number: int = 0  # the number of the epoch, from 0
    # samples of the epoch's order that earlier passes read; step 0 begins after them
    begin: int = 0
    # the caller's order: a function from the number of an epoch to the indices of its samples
    draw: Callable[[int], Ints] | None = None
    indices: Ints | None = field(default=None, compare=False, repr=False)  # its result, (length,)

    @classmethod
    def of(
        cls,
        length: object,
        plan: BatchPlan,
        order: SampleOrder,
        draw: Callable[[int], Ints] | None = None,
    ) -> Epoch:
        """Return the first epoch of an order, after a check of all values."""
        num, seed, number = (parse_integer(n) for n in (length, order.seed, order.epoch))
        tail = "keep" if order.tail is None else order.tail
        if num is None or not 1 <= num <= MAX_LENGTH:
            line = f"the number of samples is {length!r}."
            raise BatchError(line, fix=f"1 sample or more, {MAX_LENGTH} at most.")
        if tail not in TAILS:
            known = '"keep" shortens the last step, "drop" omits it, "pad" fills it up.'
            raise BatchError(f"tail is {tail!r}.", known, fix="tail='keep'.")
        if seed is None or number is None or number < 0 or not isinstance(order.shuffle, bool):
            values = f"shuffle={order.shuffle!r}, seed={order.seed!r}, epoch={order.epoch!r}"
            fixes = ["shuffle=True, or shuffle=False"] * (not isinstance(order.shuffle, bool))
            fixes += ["seed=0"] * (seed is None)
            fixes += ["epoch=0"] * (number is None or number < 0)
            line = "shuffle is a bool, seed is an int, and epoch is an int of 0 or more."
            summary = f"the order of samples is invalid: {values}."
            raise BatchError(summary, line, fix=f"{', '.join(fixes)}.")
        epoch = cls(num, plan, order.shuffle, seed, tail, draw=draw).at(number)
        if tail == "drop" and epoch.length < plan.global_batch:
            raise BatchError(
                f"{count_noun(epoch.length, 'sample')} do not fill one step of "
                f"{plan.global_batch}.",
                fix=f"tail='keep', or a global batch of at most {epoch.length}.",
                global_batch=plan.global_batch,
                below=epoch.length,
            )
        return epoch

    def at(self, number: int, begin: int = 0) -> Epoch:
        """Return the same or another epoch from a sample on; it draws the order of another one."""
        epoch = replace(self, number=number, begin=begin)
        if self.draw is None or (self.indices is not None and number == self.number):
            return epoch
        indices = self.draw(number)
        return replace(epoch, indices=indices, length=len(indices))

    @cached_property
    def digest(self) -> str:
        """A text that differs for other indices of the caller's order."""
        return hashlib.blake2b(np.asarray(self.indices).tobytes(), digest_size=8).hexdigest()

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
        last = -(-self.total(self.steps - 1) // self.plan.micro_batch // self.plan.dp)
        return (self.steps - 1) * self.plan.accumulation_steps + last

    def total(self, step: int) -> int:
        """Return the number of samples in a step, over all ranks."""
        left = self.length - self.begin - step * self.plan.global_batch
        return min(self.plan.global_batch, left) if self.tail == "keep" else self.plan.global_batch

    def positions(self, step: int) -> list[MicroBatch]:
        """Return the micro batches of this rank in a step, with positions in the order as samples.

        Positions count from 0 at the start of the epoch, whatever ``begin`` is. Those that fill up
        the last step are beyond the length.
        """
        index = parse_integer(step)
        if index is None or not 0 <= index < self.steps:
            steps = f"Epoch {self.number} has {count_noun(self.steps, 'step')}"
            after = f" after the first {count_noun(self.begin, 'sample')}" if self.begin else ""
            known = f", 0 to {self.steps - 1}" if self.steps else ""
            summary, fix = f"the pass has no step {step!r}.", "for step in range(sampler.steps)."
            evidence = f"{steps}{after}{known}."
            raise CoordinateError(summary, evidence, fix=fix, index=step, size=self.steps)
        first = self.begin + index * self.plan.global_batch
        return [*self.plan.cut_step(self.total(index), first)]

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """Return the micro batches of this rank in a step, with dataset indices as samples."""
        batches = self.positions(step)
        indices = np.concatenate([micro.samples for micro in batches]) % self.length
        if self.shuffle:
            indices = shuffle_indices(indices, self.length, self.seed, self.number)
        if self.indices is not None:
            indices = self.indices[indices]
        ends = np.cumsum([len(micro.samples) for micro in batches])
        parts = np.split(indices, ends[:-1])
        return [replace(micro, samples=part) for micro, part in zip(batches, parts, strict=True)]

    def state(self, steps: int) -> State:
        """Return the position after some steps; ``consumed`` counts samples of the global order."""
        state: State = {
            "version": VERSION,
            "length": self.length,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "epoch": self.number,
            "consumed": min(self.begin + steps * self.plan.global_batch, self.length),
        }
        return state if self.indices is None else {**state, "order": self.digest}

    def resume(self, state: object) -> Epoch:
        """Return the rest of the epoch of a state, with the data and the plan of this one."""
        fields = read_state(state, FIELDS)
        number, consumed = read_position(fields)
        epoch = self.at(number, consumed)
        expected = epoch.state(0)
        is_seeded = self.shuffle if self.draw is None else "order" in fields
        fixed = ("length", "shuffle", *(["seed"] if is_seeded else []), "order")
        if differing := [n for n in fixed if fields.get(n) != expected.get(n)]:
            lines = (
                f"{name} is {fields.get(name)!r} in the state, {expected.get(name)!r} in this "
                "sampler."
                for name in differing
            )
            summary = "the state is of another order of samples."
            raise BatchError(summary, *lines, fix=_fix_of(differing, fields))
        if consumed > epoch.length:
            raise _invalid_state(f"consumed is {consumed}, of {count_noun(epoch.length, 'sample')}")
        return epoch


def _fix_of(differing: list[str], fields: Mapping[str, object]) -> str:
    """Return how to make a sampler of the order of a state."""
    settings = ["order=..."] * ("order" in fields)
    settings += [f"{name}={fields[name]!r}" for name in differing if name in ("shuffle", "seed")]
    has_other_data = "length" in differing and "order" not in fields
    ways = [f"the dataset of {fields['length']} samples"] * has_other_data
    if settings:
        own = " with the order= of the state's sampler" * ("order" in fields)
        ways.append(f"mesh.sampler(dataset, plan, {', '.join(settings)}){own}")
    elif "order" in differing:
        ways.append("mesh.sampler(dataset, plan) without order=")
    return f"{', with '.join(ways)}."


def read_state(state: object, names: tuple[str, ...]) -> Mapping[str, object]:
    """Return the state, which has the named fields and the current version."""
    if not isinstance(state, Mapping):
        raise _invalid_state(f"It is {article(type(state).__name__)}, not a dict")
    missing = [name for name in names if name not in state]
    if missing:
        raise _invalid_state(f"It has no {', '.join(missing)}")
    if state["version"] != VERSION:
        raise _invalid_state(f"Its version is {state['version']!r}, not {VERSION}")
    return state


def read_position(state: Mapping[str, object]) -> tuple[int, int]:
    """Return the epoch of a state and the samples consumed in it."""
    number, consumed = parse_integer(state["epoch"]), parse_integer(state["consumed"])
    if number is None or number < 0 or consumed is None or consumed < 0:
        fault = f"epoch is {state['epoch']!r}, consumed is {state['consumed']!r}"
        raise _invalid_state(fault)
    return number, consumed


def parse_count(name: str, value: object, most: int | None = None) -> int:
    """Return the number of a step or an epoch, or a number of steps, as a plain int."""
    number = parse_integer(value)
    if number is None or number < 0 or (most is not None and number > most):
        known = "0 or more" if most is None else f"from 0 to {most}"
        fix = f"{name} as an int, {known}."
        raise CoordinateError(f"{name} is {value!r}.", fix=fix, index=value)
    return number


def _invalid_state(fault: str) -> BatchError:
    return BatchError("the state is invalid.", f"{fault}.", fix="the result of state_dict().")


def shuffle_indices(indices: Ints, length: int, seed: int, epoch: int) -> Ints:
    """Return the samples at some positions, from 0, of the shuffled order of ``length`` samples.

    It depends on these four arguments only, not on the version of numpy or torch.
    Cost: O(positions), about 0.1 microseconds each for many positions.
    """
    positions = np.asarray(indices, dtype=np.int64)
    keys = np.frombuffer(hashlib.blake2b(f"{seed} {epoch} {length}".encode()).digest(), "<u8")
    samples = _permute(positions.ravel().astype(np.uint64), length, keys)
    while len(outside := np.flatnonzero(samples >= length)):
        samples[outside] = _permute(samples[outside], length, keys)
    return samples.astype(np.int64).reshape(positions.shape)


def _permute(words: Words, length: int, keys: Words) -> Words:
    """Apply the network once: a bijection of the smallest power of two that holds all samples."""
    bits = max((length - 1).bit_length(), MIN_BITS)
    width = np.uint64(bits // 2)  # of the low half; the high half has as many bits or one more
    masks = [np.uint64((1 << (bits - bits // 2)) - 1), np.uint64((1 << bits // 2) - 1)]
    halves = [words >> width, words & masks[1]]
    for number, key in enumerate(keys):
        half = number % 2
        halves[half] ^= _hash(halves[1 - half] + key) & masks[half]
    mixed: Words = halves[0] << width | halves[1]
    return mixed


def _hash(words: Words) -> Words:
    """Apply the finalizer of SplitMix64 in place, so that each bit depends on all bits."""
    for shift, factor in zip(SHIFTS, FACTORS, strict=False):
        words ^= words >> shift
        words *= factor
    words ^= words >> SHIFTS[-1]
    return words
