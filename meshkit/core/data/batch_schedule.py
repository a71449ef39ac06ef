"""BatchSchedule: the global batch as a function of the samples consumed so far.

A schedule is a list of stages. Each stage is a global batch, and the number of consumed samples at
which it begins. A schedule does not depend on past steps, so a job resumes from one number::

    BatchSchedule.from_text(plan, "0:4 8:6")

    consumed      0       4       8           14          20
    global batch  |   4   |   4   |     6     |     6     | ...
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from ..call import quotes_call
from ..errors import BatchError, CoordinateError
from ..text import count_noun
from ..validate import divisors, parse_integer
from .batch import BatchPlan

Stage = tuple[int, int]
MAX_STAGES = 2**16

Plan = TypeVar("Plan", bound="StagePlan")


class StagePlan(Protocol):
    """A batch plan whose global batch a schedule changes."""

    @property
    def dp(self) -> int:
        """The number of data coordinates."""

    @property
    def global_batch(self) -> int:
        """Samples in one optimizer step."""

    @property
    def micro_batch(self) -> int:
        """Samples in one forward and backward of one rank."""

    @property
    def uneven(self) -> bool:
        """Whether the micro batches do not divide by dp."""

    def with_global_batch(self: Plan, global_batch: int, *, uneven: bool = False) -> Plan:
        """Return the plan of another global batch."""

    def resize(self, dp: int) -> BatchPlan:
        """Return the plan over another number of data coordinates."""


@dataclass(frozen=True, init=False)
class BatchSchedule(Generic[Plan]):
    """The plan in force after a number of consumed samples. All stages are validated at creation.

    Attributes:
        plan: a plan with the dp and micro batch of all stages: a :class:`BatchPlan`, or the plan
            of a rank from ``mesh.batch``.
        stages: (consumed samples at the begin of the stage, global batch), ascending from 0.
        uneven: whether a stage may be uneven; always so if the plan is uneven.

    Raises:
        BatchError: if stages do not begin at 0 or do not ascend; if a global batch does not divide,
            with the stage.

    Example:
        >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)
        >>> schedule = BatchSchedule(plan, ((0, 4), (8, 8)))
        >>> [(consumed, step.global_batch) for consumed, step in schedule.steps(until=24)]
        [(0, 4), (4, 4), (8, 8), (16, 8)]
    """

    plan: Plan
    stages: tuple[Stage, ...]
    uneven: bool = field(default=False, compare=False)

    @quotes_call("BatchSchedule", by_name=("plan",))
    def __init__(self, plan: Plan, stages: Sequence[Stage], uneven: bool = False) -> None:
        if not hasattr(plan, "with_global_batch"):
            fix = "a plan of mesh.batch(...) or BatchPlan.solve(...)."
            raise BatchError(f"the plan is {plan!r}.", fix=fix)
        object.__setattr__(self, "plan", plan)
        object.__setattr__(self, "stages", tuple(_parse_stage(stage) for stage in stages))
        object.__setattr__(self, "uneven", bool(uneven or plan.uneven))
        self._check_stages()

    @classmethod
    def constant(cls, plan: Plan) -> BatchSchedule[Plan]:
        """Return the schedule with the plan's own global batch from beginning to end.

        Example:
            >>> from meshkit import BatchPlan
            >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=1)
            >>> print(BatchSchedule.constant(plan).at(1000))
            global_batch 8 = micro_batch 1 x accumulation_steps 4 x dp 2
        """
        return cls(plan, ((0, plan.global_batch),))

    @classmethod
    @quotes_call("BatchSchedule.ramp_up", by_name=("plan",))
    def ramp_up(
        cls, plan: Plan, *, start: int, increment: int, samples: int, uneven: bool = False
    ) -> BatchSchedule[Plan]:
        """Return a schedule that grows by equal increments from a small batch to the plan's.

        With k increments the global batch is ``start + j * increment`` from ``ceil(j * samples /
        k)`` consumed samples on (Megatron-LM's ``--rampup-batch-size start increment samples``).

        Args:
            plan: its global batch is the end of the ramp.
            start: the first global batch.
            increment: the difference between one global batch and the next.
            samples: consumed samples at which the plan's global batch is reached.
            uneven: as in the constructor.

        Raises:
            BatchError: if the increments do not lead to the plan's global batch, or exceed the
                samples; if one of the batches does not divide.

        Example:
            >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=1)
            >>> BatchSchedule.ramp_up(plan, start=2, increment=2, samples=100).stages
            ((0, 2), (34, 4), (67, 6), (100, 8))
        """
        options = {"start": start, "increment": increment, "samples": samples}
        for name, value in options.items():
            if (parse_integer(value) or 0) < 1:
                raise BatchError(f"{name} is {value!r}.", fix=f"{name}=1, or more.")
        start, increment, samples = (operator.index(value) for value in options.values())
        num = _num_increments(plan.global_batch, start, increment, samples)
        stages = [(-(-j * samples // num), start + j * increment) for j in range(num + 1)]
        return cls(plan, stages, uneven)

    @classmethod
    @quotes_call("BatchSchedule.from_text", by_name=("plan",))
    def from_text(
        cls,
        plan: Plan,
        text: str,
        *,
        tokens_per_sample: int | None = None,
        uneven: bool = False,
    ) -> BatchSchedule[Plan]:
        """Return the schedule of a text such as ``"0:256 200000:512"``.

        Args:
            plan: a plan with the dp and micro batch of all stages.
            text: pairs of consumed samples and a global batch, ``samples:batch``.
            tokens_per_sample: if given, the first number of a pair counts tokens, and the stage
                begins with the first sample after that many. Batches still count samples.
            uneven: as in the constructor.

        Raises:
            BatchError: if the text is invalid, and as the constructor.

        Example:
            >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)
            >>> BatchSchedule.from_text(plan, "0:4 1000:8", tokens_per_sample=128).stages
            ((0, 4), (8, 8))
        """
        unit = 1 if tokens_per_sample is None else parse_integer(tokens_per_sample) or 0
        pairs = [part.split(":") for part in text.split()] if isinstance(text, str) else [[]]
        if not all(len(pair) == 2 and all(n.isdecimal() for n in pair) for pair in pairs):
            line = "stages are pairs of consumed samples and a global batch."
            raise BatchError(line, fix='"0:256 200000:512", for example.')
        if unit < 1:
            line = f"tokens_per_sample is {tokens_per_sample!r}."
            raise BatchError(line, fix="the length of a sequence in tokens, 1 or more.")
        return cls(plan, [(-(-int(first) // unit), int(size)) for first, size in pairs], uneven)

    @quotes_call("schedule.at")
    def at(self, consumed: int) -> Plan:
        """Return the plan of the step that begins after a number of consumed samples.

        Its samples begin there: ``schedule.at(c).samples(0, data_index, first=c)``.

        Cost: O(log stages).

        Raises:
            CoordinateError: if ``consumed`` is not an int of 0 or more.

        Example:
            >>> from meshkit import BatchPlan
            >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=1)
            >>> schedule = BatchSchedule.from_text(plan, "0:8 64:16")
            >>> schedule.at(63).global_batch, schedule.at(64).global_batch
            (8, 16)
        """
        number = parse_integer(consumed)
        if number is None or number < 0:
            line = f"consumed is {consumed!r}."
            raise CoordinateError(line, fix="consumed=0, or more.", index=consumed)
        place = bisect_right(self.stages, number, key=lambda stage: stage[0])
        return self.plan.with_global_batch(self.stages[place - 1][1], uneven=self.uneven)

    def steps(self, consumed: int = 0, *, until: int | None = None) -> Iterator[tuple[int, Plan]]:
        """Yield the samples consumed before each step, and the plan of the step.

        Args:
            consumed: samples that were trained on before the first step.
            until: stop before a step that begins after this many samples; None never stops.

        Raises:
            CoordinateError: as :meth:`at`, at the first step.

        Example:
            >>> from meshkit import BatchPlan
            >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=1)
            >>> schedule = BatchSchedule.from_text(plan, "0:8 16:16")
            >>> [(consumed, plan.global_batch) for consumed, plan in schedule.steps(until=48)]
            [(0, 8), (8, 8), (16, 16), (32, 16)]
        """
        while until is None or consumed < until:
            plan = self.at(consumed)
            yield consumed, plan
            consumed += plan.global_batch

    @quotes_call("schedule.consumed")
    def consumed(self, step: int) -> int:
        """Return the number of samples consumed before a step. Cost: O(stages).

        Args:
            step: the step, from 0.

        Raises:
            CoordinateError: if ``step`` is not an int of 0 or more.

        Example:
            >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)
            >>> BatchSchedule(plan, ((0, 4), (10, 8))).consumed(5)
            28
        """
        left = parse_integer(step)
        if left is None or left < 0:
            raise CoordinateError(f"step is {step!r}.", fix="step=0, or more.", index=step)
        consumed = 0
        for (_, size), (end, _) in pairwise(self.stages):
            steps = min(left, max(0, -(-(end - consumed) // size)))
            consumed, left = consumed + steps * size, left - steps
        return consumed + left * self.stages[-1][1]

    @quotes_call("schedule.resize")
    def resize(self, dp: int) -> BatchSchedule[BatchPlan]:
        """Return the same stages over another number of data coordinates, uneven if necessary.

        Raises:
            BatchError: if ``dp`` is not an int of 1 or more.

        Example:
            >>> from meshkit import BatchPlan
            >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=1)
            >>> print(BatchSchedule.constant(plan).resize(dp=4).at(0))
            global_batch 8 = micro_batch 1 x accumulation_steps 2 x dp 4
        """
        return BatchSchedule(self.plan.resize(dp), self.stages, uneven=True)

    def _check_stages(self) -> None:
        """Raise for the first stage that is out of order or does not divide."""
        firsts = [first for first, _ in self.stages]
        if firsts[:1] != [0] or any(a >= b for a, b in pairwise(firsts)):
            line = (
                f"Stages begin at {', '.join(map(str, firsts))}." if firsts else "No stage given."
            )
            fix = "the first stage at 0, and each later than the one before."
            raise BatchError("stages must ascend from 0.", line, fix=fix)
        for stage in self.stages:
            try:
                self.plan.with_global_batch(stage[1], uneven=self.uneven)
            except BatchError as error:
                raise self._indivisible_error(stage, error) from None

    def _indivisible_error(self, stage: Stage, error: BatchError) -> BatchError:
        """Return the error of a stage that does not divide, with global batches that do."""
        (first, size), plan = stage, self.plan
        ways = [f"a global batch of {n}" for n in (error.below, error.above) if n is not None]
        ways += [] if self.uneven or size % plan.micro_batch else ["uneven=True"]
        return BatchError(
            f"the stage from {count_noun(first, 'sample')} on does not divide.",
            f"{size} does not divide into micro batches of {plan.micro_batch} over dp {plan.dp}.",
            fix=f"{', or '.join(ways)}.",
            global_batch=size,
            below=error.below,
            above=error.above,
        )


def _num_increments(last: int, start: int, increment: int, samples: int) -> int:
    """Return the number of increments from the first global batch to the last."""
    num, leftover = divmod(last - start, increment)
    if leftover or num < 1:
        gap = last - start
        line = f"From {start}, increments of {increment} do not reach {last}."
        fix = f"increment={gap}, or a divisor of {gap}." if gap > 0 else f"start below {last}."
        raise BatchError("the ramp does not lead to the plan's global batch.", line, fix=fix)
    if num > samples:
        line = f"{num} increments do not fit into {count_noun(samples, 'sample')}."
        raise BatchError(line, fix=f"samples={num}, or more.")
    if num > MAX_STAGES:
        line = f"{num} increments are too many, since a schedule has at most {MAX_STAGES} stages."
        fitting = next(n for n in divisors(last - start) if (last - start) // n <= MAX_STAGES)
        raise BatchError(line, fix=f"increment={fitting}, for example.")
    return num


def _parse_stage(stage: object) -> Stage:
    """Return a stage as two plain ints."""
    pair = tuple(stage) if isinstance(stage, Sequence) else ()
    first, size = map(parse_integer, pair) if len(pair) == 2 else (None, None)
    if first is None or first < 0 or size is None or size < 1:
        fix = "(consumed samples, global batch), for example (0, 256)."
        raise BatchError(f"the stage {stage!r} is invalid.", fix=fix)
    return first, size
