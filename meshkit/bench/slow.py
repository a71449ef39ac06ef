"""Judge which groups of an axis are slow, from the time of each of their calls. Pure: no torch.

All groups make the same calls at once, in rounds that are spread over the run. A group is compared
with its peers, the other groups of the target::

    factor = median call of the group / median of the medians of its peers
    slow   : factor is WORTH or more, and one of
             clear   the group was slower in nine of ten rounds than its peers (the median of them)
                     were in nine of ten rounds
             paired  the group was slower than its peers in the same round, in nine of ten rounds
                     and in more rounds than chance allows

A round is clear by the median of its calls, and paired by their sum. If the load of the machine
varies, the rounds of a group overlap with those of its peers, and no group is clear. A load that
falls on all groups at once leaves the pairs as they are. So pairs find a rank that runs freely in
some calls and starves in others, if a round is longer than a turn of the scheduler. They need 11
rounds for two groups if all are slower, and 20 for nine of ten.

For groups that differ by chance alone, 9 rounds make one clear in 1 of 1000 rows. The pairs are a
sign test, which names one in 1 of 1000 rows at most, however long the tails are. A group without
peers is never slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from ..guard.stragglers import median_of_others
from ..text import Seconds

WORTH = 1.25  # least factor of a slow group
MIN_JUDGED = 9  # rounds; fewer say nothing about the noise
NOISE = 0.1  # of the rounds of a group that are left out at each end
ROWS = 1000  # of healthy groups, in one of which at most the pairs name a group


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
            sums = np.array([calls[indices].sum(axis=1) for calls in rounds])
            # the upper one of a middle two: each group is above it in half of the rounds at most
            slower = (sums > -median_of_others(-sums)).sum(axis=0)
            is_clear = low > median_of_others(high)
            is_paired = slower >= least_slower(len(indices), len(rounds))
            slow = ((ratio >= WORTH) & (is_clear | is_paired)).tolist()
    rows = zip(indices.tolist(), low.tolist(), median.tolist(), high.tolist(), strict=True)
    return tuple(
        GroupTime(*row, factor, is_slow)
        for row, factor, is_slow in zip(rows, factors, slow, strict=True)
    )


def least_slower(num_groups: int, rounds: int) -> int:
    """Return in how many rounds a slow group is slower than its peers; ``rounds + 1`` for never.

    The least number from nine of ten rounds on that one of so many healthy groups reaches in 1 of
    ``ROWS`` rows at most. A healthy one is slower in a round with a probability of 1/2 at most.
    """
    ways, slower = 0, rounds + 1
    while 10 * (slower - 1) >= 9 * rounds:
        ways += comb(rounds, slower - 1)
        if num_groups * ways * ROWS > 2**rounds:
            break
        slower -= 1
    return slower
