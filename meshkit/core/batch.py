"""BatchPlan: global batch = micro batch x accumulation steps x data-parallel size, exactly.

Ranks of one sp x tp block read the same samples, so sp and tp never multiply the batch::

    one optimizer step of BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)

                     micro step 0    micro step 1
    data index 0         0 1             4 5
    data index 1         2 3             6 7
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .call import Call, given
from .errors import BatchError, CoordinateError, told
from .integers import integer
from .seats import Ints

THREE = ("global_batch", "micro_batch", "accumulation_steps")
PLURAL = {"micro_batch": "Micro batches", "accumulation_steps": "Accumulation steps"}
MAX_SAMPLES = 2**63 - 1  # what int64 can number
SHOWN = 8  # divisors named in an error


@dataclass(frozen=True)
class BatchPlan:
    """How one optimizer step is cut into micro batches. Make it with :meth:`solve`.

    Attributes:
        dp: data coordinates that divide the samples among them.
        global_batch: samples in one optimizer step, over all ranks.
        micro_batch: samples in one forward and backward of one rank.
        accumulation_steps: micro batches a rank runs before one optimizer step.
    """

    dp: int
    global_batch: int
    micro_batch: int
    accumulation_steps: int

    def __post_init__(self) -> None:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name, value in _solved(Call("BatchPlan", kwargs=fields), fields).items():
            object.__setattr__(self, name, value)  # as plain ints

    @classmethod
    def solve(
        cls,
        *,
        dp: int,
        global_batch: int | None = None,
        micro_batch: int | None = None,
        accumulation_steps: int | None = None,
    ) -> BatchPlan:
        """The plan from any two of the three; the third follows. Nothing is rounded.

        Args:
            dp: how many data coordinates divide the samples.
            global_batch: samples in one optimizer step.
            micro_batch: samples in one forward and backward of one rank.
            accumulation_steps: micro batches a rank runs before one optimizer step.

        Raises:
            BatchError: where fewer than two are given, one is not an int of 1 or more, or they do
                not divide; then with the nearest global batches that work.

        Example:
            >>> BatchPlan.solve(dp=4, global_batch=1024, micro_batch=4).accumulation_steps
            64
        """
        asked = given(
            global_batch=global_batch,
            micro_batch=micro_batch,
            accumulation_steps=accumulation_steps,
        )
        return batch_plan(Call("BatchPlan.solve", kwargs={"dp": dp, **asked}), dp, asked)

    def samples(self, step: int, data_index: int) -> Ints:
        """The samples that one data coordinate owns in one optimizer step. O(samples owned).

        Sample ``step * global_batch + (micro_step * dp + data_index) * micro_batch + i`` is item
        ``i`` of that micro step: one global order, whatever the mesh.

        Args:
            step: the optimizer step, from 0.
            data_index: the data coordinate, from 0 to dp - 1.

        Returns:
            int64 (accumulation_steps, micro_batch), indices into the global order.

        Raises:
            CoordinateError: where ``data_index`` is outside dp, or ``step`` is negative.

        Example:
            >>> BatchPlan.solve(dp=2, global_batch=8, micro_batch=2).samples(1, 0).tolist()
            [[8, 9], [12, 13]]
        """
        call = Call("plan.samples", (step, data_index))
        first, index = integer(step), integer(data_index)
        if first is None or not 0 <= first < MAX_SAMPLES // self.global_batch:
            text = told(f"{call}: there is no step {step!r}.", fix="count steps from 0.")
            raise CoordinateError(text, index=step)
        if index is None or not 0 <= index < self.dp:
            text = told(
                f"{call}: there is no data index {data_index!r}.",
                f"dp is {self.dp}, so they run from 0 to {self.dp - 1}.",
                fix='mesh.coordinate["dp"].',
            )
            raise CoordinateError(text, axis="dp", index=data_index, size=self.dp)
        micro_steps = np.arange(self.accumulation_steps, dtype=np.int64)[:, None]
        items = np.arange(self.micro_batch, dtype=np.int64)
        blocks = micro_steps * self.dp + index
        return first * self.global_batch + blocks * self.micro_batch + items

    def __str__(self) -> str:
        return (
            f"global_batch {self.global_batch} = micro_batch {self.micro_batch} x "
            f"accumulation_steps {self.accumulation_steps} x dp {self.dp}"
        )


def batch_plan(call: Call, dp: object, asked: Mapping[str, object]) -> BatchPlan:
    """:meth:`BatchPlan.solve` for a call of another name, which its errors then quote."""
    return BatchPlan(**_solved(call, {"dp": dp, **asked}))


def _solved(call: Call, asked: Mapping[str, object]) -> dict[str, int]:
    """All four values, from dp and two or three of the others."""
    sizes = {name: _checked(call, name, asked) for name in asked}
    missing = [name for name in THREE if name not in sizes]
    if len(missing) > 1:
        raise _too_few(call, sizes, missing)
    unit = math.prod(size for name, size in sizes.items() if name != "global_batch")
    total = sizes.get("global_batch", unit)
    if total % unit or (not missing and total != unit):
        raise _indivisible(call, sizes, unit)
    return {**sizes, **{name: total if name == THREE[0] else total // unit for name in missing}}


def _checked(call: Call, name: str, asked: Mapping[str, object]) -> int:
    number = integer(value := asked[name])
    if number is None or number < 1:
        text = told(
            f"{call}: {name} is {value!r}.",
            "Batches and steps are whole numbers of 1 or more.",
            fix=f"{name}={_unit(asked) if name == THREE[0] else 1}, or more.",
        )
        raise BatchError(text)
    return number


def _unit(asked: Mapping[str, object]) -> int:
    """What a global batch must be a multiple of, as far as the rest can be read."""
    numbers = [integer(value) for name, value in asked.items() if name != THREE[0]]
    return math.prod(number for number in numbers if number is not None and number > 0)


def _too_few(call: Call, sizes: Mapping[str, int], missing: list[str]) -> BatchError:
    """Only one of the three was given, or none: name a second one that fits."""
    changes = {missing[-1]: 1}
    if "global_batch" in sizes:
        changes["global_batch"] = -(-sizes["global_batch"] // sizes["dp"]) * sizes["dp"]
    if len(missing) > len(THREE) - 1:
        changes[missing[-2]] = 1
    text = told(
        f"{call}: {len(THREE) - len(missing)} of {', '.join(THREE)} given.",
        "Any two of the three give the third.",
        fix=f"{call.but(**changes)}.",
    )
    return BatchError(text, global_batch=sizes.get("global_batch"))


def _indivisible(call: Call, sizes: Mapping[str, int], unit: int) -> BatchError:
    """The batch that does not divide, with the nearest that do, and what divides it."""
    total, dp = sizes["global_batch"], sizes["dp"]
    exact = len(sizes) == len(THREE) + 1
    low, high = (total // unit * unit, (total // unit + 1) * unit) if not exact else (unit, unit)
    below, above = low if 0 < low < total else None, high if high > total else None
    near = [n for n in (below, above) if n is not None]
    product = " x ".join(f"{name} {size}" for name, size in sizes.items() if name != THREE[0])
    divisors = _divisors(total // dp) if total % dp == 0 else ()
    # what is free to change divides just as the micro batch would
    free = "accumulation_steps" if "micro_batch" not in sizes else "micro_batch"
    shown = _nearby(divisors, sizes.get(free, 1))
    ways = [f"global_batch={n}" for n in near]
    if divisors:
        ways.append("leave out one of the three" if exact else f"{free} one of {shown}")
    text = told(
        f"{call}: {total} is not {'' if exact else 'a multiple of '}{product} = {unit}.",
        f"Nearest global batches: {' and '.join(str(n) for n in near)}.",
        f"{PLURAL[free]} that divide {total} over dp {dp}: {shown}.",
        fix=f"{', or '.join(ways)}.",
    )
    return BatchError(text, global_batch=total, below=below, above=above, micro_batches=divisors)


def _divisors(number: int) -> tuple[int, ...]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def _nearby(divisors: tuple[int, ...], wanted: int) -> str:
    """The divisors nearest to what was asked for, in ascending order."""
    near = sorted(sorted(divisors, key=lambda n: abs(n - wanted))[:SHOWN])
    return ", ".join(str(n) for n in near) or "none"
