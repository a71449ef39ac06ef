"""Steps of ranks that wait for each other in collectives, simulated, with jitter and load."""

from __future__ import annotations

import random

import numpy as np

from meshkit.guard.sampling import BATCH
from meshkit.guard.stragglers import OwnTime, StragglerFinder
from meshkit.layout.layout import Layout

# seconds of the own work before each collective of a step, and the axes of that collective
STEP = [
    ("loader", 0.001, "tp"),
    ("forward", 0.002, "tp"),
    ("forward", 0.001, "tp"),
    ("backward", 0.002, "tp"),
    ("backward", 0.002, "dp"),
    ("backward", 0.001, "dp"),
]
PARTS = ("loader", "forward", "backward")
COLLECTIVE = 0.0002  # seconds of a collective once all ranks have come
SAMPLE = 0.0035  # seconds between two samples
LAYOUT = Layout(dp=4, tp=2)


class Load:
    """The time that work takes on a rank: with a bell, rare long pauses, and the load on its host.

    Live runs of 8 ranks on two cores with a load of 28 have differences that change by 5 to 15 ms
    from a step to the next, in the median. Those of two steps hardly correlate, in six runs.
    The length of the load on one rank is an assumption: if it is longer, more ranks are named.
    """

    def __init__(self, chance: random.Random, *, heavy: bool) -> None:
        self.chance, self.heavy, self.slow = chance, heavy, 1.0

    def next_step(self) -> None:
        """Begin or end a time in which others use the core of this rank: 2 steps in the mean."""
        if self.slow > 1.0:
            self.slow = 1.0 if self.chance.random() < 1 / 2 else self.slow
        elif self.chance.random() < (0.05 if self.heavy else 0.01):
            self.slow = 1.0 + 2 * self.chance.random()

    def seconds(self, usual: float) -> float:
        """Return the seconds of some work."""
        pause = 0.0
        if self.chance.random() < (0.01 if self.heavy else 0.002):
            pause = min(0.3, 0.003 * self.chance.paretovariate(1.0))
        if self.heavy and self.chance.random() < 0.3:  # the scheduler of the host
            pause += self.chance.expovariate(1 / 0.005)
        return usual * self.slow * self.chance.lognormvariate(0, 0.2) + pause


def take_step(
    loads: list[Load], now: list[float], late: tuple[int, str, float, int] | None
) -> list[list[tuple[float, float]]]:
    """Move the time of each rank to the end of a step; return the waits of each, begin and end."""
    waits: list[list[tuple[float, float]]] = [[] for _ in now]
    for load in loads:
        load.next_step()
    planted = next((i for i, (name, _, _) in enumerate(STEP) if late and name == late[1]), -1)
    for index, (_, usual, axis) in enumerate(STEP):
        for rank, load in enumerate(loads):
            now[rank] += load.seconds(usual)
        if late and index == planted:
            now[late[0]] += late[2]
        for group in LAYOUT.groups(axis).tolist():
            end = max(now[rank] for rank in group) + COLLECTIVE
            for rank in group:
                waits[rank].append((now[rank], end))
                now[rank] = end
    return waits


def simulate(
    seed: int, steps: int, late: tuple[int, str, float, int] | None, *, heavy: bool
) -> list[tuple[int, dict[int, int]]]:
    """Return the steps after which a rank was named: by step each rank, with its first late step.

    ``late``: a rank, the part of the step in which it is late, the seconds, and the first step.
    """
    chance = random.Random(seed)
    ranks = range(LAYOUT.num_ranks)
    loads = [Load(chance, heavy=heavy) for _ in ranks]
    offsets = [chance.uniform(-100, 100) for _ in ranks]  # their clocks differ
    now, last = [0.0] * len(ranks), [0.0] * len(ranks)
    times = [OwnTime() for _ in ranks]
    finder, rows, named = StragglerFinder(ranks), [], []
    for rank in ranks:
        times[rank].end_step(offsets[rank])
    for step in range(1, steps + 1):
        plan = late if late and step >= late[3] else None
        waits = take_step(loads, now, plan)
        rows.append([(0.0, 0.0) for _ in ranks])
        for rank in ranks:
            while last[rank] < now[rank]:
                is_own = not any(begin <= last[rank] < end for begin, end in waits[rank])
                times[rank].sample(last[rank] + offsets[rank], is_own=is_own)
                last[rank] += SAMPLE * chance.uniform(0.7, 1.3)
            rows[-1][rank] = times[rank].end_step(now[rank] + offsets[rank]) or (0.0, 0.0)
        if step % BATCH == 0:
            table = np.array(rows)  # (num_steps, num_ranks, 2)
            steps = np.arange(step - BATCH + 1, step + 1)
            finder.add(steps, table[..., 1], table[..., 0].max(axis=1))
            rows = []
            if found := finder.late():
                named.append((step + 1, {each.rank: each.since for each in found}))
    return named
