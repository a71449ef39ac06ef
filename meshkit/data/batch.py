"""BatchPlan: global batch = micro batch x accumulation steps x data-parallel size, exactly.

Ranks of one sp x tp block read the same samples, so sp and tp never multiply the batch. The name dp
stands for the product of all data axes: those of experts, too, if a mesh has them::

    one optimizer step of BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)

                     micro step 0    micro step 1
    data index 0         0 1             4 5
    data index 1         2 3             6 7

If the micro batches do not divide by dp, an uneven plan lets some ranks run a filler. A filler runs
like any micro batch, since FSDP2 communicates in every forward. Its weight is 0::

    5 micro batches over dp=2

                     micro step 0    micro step 1    micro step 2
    data index 0       batch 0         batch 2         batch 4
    data index 1       batch 1         batch 3         filler
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..call import divisors, drop_none, either, parse_integer, quotes_call
from ..errors import BatchError, CoordinateError
from ..layout.axes import (
    Axes,
    axes_with_unknown,
    data_axes,
    resolve_axes,
    unknown_axes,
    unknown_role_error,
)
from ..synonyms import ARGUMENTS
from ..text import Ints, article, format_sizes, plural

BATCH_FIELDS = ("dp", "global_batch", "micro_batch", "accumulation_steps")
PLURAL = {"micro_batch": "Micro batches", "accumulation_steps": "Accumulation steps"}
MAX_SAMPLES = 2**63 - 1  # the largest sample index of int64
MAX_DIVISORS = 8  # divisors named in an error
MAX_CHOICES = 4  # sets of axes that a fix shows

Plan = TypeVar("Plan", bound="BatchPlan")


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """One forward and backward of one rank.

    Weighted gradients, averaged over the data coordinates as DDP and FSDP do, add up to the mean
    over the global batch.
    """

    index: int  # the micro step within the optimizer step, from 0
    samples: Ints  # (up to micro_batch,), the samples to read
    weight: float  # the factor of the mean loss of the micro batch
    is_last: bool  # whether gradients are synchronized after this micro batch
    is_filler: bool = False  # whether the samples are those of another one; the weight is then 0


@dataclass(frozen=True, eq=False, init=False)
class BatchPlan:
    """The division of one optimizer step into micro batches. Create it with :meth:`solve`.

    Plans with equal sizes are equal and have one ``repr``, also those of different ranks.

    Raises:
        BatchError: if a size is not an int of 1 or more, or if the sizes contradict each other.

    Example:
        >>> plan = BatchPlan.solve(dp=4, global_batch=64, micro_batch=4)
        >>> plan.accumulation_steps, plan.samples(step=0, data_index=1)[0].tolist()
        (4, [4, 5, 6, 7])
    """

    dp: int  # data coordinates that divide the samples among them
    global_batch: int  # samples in one optimizer step, over all ranks
    micro_batch: int  # samples in one forward and backward of one rank
    accumulation_steps: int  # micro batches that a rank runs before one optimizer step
    uneven: bool = False  # whether some of these are fillers
    # the data coordinate whose samples are returned by default; None in a plan of no rank, and on
    # a rank outside the mesh
    data_index: int | None = field(default=None, compare=False, repr=False)

    @quotes_call("BatchPlan")
    def __init__(
        self,
        dp: int,
        global_batch: int,
        micro_batch: int,
        accumulation_steps: int,
        uneven: bool = False,
        data_index: int | None = None,
    ) -> None:
        numbers = (dp, global_batch, micro_batch, accumulation_steps)
        sizes = solve_batch(dict(zip(BATCH_FIELDS, numbers, strict=True)), uneven)
        leftover = sizes["global_batch"] // sizes["micro_batch"] % sizes["dp"]
        vars(self).update(sizes, uneven=leftover > 0, data_index=data_index)

    if not TYPE_CHECKING:  # a type checker reports names that a plan does not have

        def __getattr__(self, name: str) -> object:
            """Raise with the name here of a size that another library calls otherwise."""
            if (size := ARGUMENTS.get(name)) in BATCH_FIELDS:
                raise AttributeError(f"a plan has no attribute {name!r}; use plan.{size}")
            return super().__getattribute__(name)

    @classmethod
    @quotes_call("BatchPlan.solve")
    def solve(
        cls,
        *,
        dp: int | None = None,
        global_batch: int | None = None,
        micro_batch: int | None = None,
        accumulation_steps: int | None = None,
        uneven: bool = False,
    ) -> BatchPlan:
        """Return the plan of any three sizes; the fourth follows. Nothing is rounded.

        With ``uneven``, some ranks may run one micro batch more than others if the micro batches do
        not divide by dp. The global batch, a multiple of the micro batch, is exact.

        Raises:
            BatchError: if too few sizes are given, or a size is not an int of 1 or more; if they do
                not divide, with the nearest global batches that work.

        Example:
            >>> print(BatchPlan.solve(dp=7, global_batch=32, micro_batch=1, uneven=True))
            global_batch 32 = micro_batch 1 x 32, of which dp 7 run 5 or 4 each
        """
        sizes = (dp, global_batch, micro_batch, accumulation_steps)
        given = drop_none(**dict(zip(BATCH_FIELDS, sizes, strict=True)))
        return BatchPlan(**solve_batch(given, uneven), uneven=True)

    @quotes_call("plan.samples")
    def samples(self, step: int, data_index: int | None = None, *, first: int = 0) -> Ints:
        """Return the samples that one data coordinate owns in one optimizer step.

        Sample ``first + step * global_batch + (micro_step * dp + data_index) * micro_batch + i`` is
        item ``i`` of that micro step, the same on every mesh. Cost: O(samples owned).

        Args:
            step: the optimizer step, from 0.
            data_index: from 0 to dp - 1; None is the plan's own.
            first: the first sample of step 0: the samples that were consumed before this plan.

        Returns:
            int64 (num_micro_batches(data_index), micro_batch), indices into the global order.

        Raises:
            CoordinateError: if ``data_index`` is outside dp, or None in a plan without its own; if
                ``step`` or ``first`` is negative, or too large for int64.
        """
        begin, index = self._first_sample(step, first), self._parse_index(data_index)
        micro_steps = np.arange(self.num_micro_batches(index), dtype=np.int64)[:, None]
        items = np.arange(self.micro_batch, dtype=np.int64)
        return begin + (micro_steps * self.dp + index) * self.micro_batch + items

    @quotes_call("plan.micro_batches")
    def micro_batches(
        self, step: int, data_index: int | None = None, *, first: int = 0
    ) -> Iterator[MicroBatch]:
        """Return an iterator over the micro batches of one data coordinate in one step.

        Every data coordinate runs the same number. With an uneven plan, a coordinate that owns
        fewer runs fillers too, with weight 0, since FSDP2 communicates in every forward.

        Arguments and errors, which are raised at the call, are those of :meth:`samples`. The weight
        of a micro batch is ``dp * samples / global_batch``.

        Example:
            >>> plan = BatchPlan.solve(dp=2, global_batch=3, micro_batch=1, uneven=True)
            >>> [(m.samples.tolist(), round(m.weight, 3)) for m in plan.micro_batches(0, 1)]
            [([1], 0.667), ([1], 0.0)]
        """
        begin, index = self._first_sample(step, first), self._parse_index(data_index)
        return self.cut_step(self.global_batch, begin, index)

    def cut_step(self, total: int, first: int, index: int | None = None) -> Iterator[MicroBatch]:
        """Yield the micro batches of one data coordinate in a step of ``total`` samples."""
        index = self._parse_index(index)
        num_batches = -(-total // self.micro_batch)
        steps = -(-num_batches // self.dp)
        for micro_step in range(steps):
            number = micro_step * self.dp + index
            is_filler = number >= num_batches
            begin = (index % num_batches if is_filler else number) * self.micro_batch
            end = min(begin + self.micro_batch, total)
            samples = np.arange(first + begin, first + end, dtype=np.int64)
            weight = 0.0 if is_filler else self.dp * len(samples) / total
            yield MicroBatch(micro_step, samples, weight, micro_step == steps - 1, is_filler)

    @quotes_call("plan.num_micro_batches")
    def num_micro_batches(self, data_index: int | None = None) -> int:
        """Return the number of micro batches that a data coordinate owns, without fillers. O(1)."""
        index = self._parse_index(data_index)
        return -(-(self.global_batch // self.micro_batch - index) // self.dp)

    @quotes_call("plan.resize")
    def resize(self, dp: int) -> BatchPlan:
        """Return the plan of the same batches over another number of data coordinates, of no rank.

        The plan is uneven if it must be. The global order is kept, so a job continues at the next
        unread sample.
        """
        sizes = {"dp": dp, "global_batch": self.global_batch, "micro_batch": self.micro_batch}
        return BatchPlan(**solve_batch(sizes, uneven=True), uneven=True)

    @quotes_call("plan.with_global_batch")
    def with_global_batch(self: Plan, global_batch: int, *, uneven: bool = False) -> Plan:
        """Return the plan of another global batch with the same dp, micro batch and data index."""
        sizes = {"dp": self.dp, "global_batch": global_batch, "micro_batch": self.micro_batch}
        return replace(self, **solve_batch(sizes, uneven), uneven=True)

    def _first_sample(self, step: object, first: object) -> int:
        number, offset = parse_integer(step), parse_integer(first)
        if number is None or not 0 <= number < MAX_SAMPLES // self.global_batch:
            raise CoordinateError(f"the plan has no step {step!r}.", fix="step=0.", index=step)
        if offset is None or not 0 <= offset < MAX_SAMPLES - (number + 1) * self.global_batch:
            raise CoordinateError(f"first is {first!r}.", fix="first=0, or more.", index=first)
        return offset + number * self.global_batch

    def _parse_index(self, data_index: object) -> int:
        if data_index is None and self.data_index is None:
            raise CoordinateError(
                "the plan has no data index of its own.",
                "It is a plan of no rank, or this rank is outside the mesh.",
                fix=f"data_index from 0 to {self.dp - 1}, or check mesh.inside first.",
            )
        index = self.data_index if data_index is None else parse_integer(data_index)
        if index is None or not 0 <= index < self.dp:
            line = f"dp is {self.dp}, so data indices run from 0 to {self.dp - 1}."
            fields = {"axis": "dp", "index": data_index, "size": self.dp}
            summary = f"the plan has no data index {data_index!r}."
            fix = f"a data index from 0 to {self.dp - 1}."
            raise CoordinateError(summary, line, fix=fix, **fields)
        return index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchPlan):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in BATCH_FIELDS)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in BATCH_FIELDS))

    def __str__(self) -> str:
        total = f"global_batch {self.global_batch} = micro_batch {self.micro_batch} x "
        if not self.uneven:
            return f"{total}accumulation_steps {self.accumulation_steps} x dp {self.dp}"
        most, num_micro_batches = self.accumulation_steps, self.global_batch // self.micro_batch
        return f"{total}{num_micro_batches}, of which dp {self.dp} run {most} or {most - 1} each"


def solve_batch(given: Mapping[str, object], uneven: object = False) -> dict[str, int]:
    """Return all four sizes. The micro batches of an uneven solution need not divide by dp."""
    sizes = {name: _parse_size(name, given) for name in given}
    if not isinstance(uneven, bool):
        raise BatchError(f"uneven is {uneven!r}.", fix="uneven=True, or uneven=False.")
    missing = [name for name in BATCH_FIELDS if name not in sizes]
    if len(missing) > 1:
        raise _missing_sizes_error(sizes, missing)
    if uneven and missing in ([], ["accumulation_steps"]):
        return _solve_uneven(sizes)
    unit = math.prod(size for name, size in sizes.items() if name != "global_batch")
    total = sizes.setdefault("global_batch", unit)
    if total % unit or (not missing and total != unit):
        raise _indivisible_error(sizes, unit, is_exact=not missing)
    return {**dict.fromkeys(missing, total // unit), **sizes}


def _solve_uneven(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return sizes for which data coordinates may run one micro batch more than others."""
    total, micro = sizes["global_batch"], sizes["micro_batch"]
    if total % micro:
        divided = {"global_batch": total, "micro_batch": micro}
        raise _indivisible_error(divided, micro, is_exact=False)
    steps = -(-(total // micro) // sizes["dp"])
    if sizes.get("accumulation_steps", steps) != steps:
        raise BatchError(
            f"accumulation_steps is {sizes['accumulation_steps']}.",
            f"{total // micro} micro batches over dp {sizes['dp']} are {steps} a rank at most.",
            fix=f"accumulation_steps={steps}, or leave it out.",
            global_batch=total,
        )
    return {**sizes, "accumulation_steps": steps}


def _parse_size(name: str, given: Mapping[str, object]) -> int:
    """Return a size as a plain int, also one that a config holds as a float, such as 8.0."""
    value = given[name]
    is_whole = isinstance(value, float) and value.is_integer()
    number = int(value) if is_whole else parse_integer(value)  # type: ignore[call-overload]
    if number is not None and number >= 1:
        return int(number)
    others = [parse_integer(size) or 1 for other, size in given.items() if other != name]
    smallest = math.prod(n for n in others if n > 0) if name == "global_batch" else 1
    fix = f"{name}={smallest}, or more."
    with suppress(ValueError, OverflowError):  # a str that is no number, or an infinite one
        if isinstance(value, str) and float(value) >= 1:
            fix = f"{name}={int(float(value))}."
    kind = f", {article(type(value).__name__)}" if isinstance(value, str) else ""
    line = "Batches and steps are whole numbers of 1 or more."
    raise BatchError(f"{name} is {value!r}{kind}.", line, fix=fix)


def _missing_sizes_error(sizes: Mapping[str, int], missing: list[str]) -> BatchError:
    """Return the error of too few sizes, with values for the missing ones."""
    has_dp = "dp" in sizes
    names = BATCH_FIELDS[has_dp:]
    rule = "Any two of the three give the third." if has_dp else "Any three give the last."
    free = "global_batch" if "global_batch" in missing else missing[0]
    values = dict.fromkeys((name for name in missing if name != free), 1)
    if total := sizes.get("global_batch"):
        known = math.prod(size for name, size in sizes.items() if name != "global_batch")
        values["global_batch"] = -(-total // known) * known
    given = len(names) - len(missing)
    return BatchError(
        f"{given} of {', '.join(names)} {'is' if given == 1 else 'are'} given.",
        rule,
        fix=f"{format_sizes(values, ', ')}.",
        global_batch=total,
    )


def _indivisible_error(sizes: Mapping[str, int], unit: int, is_exact: bool) -> BatchError:
    """Return the error of a batch that does not divide, with the nearest ones that do."""
    total = sizes["global_batch"]
    low, high = (unit, unit) if is_exact else (total // unit * unit, (total // unit + 1) * unit)
    below, above = low if 0 < low < total else None, high if high > total else None
    nearest = [n for n in (below, above) if n is not None]
    product = " x ".join(f"{name} {size}" for name, size in sizes.items() if name != "global_batch")
    # Suggest values for the size that the caller may change.
    free = "accumulation_steps" if "micro_batch" not in sizes else "micro_batch"
    fixed = next((name for name in ("dp", "accumulation_steps") if name in sizes), "")
    factor = sizes.get(fixed, 1)
    fitting = divisors(total // factor) if total % factor == 0 else ()
    quotient = f"{total} over {fixed} {factor}" if fixed else f"{total}"
    closest = sorted(fitting, key=lambda n: abs(n - sizes.get(free, 1)))[:MAX_DIVISORS]
    shown = ", ".join(str(n) for n in sorted(closest)) or "none"
    ways = [f"global_batch={n}" for n in nearest]
    if fitting:
        one_of = f"{free} one of {shown}" if len(closest) > 1 else f"{free}={shown}"
        ways.append("leave out one of the three" if is_exact else one_of)
    if {*sizes} == {"dp", "global_batch", "micro_batch"} and total % sizes["micro_batch"] == 0:
        idle = sizes["dp"] - total // sizes["micro_batch"]
        without = f", which leaves {idle} of dp {sizes['dp']} without a batch"
        # the ways that keep the global batch come first, unless they waste ranks
        ways = [*ways[::-1], f"uneven=True{without}"] if idle > 0 else ["uneven=True", *ways]
    return BatchError(
        f"{total} is not {'' if is_exact else 'a multiple of '}{product} = {unit}.",
        f"Nearest global {plural('batch', len(nearest))}: {' and '.join(str(n) for n in nearest)}.",
        f"{PLURAL[free]} that divide {quotient}: {shown}.",
        fix=either(*ways),
        global_batch=total,
        below=below,
        above=above,
        micro_batches=fitting,
    )


def resolve_data_axes(data: object, sizes: Mapping[str, int]) -> Axes:
    """Return the axes that ``data=`` names; for None, the axes whose role divides the samples."""
    if data is not None:
        return resolve_axes("data", data, tuple(sizes))
    if unknown_axes(sizes):
        ways = [f"data={' '.join(axes)!r}" for axes in data_choices(sizes)]
        raise unknown_role_error(sizes, either(*ways))
    return data_axes(sizes)


def num_data_coordinates(sizes: Mapping[str, int], axes: Axes) -> int:
    """Return the number of data coordinates: the product of the sizes of the data axes."""
    return math.prod(sizes.get(axis, 1) for axis in axes)


def data_choices(sizes: Mapping[str, int], dp: int | None = None) -> list[Axes]:
    """Return the sets of axes that may divide the samples, the largest first."""
    choices = axes_with_unknown(sizes, data_axes(sizes))
    fitting = [axes for axes in choices if num_data_coordinates(sizes, axes) == dp]
    return (fitting or choices)[:MAX_CHOICES]


def describe_data(sizes: Mapping[str, int], axes: Axes) -> tuple[str, ...]:
    """Return a line about the sizes of the data axes; none if dp alone divides the samples."""
    long_axes = [axis for axis in axes if sizes.get(axis, 1) > 1]
    if long_axes in ([], ["dp"]):
        return ()
    product = " x ".join(f"{axis} {sizes[axis]}" for axis in long_axes)
    total = f" = {num_data_coordinates(sizes, axes)}" if len(long_axes) > 1 else ""
    return (f"{product}{total} divides the samples.",)
