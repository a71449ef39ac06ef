"""BatchPlan: global batch = micro batch x accumulation steps x data-parallel size, exactly.

Ranks of one sp x tp block read the same samples, so sp and tp never multiply the batch::

    one optimizer step of BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)

                     micro step 0    micro step 1
    data index 0         0 1             4 5
    data index 1         2 3             6 7
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from ..arrays import Ints
from ..call import Call, drop_none, public
from ..errors import CoordinateError
from ..validate import parse_integer
from .batch_solver import BATCH_FIELDS, solve_batch
from .micro_batch import MicroBatch, micro_batches

Plan = TypeVar("Plan", bound="BatchPlan")

MAX_SAMPLES = 2**63 - 1  # what int64 can number


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """How one optimizer step is cut into micro batches. Make it with :meth:`solve`.

    Plans that cut alike are equal.

    Attributes:
        dp: data coordinates that divide the samples among them.
        global_batch: samples in one optimizer step, over all ranks.
        micro_batch: samples in one forward and backward of one rank.
        accumulation_steps: micro batches a rank runs before one optimizer step.
        uneven: whether some of these are fillers, as the micro batches do not divide by dp.
        asked: the global batch that was asked for, where it was rounded; else None.
    """

    dp: int
    global_batch: int
    micro_batch: int
    accumulation_steps: int
    uneven: bool = False
    asked: int | None = field(default=None, init=False)

    @public("BatchPlan")
    def __post_init__(self) -> None:
        fields = {name: getattr(self, name) for name in BATCH_FIELDS}
        for name, value in solve_batch(fields, uneven=self.uneven).items():
            object.__setattr__(self, name, value)  # as plain ints
        object.__setattr__(self, "uneven", bool(self.global_batch // self.micro_batch % self.dp))

    @classmethod
    def solve(
        cls,
        *,
        dp: int | None = None,
        global_batch: int | None = None,
        micro_batch: int | None = None,
        accumulation_steps: int | None = None,
        round: str | None = None,
        uneven: bool = False,
    ) -> BatchPlan:
        """The plan from any three of the four; the last follows. Nothing is rounded unasked.

        Args:
            dp: how many data coordinates divide the samples.
            global_batch: samples in one optimizer step.
            micro_batch: samples in one forward and backward of one rank.
            accumulation_steps: micro batches a rank runs before one optimizer step.
            round: ``"down"`` or ``"up"``: take the nearest global batch that works where this one
                does not; ``plan.asked`` and ``print(plan)`` then say what was asked for.
            uneven: let some ranks run one micro batch more than others where they do not divide by
                dp. The global batch, a multiple of the micro batch, is held exactly.

        Raises:
            BatchError: where too few are given, one is not an int of 1 or more, or they do not
                divide; then with the nearest global batches that work.

        Example:
            >>> BatchPlan.solve(dp=4, global_batch=1024, micro_batch=4).accumulation_steps
            64
            >>> print(BatchPlan.solve(dp=4, global_batch=100, micro_batch=3, round="down"))
            global_batch 96 (100 asked) = micro_batch 3 x accumulation_steps 8 x dp 4
            >>> print(BatchPlan.solve(dp=7, global_batch=32, micro_batch=1, uneven=True))
            global_batch 32 = micro_batch 1 x 32, of which dp 7 run 5 or 4 each
        """
        asked = drop_none(
            dp=dp,
            global_batch=global_batch,
            micro_batch=micro_batch,
            accumulation_steps=accumulation_steps,
        )
        batch_call("BatchPlan.solve", asked, round, uneven)
        return cls.of(solve_batch(asked, round, uneven))

    @classmethod
    def of(cls: type[Plan], sizes: Mapping[str, int], **more: Any) -> Plan:  # noqa: ANN401
        """The plan of sizes that were solved, with the global batch that was asked for."""
        fields = {name: sizes[name] for name in BATCH_FIELDS}
        plan = cls(**fields, uneven=True, **more)
        object.__setattr__(plan, "asked", sizes.get("asked"))
        return plan

    @public("plan.samples")
    def samples(self, step: int, data_index: int, *, first: int = 0) -> Ints:
        """The samples that one data coordinate owns in one optimizer step. O(samples owned).

        Sample ``first + step * global_batch + (micro_step * dp + data_index) * micro_batch + i`` is
        item ``i`` of that micro step: one global order, whatever the mesh.

        Args:
            step: the optimizer step, from 0.
            data_index: the data coordinate, from 0 to dp - 1.
            first: the first sample of step 0: what was consumed before this plan came into force.

        Returns:
            int64 (num_micro_batches(data_index), micro_batch), indices into the global order. Of an
            even plan that is (accumulation_steps, micro_batch).

        Raises:
            CoordinateError: where ``data_index`` is outside dp, or ``step`` or ``first`` is
                negative, or beyond what int64 can number.

        Example:
            >>> BatchPlan.solve(dp=2, global_batch=8, micro_batch=2).samples(1, 0).tolist()
            [[8, 9], [12, 13]]
        """
        begin, index = self._begin(step, first), self._index(data_index)
        micro_steps = np.arange(self.num_micro_batches(index), dtype=np.int64)[:, None]
        items = np.arange(self.micro_batch, dtype=np.int64)
        return begin + (micro_steps * self.dp + index) * self.micro_batch + items

    @public("plan.micro_batches")
    def micro_batches(self, step: int, data_index: int, *, first: int = 0) -> Iterator[MicroBatch]:
        """What one data coordinate runs in one optimizer step. Lazily.

        As many on every data coordinate: where an uneven plan owns fewer, fillers make up for it,
        which are run like the others, with weight 0. (FSDP2 communicates in every forward.)

        Args:
            step: as in :meth:`samples`, and so are the other two.
            data_index: the data coordinate.
            first: the first sample of step 0.

        Returns:
            ``accumulation_steps`` micro batches: their samples, whether they are the last, and by
            what to scale the mean loss of each: ``dp * samples / global_batch``. The gradient,
            averaged over dp, is then exactly that of the mean over the global batch.

        Raises:
            CoordinateError: as :meth:`samples`, at the call.

        Example:
            >>> plan = BatchPlan.solve(dp=2, global_batch=3, micro_batch=1, uneven=True)
            >>> [(m.samples.tolist(), round(m.weight, 3)) for m in plan.micro_batches(0, 1)]
            [([1], 0.667), ([1], 0.0)]
        """
        begin, index = self._begin(step, first), self._index(data_index)
        return micro_batches(self.global_batch, self.micro_batch, self.dp, index, begin)

    @public("plan.num_micro_batches")
    def num_micro_batches(self, data_index: int) -> int:
        """How many micro batches a data coordinate owns, fillers left out. O(1).

        Raises:
            CoordinateError: where ``data_index`` is outside dp.

        Example:
            >>> plan = BatchPlan.solve(dp=7, global_batch=32, micro_batch=1, uneven=True)
            >>> [plan.num_micro_batches(d) for d in range(plan.dp)]
            [5, 5, 5, 5, 4, 4, 4]
        """
        index = self._index(data_index)
        return -(-(self.global_batch // self.micro_batch - index) // self.dp)

    @public("plan.resize")
    def resize(self, dp: int) -> BatchPlan:
        """The same global batch and micro batch over another number of data coordinates.

        Uneven where it must be. The global order stays: a job goes on at the next unread sample.

        Raises:
            BatchError: where ``dp`` is not an int of 1 or more.

        Example:
            >>> plan = BatchPlan.solve(dp=8, global_batch=32, micro_batch=1)
            >>> plan.resize(dp=7).accumulation_steps, plan.resize(dp=7).global_batch
            (5, 32)
        """
        asked = {"dp": dp, "global_batch": self.global_batch, "micro_batch": self.micro_batch}
        return BatchPlan.of(solve_batch(asked, uneven=True))

    def _begin(self, step: object, first: object) -> int:
        """The first sample of a step."""
        number, offset = parse_integer(step), parse_integer(first)
        if number is None or not 0 <= number < MAX_SAMPLES // self.global_batch:
            raise CoordinateError(
                f"there is no step {step!r}.", fix="count steps from 0.", index=step
            )
        if offset is None or not 0 <= offset < MAX_SAMPLES - (number + 1) * self.global_batch:
            raise CoordinateError(f"first is {first!r}.", fix="count samples from 0.", index=first)
        return offset + number * self.global_batch

    def _index(self, data_index: object) -> int:
        index = parse_integer(data_index)
        if index is None or not 0 <= index < self.dp:
            raise CoordinateError(
                f"there is no data index {data_index!r}.",
                f"dp is {self.dp}, so they run from 0 to {self.dp - 1}.",
                fix=f"a data index from 0 to {self.dp - 1}.",
                axis="dp",
                index=data_index,
                size=self.dp,
            )
        return index

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BatchPlan):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in BATCH_FIELDS)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in BATCH_FIELDS))

    def __str__(self) -> str:
        asked = f" ({self.asked} asked)" if self.asked is not None else ""
        total = f"global_batch {self.global_batch}{asked} = micro_batch {self.micro_batch} x "
        if not self.uneven:
            return f"{total}accumulation_steps {self.accumulation_steps} x dp {self.dp}"
        most, cuts = self.accumulation_steps, self.global_batch // self.micro_batch
        return f"{total}{cuts}, of which dp {self.dp} run {most} or {most - 1} each"


def batch_call(name: str, said: Mapping[str, object], round: object, uneven: object) -> Call:
    """A call that makes a plan, without what was left at its default."""
    return Call(name, kwargs={**said, **drop_none(round=round, uneven=uneven or None)})
