"""BatchPlan: global batch = micro batch x accumulation steps x data-parallel size, exactly.

Ranks of one sp x tp block read the same samples, so sp and tp never multiply the batch. The name dp
stands for all data coordinates: those along ep, too, if a mesh has experts::

    one optimizer step of BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)

                     micro step 0    micro step 1
    data index 0         0 1             4 5
    data index 1         2 3             6 7
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..arrays import Ints
from ..call import drop_none, quotes_call
from ..errors import CoordinateError
from ..validate import parse_integer
from .batch_solver import BATCH_FIELDS, solve_batch
from .micro_batch import MicroBatch, micro_batches

MAX_SAMPLES = 2**63 - 1  # the largest sample index of int64


@dataclass(frozen=True, eq=False, init=False)
class BatchPlan:
    """The division of one optimizer step into micro batches. Create it with :meth:`solve`.

    Plans with equal sizes are equal.

    Attributes:
        dp: data coordinates that divide the samples among them.
        global_batch: samples in one optimizer step, over all ranks.
        micro_batch: samples in one forward and backward of one rank.
        accumulation_steps: micro batches that a rank runs before one optimizer step.
        uneven: whether some of these are fillers, since the micro batches do not divide by dp.
        asked: the requested global batch, if it was rounded; else None.

    Raises:
        BatchError: if a size is not an int of 1 or more, or if the sizes contradict each other.

    Example:
        >>> plan = BatchPlan.solve(dp=4, global_batch=64, micro_batch=4)
        >>> plan.accumulation_steps, plan.samples(step=0, data_index=1)[0].tolist()
        (4, [4, 5, 6, 7])
    """

    dp: int
    global_batch: int
    micro_batch: int
    accumulation_steps: int
    uneven: bool = False
    asked: int | None = field(default=None, init=False, repr=False)

    @quotes_call("BatchPlan")
    def __init__(
        self,
        dp: int,
        global_batch: int,
        micro_batch: int,
        accumulation_steps: int,
        uneven: bool = False,
    ) -> None:
        given = dict(
            zip(BATCH_FIELDS, (dp, global_batch, micro_batch, accumulation_steps), strict=True)
        )
        sizes = solve_batch(given, uneven=uneven)
        for name, size in sizes.items():
            object.__setattr__(self, name, size)
        leftover = sizes["global_batch"] // sizes["micro_batch"] % sizes["dp"]
        object.__setattr__(self, "uneven", leftover > 0)

    @classmethod
    @quotes_call("BatchPlan.solve")
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
        """Return the plan of any three sizes; the fourth follows. Nothing is rounded by default.

        Args:
            dp: data coordinates that divide the samples.
            global_batch: samples in one optimizer step.
            micro_batch: samples in one forward and backward of one rank.
            accumulation_steps: micro batches that a rank runs before one optimizer step.
            round: ``"down"`` or ``"up"``: take the nearest global batch that works if this one does
                not. ``plan.asked`` and ``print(plan)`` then show the requested one.
            uneven: whether some ranks may run one micro batch more than others if the micro batches
                do not divide by dp. The global batch, a multiple of the micro batch, is exact.

        Raises:
            BatchError: if too few sizes are given, or a size is not an int of 1 or more; if they do
                not divide, with the nearest global batches that work.

        Example:
            >>> BatchPlan.solve(dp=4, global_batch=1024, micro_batch=4).accumulation_steps
            64
            >>> print(BatchPlan.solve(dp=4, global_batch=100, micro_batch=3, round="down"))
            global_batch 96 (100 asked) = micro_batch 3 x accumulation_steps 8 x dp 4
            >>> print(BatchPlan.solve(dp=7, global_batch=32, micro_batch=1, uneven=True))
            global_batch 32 = micro_batch 1 x 32, of which dp 7 run 5 or 4 each
        """
        given = drop_none(
            dp=dp,
            global_batch=global_batch,
            micro_batch=micro_batch,
            accumulation_steps=accumulation_steps,
        )
        return cls.of(solve_batch(given, round, uneven))

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> BatchPlan:
        """Return the plan of sizes from :func:`solve_batch`.

        Example:
            >>> sizes = {"dp": 4, "global_batch": 64, "micro_batch": 4, "accumulation_steps": 4}
            >>> print(BatchPlan.of(sizes))
            global_batch 64 = micro_batch 4 x accumulation_steps 4 x dp 4
        """
        plan = cls(**{name: sizes[name] for name in BATCH_FIELDS}, uneven=True)
        object.__setattr__(plan, "asked", sizes.get("asked"))
        return plan

    @quotes_call("plan.samples")
    def samples(self, step: int, data_index: int, *, first: int = 0) -> Ints:
        """Return the samples that one data coordinate owns in one optimizer step.

        Sample ``first + step * global_batch + (micro_step * dp + data_index) * micro_batch + i`` is
        item ``i`` of that micro step. The global order is the same on every mesh.

        Cost: O(samples owned).

        Args:
            step: the optimizer step, from 0.
            data_index: the data coordinate, from 0 to dp - 1.
            first: the first sample of step 0: the samples that were consumed before this plan.

        Returns:
            int64 (num_micro_batches(data_index), micro_batch), indices into the global order. For
            an even plan that is (accumulation_steps, micro_batch).

        Raises:
            CoordinateError: if ``data_index`` is outside dp, or if ``step`` or ``first`` is
                negative, or too large for int64.

        Example:
            >>> BatchPlan.solve(dp=2, global_batch=8, micro_batch=2).samples(1, 0).tolist()
            [[8, 9], [12, 13]]
        """
        begin, index = self._first_sample(step, first), self._parse_index(data_index)
        micro_steps = np.arange(self.num_micro_batches(index), dtype=np.int64)[:, None]
        items = np.arange(self.micro_batch, dtype=np.int64)
        return begin + (micro_steps * self.dp + index) * self.micro_batch + items

    @quotes_call("plan.micro_batches")
    def micro_batches(self, step: int, data_index: int, *, first: int = 0) -> Iterator[MicroBatch]:
        """Return an iterator over the micro batches of one data coordinate in one step.

        Every data coordinate runs the same number. With an uneven plan, a coordinate that owns
        fewer runs fillers too, with weight 0, since FSDP2 communicates in every forward.

        Args:
            step: the optimizer step, from 0.
            data_index: the data coordinate, from 0 to dp - 1.
            first: the first sample of step 0.

        Returns:
            ``accumulation_steps`` micro batches, each with the factor of its mean loss,
            ``dp * samples / global_batch``. The gradient averaged over dp is then exactly that of
            the mean over the global batch.

        Raises:
            CoordinateError: as :meth:`samples`, at the call.

        Example:
            >>> plan = BatchPlan.solve(dp=2, global_batch=3, micro_batch=1, uneven=True)
            >>> [(m.samples.tolist(), round(m.weight, 3)) for m in plan.micro_batches(0, 1)]
            [([1], 0.667), ([1], 0.0)]
        """
        begin, index = self._first_sample(step, first), self._parse_index(data_index)
        return micro_batches(self.global_batch, self.micro_batch, self.dp, index, begin)

    @quotes_call("plan.num_micro_batches")
    def num_micro_batches(self, data_index: int) -> int:
        """Return the number of micro batches that a data coordinate owns, without fillers. O(1).

        Raises:
            CoordinateError: if ``data_index`` is outside dp.

        Example:
            >>> plan = BatchPlan.solve(dp=7, global_batch=32, micro_batch=1, uneven=True)
            >>> [plan.num_micro_batches(d) for d in range(plan.dp)]
            [5, 5, 5, 5, 4, 4, 4]
        """
        index = self._parse_index(data_index)
        return -(-(self.global_batch // self.micro_batch - index) // self.dp)

    @quotes_call("plan.resize")
    def resize(self, dp: int) -> BatchPlan:
        """Return the plan of the same batches over another number of data coordinates.

        The plan is uneven if it must be. The global order is kept, so a job continues at the next
        unread sample.

        Raises:
            BatchError: if ``dp`` is not an int of 1 or more.

        Example:
            >>> plan = BatchPlan.solve(dp=8, global_batch=32, micro_batch=1)
            >>> plan.resize(dp=7).accumulation_steps, plan.resize(dp=7).global_batch
            (5, 32)
        """
        sizes = {"dp": dp, "global_batch": self.global_batch, "micro_batch": self.micro_batch}
        return BatchPlan.of(solve_batch(sizes, uneven=True))

    @quotes_call("plan.with_global_batch")
    def with_global_batch(self, global_batch: int, *, uneven: bool = False) -> BatchPlan:
        """Return the plan of another global batch with the same dp and micro batch.

        Raises:
            BatchError: if the global batch does not divide, with the nearest ones that work.

        Example:
            >>> plan = BatchPlan.solve(dp=2, global_batch=8, micro_batch=2)
            >>> plan.with_global_batch(12).accumulation_steps
            3
        """
        sizes = {"dp": self.dp, "global_batch": global_batch, "micro_batch": self.micro_batch}
        return BatchPlan.of(solve_batch(sizes, uneven=uneven))

    def _first_sample(self, step: object, first: object) -> int:
        """Return the first sample of a step."""
        number, offset = parse_integer(step), parse_integer(first)
        if number is None or not 0 <= number < MAX_SAMPLES // self.global_batch:
            raise CoordinateError(f"the plan has no step {step!r}.", fix="step=0.", index=step)
        if offset is None or not 0 <= offset < MAX_SAMPLES - (number + 1) * self.global_batch:
            raise CoordinateError(f"first is {first!r}.", fix="first=0, or more.", index=first)
        return offset + number * self.global_batch

    def _parse_index(self, data_index: object) -> int:
        index = parse_integer(data_index)
        if index is None or not 0 <= index < self.dp:
            raise CoordinateError(
                f"the plan has no data index {data_index!r}.",
                f"dp is {self.dp}, so data indices run from 0 to {self.dp - 1}.",
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
        most, num_micro_batches = self.accumulation_steps, self.global_batch // self.micro_batch
        return f"{total}{num_micro_batches}, of which dp {self.dp} run {most} or {most - 1} each"
