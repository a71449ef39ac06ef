"""Judge which groups of an axis are slow, from the time of each of their calls. Pure: no torch.

All groups make the same calls at once, in rounds that are spread over the run. A group is compared
with its peers, the other groups of the target::

    factor = median call of the group / median of the medians of its peers
    slow   : factor is WORTH or more, and the group was slower in nine of ten rounds than its peers
             (the median of them) were in nine of ten rounds

A round counts by the median of its calls. The second condition is the noise: if the load of the
machine varies, the rounds of a group overlap with those of its peers, and no group is named. For
groups that differ by chance alone, 9 rounds name one in 1 of 1000 rows. A group without peers is
never slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..guard.stragglers import median_of_others
from ..text import Seconds

WORTH = 1.25  # least factor of a slow group
MIN_JUDGED = 9  # rounds; fewer say nothing about the noise
NOISE = 0.1  # of the rounds of a group that are left out at each end


@dataclass(frozen=True)
class GroupTime:
    """The calls of one group, on the slowest of its ranks."""

    index: int  # row of ``Layout.groups``
    low: float  # seconds; one of ten rounds took this long at most
    median: float  # seconds, of all calls
    high: float  # seconds; nine of ten rounds took this long at most
    factor: float  # to the median of its peers; 1 without peers
    is_slow: bool


def judge_groups(rounds: Sequence[Seconds]) -> tuple[GroupTime, ...]:
    """Return the time of each measured group; each round is (num_groups, calls).

    The calls of a group that was not measured are nan.
    """
    seconds = np.hstack(rounds)
    indices = np.flatnonzero(~np.isnan(seconds).any(axis=1))
    median = np.median(seconds[indices], axis=1)
    each = [np.quantile(calls[indices], 0.5, axis=1, method="lower") for calls in rounds]
    low, high = np.quantile(each, [NOISE, 1 - NOISE], axis=0)
    factors, slow = [1.0] * len(indices), [False] * len(indices)
    if len(indices) > 1:
        ratio = median / median_of_others(median)
        factors = ratio.tolist()
        if len(rounds) >= MIN_JUDGED:
            slow = ((ratio >= WORTH) & (low > median_of_others(high))).tolist()
    rows = zip(indices.tolist(), low.tolist(), median.tolist(), high.tolist(), strict=True)
    return tuple(
        GroupTime(*row, factor, is_slow)
        for row, factor, is_slow in zip(rows, factors, slow, strict=True)
    )
