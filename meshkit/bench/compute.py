"""Measure how much of a collective hides behind a matrix product on the same ranks.

All groups of a target communicate at once, at the largest measured size. Each round times the
collective, the product, and both: the collective is begun, the product runs, then the collective is
waited for. On CUDA the collective has its own stream, and events on the current stream time all
three. CUDA has never been run. On the cpu gloo's threads and the product compete for cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch

from ..groups.status import wait
from ..mesh.mesh import Mesh
from ..text import Seconds
from .calls import PreparedCall, run_calls, time_calls
from .results import (
    COMPUTE_ROUNDS,
    MIN_CALLS,
    PRODUCT_SIDES,
    Beside,
    Case,
    Measurement,
    is_at_once,
    slowest_of_groups,
)

MIN_REPEATS = 4  # of the smallest product that is repeated to take as long as the collective
GROWTH = 8  # of the seconds of a product if its side is doubled
MIN_ROUNDS = 3  # of a target, however long they take
SECONDS = 1.5  # of a target, after which no other round begins
SLICE = 0.01  # seconds of the calls of a round
MAX_CALLS = 20


class SweepOfRanks(Protocol):
    """Parts of the sweep of measure.py that are needed here."""

    mesh: Mesh
    device: torch.device
    elapsed: float  # seconds, the same on every rank
    longest_wait: float  # seconds that one rank may compute while the others wait for it

    def announce(self, work: str, more: str = "") -> None:
        """Show what is measured next."""

    def prepare(self, case: Case, *, checked: bool) -> list[PreparedCall]:
        """Return the calls of a case on this rank."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def all_gather(self, values: Sequence[float]) -> Seconds:
        """Return the values of every rank, (num_ranks, values)."""


class MatrixProduct:
    """A product of two square matrices of float32, several times in a row."""

    def __init__(self, side: int, repeats: int, device: torch.device) -> None:
        self.side, self.repeats = side, repeats
        self._factor, self._out = (torch.ones(side, side, device=device) for _ in range(2))

    def __call__(self) -> None:
        """Compute, or queue the work of, the products."""
        for _ in range(self.repeats):
            torch.mm(self._factor, self._factor, out=self._out)


def run_beside(calls: Sequence[PreparedCall], product: Callable[[], None]) -> None:
    """Begin all calls, compute a product, then wait for the calls. Collective over their groups."""
    begun = [(call.group, work) for call in calls for work in call.begin()]
    product()
    for group, work in begun:
        wait(work, group)


def measure_beside(sweep: SweepOfRanks, rows: Sequence[Measurement]) -> list[Beside]:
    """Measure each operation and target of one set of groups at its largest size. Collective."""
    largest: dict[object, Measurement] = {}
    for row in rows:
        if is_at_once(row.mode, row.num_groups) and len(row.sizes) == 1:
            key = row.case.op, row.case.target
            largest[key] = max(largest.get(key, row), row, key=lambda row: row.case.bytes)
    beside: list[Beside] = []
    began = sweep.elapsed
    for number, row in enumerate(largest.values()):
        each = (sweep.elapsed - began) / number if number else SECONDS
        left = f", {each * (len(largest) - number):.0f} s left"
        sweep.announce(f"{row.case} beside a matrix product", left)
        beside.append(_measure(sweep, row.case, row.median))
    return beside


def _measure(sweep: SweepOfRanks, case: Case, seconds: float) -> Beside:
    prepared, product = sweep.prepare(case, checked=False), choose_product(sweep, seconds)
    calls = partial(run_calls, prepared), product, partial(run_beside, prepared, product)
    num_calls = max(MIN_CALLS, min(int(SLICE / seconds), MAX_CALLS))
    rounds: list[Seconds] = []  # (num_ranks, 3 * num_calls)
    began = sweep.elapsed
    while len(rounds) < MIN_ROUNDS or (
        len(rounds) < COMPUTE_ROUNDS and sweep.elapsed - began < SECONDS
    ):
        times: list[float] = []
        for call in calls:
            sweep.barrier()
            times += time_calls(call, 1, num_calls, sweep.device)
        rounds.append(sweep.all_gather(times))
    layout, span = sweep.mesh.layout, case.target.span
    by_group = [slowest_of_groups(layout, span, times) for times in rounds]
    parts = zip(*(np.hsplit(times, len(calls)) for times in by_group), strict=True)
    return Beside(case, *(float(np.median(np.hstack(part))) for part in parts))


def choose_product(sweep: SweepOfRanks, seconds: float) -> MatrixProduct:
    """Return a product that takes about so many seconds, the same on every rank. Collective.

    Ranks compute alone here and in each round, so their calls are short enough for the timeout.
    """
    warm_up, calls = 1, 3
    for side in PRODUCT_SIDES:
        times = time_calls(MatrixProduct(side, 1, sweep.device), warm_up, calls, sweep.device)
        slowest = float(sweep.all_gather([sorted(times)[1]]).max())
        next_calls = (warm_up + calls) * GROWTH * slowest
        if slowest * MIN_REPEATS >= seconds or next_calls > sweep.longest_wait:
            break
    longest = sweep.longest_wait / (1 + MIN_CALLS)
    return MatrixProduct(side, max(1, round(min(seconds, longest) / slowest)), sweep.device)
