"""What more ranks than this machine has would cost: plan and agreement, on paper.

``python -m benchmarks.scale -n 1024 65536`` runs the code that a rank of such a job runs:

plan
    The layout and its plan, as every rank computes it before the job is joined.
groups
    The members of all groups of the plan: what a rank walks through to make its own.
agreement
    The check-in of every rank at one real TCP store, by the code of ``build_mesh``, from a few
    processes, each of which plays its part of the ranks one after another. A rank that would wait
    for the verdict asks once whether it is there instead, so the store has as many operations to
    serve as in the job. How long ranks wait for a processor of their own is not in it, nor is the
    thread that each starts to keep its deadline: they are many processes in the job, and two here.

The growth is the slope of the logarithm of the time over that of the ranks, by least squares: 0 is
constant, 1 is proportional to the ranks.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar
from unittest.mock import patch

import numpy as np
import torch.distributed as dist

import meshkit
from meshkit.core.call import Call
from meshkit.core.layout import Layout
from meshkit.core.plan import GroupPlan
from meshkit.launch import store as stores
from meshkit.launch.generation import Generation
from meshkit.launch.meet import Matter, Party, arrive
from meshkit.launch.verdict import ALL

from .jobs import positive
from .rows import Goal, Row, alone
from .store_calls import counted

RANKS = (1024, 8192, 65536, 1048576)
FEEDERS = 2  # processes that play the ranks
WAIT = timedelta(minutes=10)
Result = TypeVar("Result")
FLAT = Goal("ours", "<=", 0.2)  # an answer in O(axes)
LINEAR = Goal("ours", "<=", 1.2)


@dataclass(frozen=True)
class Fed:
    """What one process fed into the store: how many operations, and when it began and ended.

    ``numbers`` are those of the meeting that its ranks were told; all should be 1.
    """

    operations: int
    began: float
    ended: float
    numbers: frozenset[int]


def run(quick: bool) -> list[Row]:
    """A row a figure and number of ranks, then one for the growth of each."""
    worlds = RANKS[:2] if quick else RANKS
    rows = [row for ranks in worlds for row in rows_of(ranks)]
    return rows + [grown(what, rows) for what in dict.fromkeys(row.what for row in rows)]


def rows_of(ranks: int) -> list[Row]:
    """The figures of one number of ranks."""
    fed = feed(ranks)
    seconds = max(one.ended for one in fed) - min(one.began for one in fed)
    operations = sum(one.operations for one in fed)
    return [
        alone("scale: plan", ranks, "s", timed(lambda: plan_of(ranks))),
        alone("scale: all groups", ranks, "s", timed(lambda: plan_of(ranks).steps, 3)),
        alone("scale: check-ins at one store", ranks, "s", [seconds]),
        alone("scale: store operations", ranks, "calls", [float(operations)]),
    ]


def timed(work: Callable[[], object], repeats: int = 9) -> list[float]:
    """Seconds of each of several calls, after one that is not counted."""
    work()
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found


def plan_of(ranks: int) -> GroupPlan:
    """The plan of dp=-1 sp=2 tp=8."""
    return GroupPlan.of(meshkit.factor_world(ranks, sp=2, tp=8))


def growth(ranks: Sequence[int], figures: Sequence[float]) -> float:
    """The power of the number of ranks with which a figure grows, by least squares.

    Example:
        >>> round(growth([10, 100, 1000], [2.0, 20.0, 200.0]), 6)
        1.0
    """
    return float(np.polyfit(np.log(ranks), np.log(figures), 1)[0])


def grown(what: str, rows: Sequence[Row]) -> Row:
    """The row of the growth of one figure."""
    found = [(row.scale, row.ours) for row in rows if row.what == what and row.ours]
    ranks, figures = zip(*found, strict=True)
    flat = what == "scale: plan"
    name = f"{what}, growth"
    return alone(name, ranks[-1], "power", [growth(ranks, figures)], FLAT if flat else LINEAR)


# --- agreement -----------------------------------------------------------------------------------


def feed(ranks: int) -> list[Fed]:
    """The check-ins of all ranks at a real store, which this process hosts, from a few others."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return meshkit.spawn(feeding, FEEDERS, (server.port, ranks), timeout=600)


def feeding(port: int, ranks: int) -> Fed:
    """Play every ``FEEDERS``-th rank, one after another. Collective over the feeders."""
    me = meshkit.detect()
    world = replace(me, world_size=ranks, init_method=None)
    store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)
    matter = matter_of(plan_of(ranks).layout)
    begin_together(store)
    began = time.monotonic()
    with counted() as found, never_waiting():
        numbers = {
            arrive(matter, Party.of(Generation(1, store), replace(world, rank=rank)), WAIT)
            for rank in range(me.rank, ranks, FEEDERS)
        }
    return Fed(sum(found.values()), began, time.monotonic(), frozenset(numbers))


def begin_together(store: dist.Store) -> None:
    """Wait for all feeders: one that comes into being later would be counted. Collective."""
    if store.add("feeders", 1) == FEEDERS:
        store.set("begin", "")
    store.wait(["begin"], WAIT)


def matter_of(layout: Layout) -> Matter:
    """What ranks of such a mesh would compare, as many words as in ``build_mesh``."""
    sizes = " ".join(f"{axis}={size}" for axis, size in layout.sizes.items())
    request = {"call": "build_mesh", "sizes": sizes, "ranks": str(layout.ranks), "backend": "gloo"}
    return Matter(Call("build_mesh", kwargs=layout.sizes), request, "ranks disagree.")


@contextmanager
def never_waiting() -> Iterator[None]:
    """In the block a rank that would wait for the verdict asks once whether it is there instead.

    And it asks from the thread that it is in.
    """
    check, get = dist.PrefixStore.check, dist.PrefixStore.get

    def look(store: dist.Store, keys: list[str], *_: object) -> None:
        check(store, keys)

    def told(store: dist.Store, key: str) -> bytes:
        if key != "verdict":
            return bytes(get(store, key))
        check(store, [key])
        return ALL.encode()

    def here(seconds: float, work: Callable[[], Result]) -> Result:
        return work()

    store = dist.PrefixStore
    alone = patch.object(stores, "within", here)
    with patch.object(store, "wait", look), patch.object(store, "get", told), alone:
        yield


# --- by itself -----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    about = (__doc__ or "").partition("\n")[0]
    options = argparse.ArgumentParser("python -m benchmarks.scale", description=about)
    options.add_argument("-n", type=positive, nargs="+", default=RANKS, help="numbers of ranks")
    asked = options.parse_args(arguments)
    rows = [row for ranks in asked.n for row in rows_of(ranks)]
    grows = [grown(what, rows) for what in dict.fromkeys(row.what for row in rows)]
    for row in [*rows, *(grows if len(asked.n) > 1 else [])]:
        print(f"{row.what:<40} {row.scale:>9,} ranks  {row.ours:.6g} {row.unit}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
