"""Find ranks that make others wait, from the own seconds of each rank in each step.

The own time of a rank in a step is the time of the step less the waits in collectives. It has no
common clock, and no lateness of peers: a rank that waits for a late peer has the same own time as
before. A step lasts from the end of one guard to the end of the next::

    step 7    rank 0   own ####....######  8 ms    . waits in a collective, # all else
              rank 1   own ##############  14 ms   late by 6 ms: its peers wait for it

A rank is compared with the median of the others in the same step, so what slows all ranks names
none. A step counts as late if the difference exceeds what the steps of all ranks vary by. A rank is
late if late steps outnumber the others by 13 since some step (a CUSUM of signs: E. S. Page,
Continuous inspection schemes, 1954). So one long pause counts as one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..launch.disagreement import describe_coordinate
from ..layout.layout import Layout
from ..text import Floats, Ints

KEPT = 64  # steps in the memory of the rank that compares
ENOUGH = 13  # late steps more than others, after which a rank is late
MOST = 24  # at most so many count, so that a rank that is well again is so after 13 steps
LEAST_SECONDS = 0.002  # by which a step is late at least: the resolution of the samples
LEAST_PART = 0.03  # the same as a part of the step
SPREAD = 1.0  # the same, in median changes of the difference from a step to the next one
INTERVAL = 60.0  # seconds between two reports, at least


class Straggler(NamedTuple):
    """A rank that is late of its own."""

    rank: int
    seconds: float  # by which it is late in each step, the median
    since: int  # the step, from 1

    def describe(self, layout: Layout, host: str) -> str:
        """Return the line of the log about this rank."""
        place = f"rank {self.rank}" + f", host {host}" * bool(host)
        return (
            f"{describe_coordinate(layout, self.rank)} ({place}) is {self.seconds * 1e3:.0f} ms "
            f"late in each step, since step {self.since}, of its own"
        )


@dataclass
class OwnTime:
    """The own seconds of one rank in its current step, from samples of what it does.

    A sample says whether the rank waits in a collective. Between two samples that differ, it counts
    as waiting half of the time.
    """

    own: float = 0.0  # seconds of the current step
    began: float | None = None  # when the current step began; None before the first one
    last: tuple[float, bool] = (0.0, True)  # the last sample: when, and whether it does not wait

    def sample(self, now: float, *, is_own: bool) -> None:
        """Count the time since the last sample."""
        moment, was_own = self.last
        self.own += max(now - moment, 0.0) * (was_own + is_own) / 2
        self.last = max(now, moment), is_own

    def end_step(self, now: float) -> tuple[float, float] | None:
        """Begin the next step; return the seconds of the last one, and its own; None at first."""
        self.sample(now, is_own=True)
        step = None if self.began is None else (now - self.began, self.own)
        self.began, self.own, self.last = now, 0.0, (now, True)
        return step


def median_of_others(values: Floats) -> Floats:
    """Return for each value the median of the others in its row, the lower one of a middle two.

    The rows are the last dim. A value that is alone in its row is its own median.
    """
    ordered = np.sort(values, axis=-1)
    middle = (values.shape[-1] - 2) // 2
    lower, upper = ordered[..., middle, None], ordered[..., middle + 1, None]
    return np.where(values <= lower, upper, lower)


class StragglerFinder:
    """The lateness of all ranks of a mesh, step after step."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = ranks
        # seconds in the last steps, (num_steps, num_ranks)
        self.late_by = np.zeros((0, len(ranks)))
        self.steps: Ints = np.zeros(0, np.int64)  # their numbers
        self.count = np.zeros(len(ranks), np.int64)  # late steps less the others, of each rank
        self.since = np.zeros(len(ranks), np.int64)  # the step at which it began to count
        self.reported = -INTERVAL  # when the last report was made

    def add(self, steps: Ints, own: Floats, seconds: Floats) -> None:
        """Add the next steps of all ranks.

        Args:
            steps: their numbers, ascending, (num_steps,).
            own: seconds of each rank without its waits, (num_steps, num_ranks).
            seconds: seconds of each step, (num_steps,).
        """
        late_by = own - median_of_others(own)
        self.late_by = np.concatenate([self.late_by, late_by])[-KEPT:]
        self.steps = np.concatenate([self.steps, steps])[-KEPT:]
        changes = np.abs(np.diff(self.late_by, axis=0))
        noise = SPREAD * float(np.median(changes)) if changes.size else 0.0
        least = max(LEAST_SECONDS, LEAST_PART * float(np.median(seconds)), noise)
        for step, signs in zip(steps, np.where(late_by > least, 1, -1), strict=True):
            self.since[self.count == 0] = step
            self.count = (self.count + signs).clip(0, MOST)

    def late(self) -> list[Straggler]:
        """Return the ranks that are late of their own now, the latest first."""
        late = []
        for column in np.flatnonzero(self.count >= ENOUGH).tolist():
            rows = self.steps >= self.since[column]
            seconds = float(np.median(self.late_by[rows, column]))
            late.append(Straggler(self.ranks[column], seconds, int(self.since[column])))
        return sorted(late, key=lambda rank: -rank.seconds)

    def report(self, now: float) -> list[Straggler]:
        """Return the ranks to report; none within a minute of the last report."""
        late = self.late() if now - self.reported >= INTERVAL else []
        self.reported = now if late else self.reported
        return late
