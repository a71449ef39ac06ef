"""One measured collective: times over groups and calls.

::

    seconds       (num_ranks, calls), time of each call on each rank; nan if its group was skipped
    group         the slowest rank of a group, call by call: (num_groups, calls)
    median, p99   over all groups and calls
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...core.arrays import Seconds
from ...core.grid.layout import Layout
from .collectives import busbw_factor, gigabytes_per_second
from .targets import Target


@dataclass(frozen=True)
class Case:
    """An operation, its groups and the size of its array."""

    op: str  # one of ``OPERATIONS``
    target: Target
    bytes: int  # size of the total array; of each of the two if two axes run at once

    def __str__(self) -> str:
        return f"{self.op} over {self.target.name}, {self.bytes} bytes"


@dataclass(frozen=True)
class Measurement:
    """A case measured in one mode. Without a time, the backend lacks the operation."""

    case: Case
    mode: str  # ``"alone"``, ``"concurrent"`` or ``"overlap"``, see sweep.py
    sizes: tuple[int, ...]  # ranks in a group, or in each of two groups if two axes run at once
    wrong: int = 0  # wrong elements in the results of all ranks
    calls: int = 0  # timed calls of each group; 0 if the operation is unsupported
    median: float | None = None  # seconds of a call, on the slowest rank of its group
    p99: float | None = None  # not exceeded by 99 of 100 calls; the slowest of fewer calls
    unsupported: str | None = None  # message of a backend that lacks the operation
    groups: int = 0  # number of measured groups; ``"alone"`` measures a sample of many
    num_groups: int = 0  # of the target

    @property
    def algbw(self) -> float | None:
        """Decimal GB/s of the median call; None without a time, and for two axes at once."""
        if self.median is None or len(self.sizes) > 1:
            return None
        return gigabytes_per_second(self.case.bytes, self.median)

    @property
    def busbw(self) -> float | None:
        """Decimal GB/s of a link, by the factor of nccl-tests; None as for ``algbw``."""
        algbw = self.algbw
        return None if algbw is None else algbw * busbw_factor(self.case.op, self.sizes[0])


def group_sizes(layout: Layout, target: Target) -> tuple[int, ...]:
    """Return the ranks in a group; of each of the two if two axes run at once."""
    return tuple(layout.size(*axes) for axes in target.groups)


def summarize(
    layout: Layout, case: Case, mode: str, seconds: Seconds, wrong: int = 0
) -> Measurement:
    """Return the measurement of a case from ``seconds``, (num_ranks, calls). Pure."""
    groups = layout.groups(*case.target.span)  # (num_groups, group_size)
    position = {int(rank): index for index, rank in enumerate(layout.grid.flat)}
    positions = np.array([[position[int(rank)] for rank in group] for group in groups])
    slowest = seconds[positions].max(axis=1)  # (num_groups, calls)
    was_measured = ~np.isnan(slowest).any(axis=1)
    times = np.sort(slowest[was_measured], axis=None)
    return Measurement(
        case,
        mode,
        group_sizes(layout, case.target),
        wrong,
        seconds.shape[1],
        float(np.median(times)),
        float(times[-(-99 * len(times) // 100) - 1]),
        groups=int(was_measured.sum()),
        num_groups=len(groups),
    )
