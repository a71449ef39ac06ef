"""Scale: the cost of a plan and of agreement for more ranks than this machine has.

All ranks check in at one real TCPStore, by the code of ``build_mesh``. One process checks in for
all ranks, one after the other. A rank that would wait for the decision asks once whether it exists.
This stands for the read that ends its wait, so the operations are those of the job without the
looks of waiting ranks, at most 50 a second and rank. The figure leaves out the processes of a job.
The time of the store is the processor time of its thread alone: ranks of a job work at the same
time, and wait for this thread one after the other.

The growth is the slope of the logarithm of a figure over that of the ranks, by least squares. 0 is
constant, 1 is proportional to the ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch.distributed as dist

import meshkit
from meshkit.launch import store as stores
from meshkit.launch.judges import Decision, all_same
from meshkit.launch.round import Round, decision_to_json
from meshkit.launch.store import Store
from meshkit.launch.times import Deadline, run_with_deadline
from meshkit.layout.group_plan import GroupPlan

from .agreement import count_store_calls
from .harness import Goal, Row, single

RANKS = (1024, 10_000, 100_000, 1_000_000)
WAIT = timedelta(minutes=10)
FLAT = Goal("ours", "<=", 0.2)  # O(axes)
LINEAR = Goal("ours", "<=", 1.2)
TIME_OF_STORE = "scale: time of the store"
STORE_GOALS = {10_000: Goal("ours", "<=", 1.0), 1_000_000: Goal("ours", "<=", 100.0)}
THREADS = Path("/proc/self/task")


class CheckIns(NamedTuple):
    """One agreement of many ranks at one store.

    Attributes:
        seconds: the time of all check-ins, one after the other.
        store_seconds: the processor time of the store.
        operations: how many operations the ranks need, without their looks while they wait.
        agreed: whether all ranks have read that they agree.
    """

    seconds: float
    store_seconds: float
    operations: int
    agreed: bool


def run(quick: bool) -> list[Row]:
    """Return a row for each figure and number of ranks, then one for the growth of each figure."""
    rows = [row for ranks in (RANKS[:2] if quick else RANKS) for row in scale_rows(ranks)]
    return rows + [growth_row(what, rows) for what in dict.fromkeys(row.what for row in rows)]


def scale_rows(ranks: int) -> list[Row]:
    """Return the figures of one number of ranks."""
    done = check_in(ranks)
    return [
        single("scale: plan", ranks, "s", times_of(lambda: plan_of(ranks))),
        single("scale: all groups", ranks, "s", times_of(lambda: plan_of(ranks).steps, 3)),
        single("scale: check-ins at one store", ranks, "s", [done.seconds]),
        single(TIME_OF_STORE, ranks, "s", [done.store_seconds], STORE_GOALS.get(ranks)),
        single("scale: store operations", ranks, "calls", [float(done.operations)]),
    ]


def times_of(work: Callable[[], object], repeats: int = 9) -> list[float]:
    """Return the seconds of several calls, after one that does not count."""
    times = []
    for _ in range(1 + repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return times[1:]


def plan_of(ranks: int) -> GroupPlan:
    """Return the plan of dp=-1 sp=2 tp=8."""
    return GroupPlan.of(meshkit.factor_world(ranks, sp=2, tp=8))


def growth_row(what: str, rows: Sequence[Row]) -> Row:
    """Return the row of the power of the number of ranks with which a figure grows."""
    same = [row for row in rows if row.what == what]
    ranks, figures = [row.scale for row in same], [row.ours or 0.0 for row in same]
    power = float(np.polyfit(np.log(ranks), np.log(figures), 1)[0])
    goal = FLAT if what == "scale: plan" else LINEAR
    return single(f"{what}, growth", ranks[-1], "power", [power], goal)


def check_in(ranks: int) -> CheckIns:
    """Check in for all ranks at a TCPStore that this process hosts."""
    others = {*THREADS.iterdir()}
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    threads = {*THREADS.iterdir()} - others
    world = replace(meshkit.detect({}), world_size=ranks, init_method=None)
    sizes = plan_of(ranks).layout.sizes
    request = {"call": "build_mesh", "sizes": str(sizes), "ranks": f"0-{ranks}", "backend": "gloo"}
    judge, expected = all_same("ranks disagree."), range(ranks)
    began, decisions = time.monotonic(), []
    with count_store_calls() as counts, no_waiting():
        for rank in expected:
            part = Store(store, replace(world, rank=rank), "meshkit/1")
            round = Round(part, "round/1", rank, expected)
            round.arrive(request, same=True)
            decisions.append(round.decide(judge, Deadline.after(WAIT)))
    agreed = all(decision == Decision() for decision in decisions)
    seconds = time.monotonic() - began
    return CheckIns(seconds, processor_seconds(threads), sum(counts.values()), agreed)


def processor_seconds(threads: Iterable[Path]) -> float:
    """Return the seconds that these threads have run, as Linux counts them in nanoseconds."""
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


@contextmanager
def no_waiting() -> Iterator[None]:
    """Let a rank that would wait for the decision ask once instead, in the thread it is in."""

    def decided(store: Store, key: str, *_: object) -> bytes:
        store.has(key)
        return decision_to_json(Decision()).encode()

    def run_here(seconds: float, work: Callable[[], object], **_: object) -> object:
        return work()

    same_thread = patch.object(stores, run_with_deadline.__name__, run_here)
    with patch.object(Store, "wait", decided), same_thread:
        yield
