"""Judge which groups of a target are slow, from the time of each of their calls. Pure: no torch.

All groups make the same calls at once, in rounds that are spread over the run. A row is one
operation and size. A group is compared with its peers, the other groups of the target::

    factor = median call of the group / median of the medians of its peers
    slow   : the factor of the row is WORTH or more, and one of
             clear     the group was slower in nine of ten rounds of the row than its peers (the
                       median of them) were in nine of ten rounds
             unlikely  chance makes the mean factor of the group, over all rows of the target, in
                       one of 1000 targets at most, and it was slower in two of three rounds

The second is a permutation test. If groups differ by chance alone, those of a round could have
changed places. An exchange permutes the groups of each round, alike in all rows, and has a largest
mean factor of a group. A group is unlikely to be slow by chance if its mean factor is larger than
those of ``EXCHANGES``. The mean is the geometric one. A load that varies, or a rank that runs
freely in some calls and starves in others, makes the rounds of all groups overlap, so that none is
clear. All sizes together still show the group that is slower. Two groups need 11 rounds for it.
A burst of load on one group is no chance either, but it ends: hence two of three rounds.

For groups that differ by chance alone, 9 rounds make one clear in 1 of 1000 rows. A group without
peers is never slow. A target is doubtful if its largest mean factor is ``WORTH`` or more, and
chance makes it in one of 1000 targets to one of 10: more rounds decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..guard.stragglers import median_of_others
from ..text import Floats, Ints, Seconds

WORTH = 1.25  # least factor of a slow group
MIN_JUDGED = 9  # rounds; fewer say nothing about the noise
NOISE = 0.1  # of the rounds of a group that are left out at each end
EXCHANGES = 999  # of groups, so that the measured order is one of 1000
DOUBTFUL = 0.1  # of the exchanges reach the factor of a doubtful target at most
OFTEN = 2 / 3  # of the rounds
BATCH = 2**14  # calls that are exchanged at once, or those of a target
MOST_EXCHANGED = 256  # groups of a target; of more only clear ones are slow

Rounds = Sequence[Seconds]  # each (num_groups, calls), nan for a group that was not measured


@dataclass(frozen=True)
class GroupTime:
    """The calls of one group, on the slowest of its ranks."""

    index: int  # row of ``Layout.groups``
    low: float  # seconds; one of ten rounds took this long at most
    median: float  # seconds, of all calls
    high: float  # seconds; nine of ten rounds took this long at most
    factor: float  # of its median call to the median of its peers; 1 without peers
    is_slow: bool


def judge_groups(rows: Sequence[Rounds]) -> list[tuple[GroupTime, ...]]:
    """Return the time of each measured group in each row of a target, with as many rounds each."""
    indices = np.flatnonzero(~np.isnan(rows[0][0]).any(axis=1))
    rows = [[calls[indices] for calls in rounds] for rounds in rows]
    is_unlikely = _mean_factors(rows) > max(_exchange_groups(rows), default=np.inf)
    is_unlikely &= _share_of_rounds(rows) >= OFTEN
    judged = []
    for rounds in rows:
        each = [np.quantile(calls, 0.5, axis=1, method="lower") for calls in rounds]
        low, high = np.quantile(each, [NOISE, 1 - NOISE], axis=0)
        median = np.median(np.hstack(rounds), axis=-1)
        factor = median / median_of_others(median)
        is_above_noise = is_unlikely | (low > median_of_others(high))
        is_slow = is_above_noise & (factor >= WORTH) & (len(rounds) >= MIN_JUDGED)
        columns = (column.tolist() for column in (indices, low, median, high, factor, is_slow))
        judged.append(tuple(GroupTime(*group) for group in zip(*columns, strict=True)))
    return judged


def is_doubtful(rows: Sequence[Rounds]) -> bool:
    """Return whether more rounds must decide if a group of a target is slow; all were measured."""
    by_chance = _exchange_groups(rows)
    return bool(by_chance) and max(by_chance) >= _mean_factors(rows).max()


def _share_of_rounds(rows: Sequence[Rounds]) -> Floats:
    """Return in which share of the rounds each group was slower than its peers, over all rows."""
    sums = np.array([[calls.sum(axis=-1) for calls in rounds] for rounds in rows])
    factors = np.log(sums / median_of_others(sums)).mean(axis=0)  # (num_rounds, num_groups)
    return np.asarray((factors > 0).mean(axis=0))


def _exchange_groups(rows: Sequence[Rounds]) -> list[float]:
    """Return the largest mean factor of each exchange; none if chance alone may well make it."""
    num_groups, num_rounds = len(rows[0][0]), len(rows[0])
    largest = _mean_factors(rows).max()
    if num_groups > MOST_EXCHANGED or num_rounds < MIN_JUDGED or largest < WORTH:
        return []
    by_factor = _mean_factors(rows).argsort()  # so that the order of the groups does not matter
    rows = [[calls[by_factor] for calls in rounds] for rounds in rows]
    rng = np.random.default_rng(0)
    batch = max(1, BATCH // sum(np.hstack(rounds).size for rounds in rows))
    by_chance: list[float] = []
    while len(by_chance) < EXCHANGES:
        left = min(batch, EXCHANGES - len(by_chance))
        order = np.tile(np.arange(num_groups), (left, num_rounds, 1))
        by_chance += _mean_factors(rows, rng.permuted(order, axis=-1)).max(axis=-1).tolist()
        if sum(factor >= largest for factor in by_chance) > DOUBTFUL * EXCHANGES:
            return []
    return by_chance


def _mean_factors(rows: Sequence[Rounds], order: Ints | None = None) -> Floats:
    """Return the geometric mean over the rows of the factor of each group, (num_groups,).

    With an ``order``, (exchanges, num_rounds, num_groups), of the group that is measured as each
    one in each round, the factors are (exchanges, num_groups).
    """
    logs: list[Floats] = []
    for rounds in rows:
        calls = np.hstack(rounds)  # (num_groups, calls)
        if order is not None:
            number = np.repeat(np.arange(len(rounds)), [len(part[0]) for part in rounds])
            calls = calls[order[:, number].swapaxes(1, 2), np.arange(len(number))]
        median = np.median(calls, axis=-1)
        logs.append(np.log(median / median_of_others(median)))
    return np.asarray(np.exp(np.mean(logs, axis=0)))
