"""BatchSchedule: the global batch as a function of the samples consumed so far.

A schedule is a list of stages. Each stage is a global batch, and the number of consumed samples at
which it begins. A schedule does not depend on past steps, so a job resumes from one number::

    BatchSchedule(plan, ((0, 4), (8, 6)))

    consumed      0       4       8           14          20
    global batch  |   4   |   4   |     6     |     6     | ...
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..call import either, parse_integer, quotes_call
from ..errors import BatchError, CoordinateError
from ..text import count_noun
from .batch import BatchPlan

Stage = tuple[int, int]


@dataclass(frozen=True, init=False)
class BatchSchedule:
    """The plan in force after a number of consumed samples. All stages are validated at creation.

    Raises:
        BatchError: if stages do not begin at 0 or do not ascend; if a global batch does not divide,
            with the stage.

    Example:
        >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)
        >>> schedule = BatchSchedule(plan, ((0, 4), (8, 8)))
        >>> [(consumed, step.global_batch) for consumed, step in schedule.steps(until=24)]
        [(0, 4), (4, 4), (8, 8), (16, 8)]
    """

    # has the dp and micro batch of all stages; a plan of mesh.batch gives plans of that rank
    plan: BatchPlan
    stages: tuple[Stage, ...]  # (consumed samples at its begin, global batch), ascending from 0
    uneven: bool = field(default=False, compare=False)  # whether a stage may be uneven

    @quotes_call("BatchSchedule", by_name=("plan",))
    def __init__(self, plan: BatchPlan, stages: Sequence[Stage], uneven: bool = False) -> None:
        if not isinstance(plan, BatchPlan):
            fix = "a plan of mesh.batch(...) or BatchPlan.solve(...)."
            raise BatchError(f"the plan is {plan!r}.", fix=fix)
        given = stages if isinstance(stages, Iterable) else (stages,)
        parsed = tuple(_parse_stage(stage) for stage in given)
        vars(self).update(plan=plan, stages=parsed, uneven=bool(uneven or plan.uneven))
        firsts = [first for first, _ in parsed]
        if firsts[:1] != [0] or any(a >= b for a, b in pairwise(firsts)):
            numbers = ", ".join(map(str, firsts))
            line = f"Stages begin at {numbers}." if firsts else "No stage given."
            fix = "the first stage at 0, and each later than the one before."
            raise BatchError("stages must ascend from 0.", line, fix=fix)
        for stage in parsed:
            self._check_divides(*stage)

    @classmethod
    @quotes_call("BatchSchedule.ramp_up", by_name=("plan",))
    def ramp_up(
        cls, plan: BatchPlan, *, start: int, increment: int, samples: int, uneven: bool = False
    ) -> BatchSchedule:
        """Return a schedule that grows by equal increments from a small batch to the plan's.

        With k increments the global batch is ``start + j * increment`` from ``ceil(j * samples /
        k)`` consumed samples on (Megatron-LM's ``--rampup-batch-size start increment samples``).

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
        start, increment, samples = map(int, options.values())
        gap = plan.global_batch - start
        num, leftover = divmod(gap, increment)
        if leftover or num < 1:
            line = f"From {start}, increments of {increment} do not reach {plan.global_batch}."
            lower = f"start below {plan.global_batch}."
            fix = f"increment={gap}, or a divisor of {gap}." if gap > 0 else lower
            raise BatchError("the ramp does not lead to the plan's global batch.", line, fix=fix)
        if num > samples:
            line = f"{num} increments do not fit into {count_noun(samples, 'sample')}."
            raise BatchError(line, fix=f"samples={num}, or more.")
        stages = [(-(-j * samples // num), start + j * increment) for j in range(num + 1)]
        return cls(plan, stages, uneven)

    @quotes_call("schedule.at")
    def at(self, consumed: int) -> BatchPlan:
        """Return the plan of the step that begins after a number of consumed samples.

        Its samples begin there: ``schedule.at(c).samples(0, data_index, first=c)``.
        Cost: O(log stages).
        """
        number = parse_integer(consumed)
        if number is None or number < 0:
            line = f"consumed is {consumed!r}."
            raise CoordinateError(line, fix="consumed=0, or more.", index=consumed)
        later = bisect_right(self.stages, number, key=lambda stage: stage[0])
        return self.plan.with_global_batch(self.stages[later - 1][1], uneven=self.uneven)

    def steps(
        self, consumed: int = 0, *, until: int | None = None
    ) -> Iterator[tuple[int, BatchPlan]]:
        """Yield the samples consumed before each step, and the plan of the step.

        It stops before a step that begins after ``until`` samples; with None it never stops.
        """
        while until is None or consumed < until:
            plan = self.at(consumed)
            yield consumed, plan
            consumed += plan.global_batch

    @quotes_call("schedule.resize")
    def resize(self, dp: int) -> BatchSchedule:
        """Return the same stages over another number of data coordinates, uneven if necessary."""
        return BatchSchedule(self.plan.resize(dp), self.stages, uneven=True)

    def _check_divides(self, first: int, size: int) -> None:
        plan = self.plan
        try:
            plan.with_global_batch(size, uneven=self.uneven)
        except BatchError as error:
            ways = [] if self.uneven or size % plan.micro_batch else ["uneven=True"]
            ways += [f"a global batch of {n}" for n in (error.below, error.above) if n is not None]
            raise BatchError(
                f"the stage from {count_noun(first, 'sample')} on does not divide.",
                f"{size} does not divide into micro batches of {plan.micro_batch} over dp "
                f"{plan.dp}.",
                fix=either(*ways),
                global_batch=size,
                below=error.below,
                above=error.above,
            ) from None


def _parse_stage(stage: object) -> Stage:
    pair = tuple(stage) if isinstance(stage, Sequence) else ()
    first, size = map(parse_integer, pair) if len(pair) == 2 else (None, None)
    if first is None or first < 0 or size is None or size < 1:
        fix = "(consumed samples, global batch), for example (0, 256)."
        raise BatchError(f"the stage {stage!r} is invalid.", fix=fix)
    return first, size
