"""How the global batch grows over a run: a pure function of the samples consumed so far.

A schedule is a list of stages, each a global batch that holds from so many consumed samples on. It
knows nothing of steps or of the past, so a job goes on anywhere from one number::

    BatchSchedule.from_text(plan, "0:4 8:6")

    consumed      0       4       8           14          20
    global batch  |   4   |   4   |     6     |     6     | ...
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ..call import Verbatim, drop_none, public
from ..errors import BatchError, CoordinateError
from ..text import count_noun
from ..validate import parse_integer
from .batch import BatchPlan
from .batch_solver import solve_batch

Stage = tuple[int, int]
MOST = 2**16  # stages that a ramp may have
PLAN = Verbatim("plan")


@dataclass(frozen=True)
class BatchSchedule:
    """Which plan is in force after so many samples. Every stage is checked when it is made.

    Attributes:
        plan: the plan whose micro batch and data coordinates all stages have; of a rank
            (``mesh.batch``) or of none.
        stages: (consumed samples from which on, global batch), from 0 on, ascending.
        uneven: whether a stage may be uneven, as the plan may.

    Raises:
        BatchError: where stages do not begin at 0 or do not ascend, or a global batch does not
            divide, with the stage.

    Example:
        >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)
        >>> schedule = BatchSchedule(plan, ((0, 4), (8, 8)))
        >>> [(consumed, step.global_batch) for consumed, step in schedule.steps(until=24)]
        [(0, 4), (4, 4), (8, 8), (16, 8)]
    """

    plan: BatchPlan
    stages: tuple[Stage, ...]
    uneven: bool = field(default=False, compare=False)

    @public("BatchSchedule")
    def __post_init__(self) -> None:
        if not isinstance(self.plan, BatchPlan):
            raise BatchError(f"the plan is {self.plan!r}.", fix="mesh.batch(...) first.")
        stages = tuple(_pair(stage) for stage in self.stages)
        object.__setattr__(self, "uneven", bool(self.uneven or self.plan.uneven))
        object.__setattr__(self, "stages", stages)
        _check(self.plan, stages, self.uneven)

    @classmethod
    def constant(cls, plan: BatchPlan) -> BatchSchedule:
        """The plan's own global batch from beginning to end."""
        return cls(plan, ((0, plan.global_batch),))

    @classmethod
    @public("BatchSchedule.ramp_up")
    def ramp_up(
        cls, plan: BatchPlan, *, start: int, increment: int, samples: int, uneven: bool = False
    ) -> BatchSchedule:
        """From a small batch up to the plan's, by equal increments over so many samples.

        With k increments the global batch is ``start + j * increment`` from ``ceil(j * samples /
        k)`` consumed samples on (Megatron-LM's ``--rampup-batch-size start increment samples``).

        Args:
            plan: its global batch is where the ramp ends.
            start: the first global batch.
            increment: by how much each is larger than the one before.
            samples: consumed samples at which the plan's own is reached.
            uneven: as the constructor.

        Raises:
            BatchError: where the increments do not lead to the plan's global batch, are more than
                the samples, or one of the batches does not divide.

        Example:
            >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=1)
            >>> BatchSchedule.ramp_up(plan, start=2, increment=2, samples=100).stages
            ((0, 2), (34, 4), (67, 6), (100, 8))
        """
        asked = {"start": start, "increment": increment, "samples": samples}
        for name, value in asked.items():
            if (parse_integer(value) or 0) < 1:
                raise BatchError(f"{name} is {value!r}.", fix=f"{name}=1, or more.")
        start, increment, samples = (operator.index(value) for value in asked.values())
        steps, rest = divmod(plan.global_batch - start, increment)
        if rest or steps < 1:
            line = f"From {start} by {increment} never meets {plan.global_batch}."
            gap = plan.global_batch - start
            fix = f"increment={gap}, or what divides it." if gap > 0 else "start with less."
            raise BatchError("the ramp does not lead to the plan.", line, fix=fix)
        if steps > samples:
            line = f"{steps} increments do not fit into {count_noun(samples, 'sample')}."
            raise BatchError(line, fix=f"samples={steps}, or more.")
        if steps > MOST:
            line = f"{steps} increments; a schedule has {MOST} stages at most."
            raise BatchError(line, fix="a larger increment.")
        return cls._made(
            plan,
            [(-(-j * samples // steps), start + j * increment) for j in range(steps + 1)],
            uneven,
        )

    @classmethod
    @public("BatchSchedule.from_text")
    def from_text(
        cls,
        plan: BatchPlan,
        text: str,
        *,
        tokens_per_sample: int | None = None,
        uneven: bool = False,
    ) -> BatchSchedule:
        """Stages as they are written: ``"0:256 200000:512"``, consumed samples and global batch.

        Args:
            plan: whose micro batch and data coordinates all stages have.
            text: ``from:batch`` pairs.
            tokens_per_sample: where it is given, ``from`` counts tokens: a stage begins with the
                first sample after that many. The batches are in samples all the same.
            uneven: as the constructor.

        Raises:
            BatchError: for a text that cannot be read, and as the constructor.

        Example:
            >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)
            >>> BatchSchedule.from_text(plan, "0:4 1000:8", tokens_per_sample=128).stages
            ((0, 4), (8, 8))
        """
        drop_none(tokens_per_sample=tokens_per_sample)
        unit = 1 if tokens_per_sample is None else parse_integer(tokens_per_sample) or 0
        pairs = [part.split(":") for part in text.split()] if isinstance(text, str) else [[]]
        if not all(len(pair) == 2 and all(n.isdecimal() for n in pair) for pair in pairs):
            line = "stages are pairs of samples and a global batch."
            raise BatchError(line, fix='"0:256 200000:512", say.')
        if unit < 1:
            line = f"tokens_per_sample is {tokens_per_sample!r}."
            raise BatchError(line, fix="the length of a sequence, 1 or more.")
        stages = [(-(-int(first) // unit), int(size)) for first, size in pairs]
        return cls._made(plan, stages, uneven)

    @classmethod
    def _made(cls, plan: BatchPlan, stages: Sequence[Stage], uneven: bool) -> BatchSchedule:
        """A schedule whose errors quote the call that makes it."""
        _check(plan, stages, uneven or plan.uneven)
        return cls(plan, tuple(stages), uneven)

    def at(self, consumed: int) -> BatchPlan:
        """The plan of the step that begins after so many samples. O(log stages).

        Its samples begin there: ``schedule.at(c).samples(0, data_index, first=c)``.

        Raises:
            CoordinateError: where ``consumed`` is not an int of 0 or more.
        """
        number = parse_integer(consumed)
        if number is None or number < 0:
            raise CoordinateError(
                f"schedule.at({consumed!r}): no number of samples.",
                fix="schedule.at(0).",
                index=consumed,
            )
        place = bisect_right(self.stages, number, key=lambda stage: stage[0])
        return self._of(self.stages[place - 1][1])

    def steps(
        self, consumed: int = 0, *, until: int | None = None
    ) -> Iterator[tuple[int, BatchPlan]]:
        """Step after step from so many samples on: how many were consumed before it, its plan.

        Args:
            consumed: samples that were trained on before.
            until: stop before the step that would begin with so many; None never stops.

        Raises:
            CoordinateError: as :meth:`at`, when the first step is asked for.
        """
        while until is None or consumed < until:
            plan = self.at(consumed)
            yield consumed, plan
            consumed += plan.global_batch

    def consumed(self, step: int) -> int:
        """How many samples are consumed before a step that is counted from 0. O(stages).

        Raises:
            CoordinateError: where ``step`` is not an int of 0 or more.

        Example:
            >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)
            >>> BatchSchedule(plan, ((0, 4), (10, 8))).consumed(5)
            28
        """
        left = parse_integer(step)
        if left is None or left < 0:
            raise CoordinateError(
                f"schedule.consumed({step!r}): there is no such step.",
                fix="count from 0.",
                index=step,
            )
        consumed = 0
        for (_, size), (end, _) in pairwise(self.stages):
            steps = min(left, max(0, -(-(end - consumed) // size)))
            consumed, left = consumed + steps * size, left - steps
        return consumed + left * self.stages[-1][1]

    def resize(self, dp: int) -> BatchSchedule:
        """The same stages over another number of data coordinates, uneven where they must be.

        Raises:
            BatchError: where ``dp`` is not an int of 1 or more.
        """
        return BatchSchedule(self.plan.resize(dp), self.stages, uneven=True)

    def _of(self, global_batch: int) -> BatchPlan:
        """The plan with another global batch."""
        return _plan(self.plan, global_batch, self.uneven)


@public("BatchSchedule")
def _plan(plan: BatchPlan, global_batch: int, uneven: bool) -> BatchPlan:
    """A plan with another global batch.

    Raises:
        BatchError: where it does not divide.
    """
    sizes = {"dp": plan.dp, "global_batch": global_batch, "micro_batch": plan.micro_batch}
    return replace(plan, **solve_batch(sizes, uneven=uneven), uneven=uneven)


def _pair(stage: object) -> Stage:
    """A stage as two plain ints."""
    pair = tuple(stage) if isinstance(stage, Sequence) else ()
    first, size = map(parse_integer, pair) if len(pair) == 2 else (None, None)
    if first is None or first < 0 or size is None or size < 1:
        fix = "(samples consumed, global batch), such as (0, 256)."
        raise BatchError(f"{stage!r} is no stage.", fix=fix)
    return first, size


def _check(plan: BatchPlan, stages: Sequence[Stage], uneven: bool) -> None:
    """Refuse stages out of order, and those that cannot be run.

    Raises:
        BatchError: for the first of them.
    """
    firsts = [first for first, _ in stages]
    if firsts[:1] != [0] or any(a >= b for a, b in pairwise(firsts)):
        line = f"Stages begin at {', '.join(map(str, firsts)) or 'nothing'}."
        fix = "the first at 0, each later than the one before."
        raise BatchError("stages must ascend from 0.", line, fix=fix)
    for stage in stages:
        try:
            _plan(plan, stage[1], uneven)
        except BatchError as error:
            raise _unfit(plan, stage, error, uneven) from None


def _unfit(plan: BatchPlan, stage: Stage, error: BatchError, uneven: bool) -> BatchError:
    """A stage whose global batch does not divide, with what would."""
    (first, size), near = stage, [n for n in (error.below, error.above) if n is not None]
    helps = [] if uneven or size % plan.micro_batch else ["uneven=True"]
    return BatchError(
        f"the stage from {count_noun(first, 'sample')} on cannot be run.",
        f"{size} does not divide into micro batches of {plan.micro_batch} over dp {plan.dp}.",
        fix=f"{', or '.join([*(f'a global batch of {n}' for n in near), *helps])}.",
        global_batch=size,
        below=error.below,
        above=error.above,
    )
