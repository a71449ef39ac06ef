"""Agreement: how many store operations a rank needs for each call of meshkit.

The ranks use a TCPStore. The count is that of the median rank: rank 0 of a mesh with a tp axis also
reads the hosts of all ranks. ``startup`` measures how long agreement takes.
"""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from statistics import median
from typing import Any
from unittest.mock import patch

import torch.distributed as dist

import meshkit
from meshkit.launch.creation import GroupStore
from meshkit.launch.store import Store

from .harness import ITSELF, Goal, Row, compare, mesh_sizes

RANKS = (8, 32, 128)
FLAT = Goal("ratio", "<=", 1.25)  # a rank that finds an earlier rank reads three keys more
LOCAL = {"clone", "has_extended_api", "set_timeout", "timeout"}  # send nothing to a store


def run(quick: bool) -> list[Row]:
    """Return a row for each call and number of ranks, beside the same on 8 ranks."""
    jobs = {n: count_operations(n) for n in (RANKS[:1] if quick else RANKS)}
    return [
        compare(f"store operations of a rank, {call}", ranks, ITSELF, "calls", figures, FLAT)
        for call in jobs[RANKS[0]][0]
        for ranks, counts in jobs.items()
        for figures in [(median_rank(counts, call), median_rank(jobs[RANKS[0]], call))]
    ]


def count_operations(ranks: int) -> list[dict[str, Counter[str]]]:
    """Return the store operations of each rank in each call."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"tcp://127.0.0.1:{probe.getsockname()[1]}"  # a free port
    return meshkit.spawn(first_calls, ranks, (url,), timeout=300)


def median_rank(counts: Sequence[dict[str, Counter[str]]], call: str) -> list[float]:
    """Return the store operations of the median rank in a call."""
    return [float(median(sum(rank[call].values()) for rank in counts))]


def first_calls(init_method: str | None = None) -> dict[str, Counter[str]]:
    """Make each call once and return its store operations on this rank. Collective."""
    os.environ["RES_OPTIONS"] = "attempts:0"  # torch looks up no names
    with count_store_calls() as init:
        world = meshkit.init(device="cpu", init_method=init_method)
    with count_store_calls() as build:
        mesh = meshkit.build_mesh(mesh_sizes(world.world_size))
    with mesh:
        with count_store_calls() as agreed:
            mesh.agree("the learning rate", 3e-4)
        with count_store_calls() as barrier:
            mesh.barrier()
    return {"init": init, "build_mesh": build, "mesh.agree": agreed, "mesh.barrier": barrier}


@contextmanager
def count_store_calls() -> Iterator[Counter[str]]:
    """Count the calls of every torch store from Python, in all threads of this process. Local.

    A call on a ``PrefixStore`` counts once, however many prefixes lie above the store. Calls that
    torch makes do not count, neither inside C++ nor through a ``GroupStore``. Nor do the looks of a
    rank that waits, at most 50 a second, whose number is that of the time; the read that ends the
    wait does. At the end of the block the methods are restored.
    """
    counts: Counter[str] = Counter()
    operations = {name for name in vars(dist.Store) if not name.startswith("_")} - LOCAL
    with ExitStack() as patches:
        for kind in _subclasses(dist.Store) - {GroupStore}:
            for name in operations & {*vars(kind)}:
                patches.enter_context(patch.object(kind, name, _counting(kind, name, counts)))
        yield counts


def _subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))


def _counting(kind: type, name: str, counts: Counter[str]) -> Callable[..., Any]:
    method = vars(kind)[name]

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        caller = sys._getframe(1)
        is_look = caller.f_code is Store.wait.__code__ and name == "check"
        counts[name] += not is_look and caller.f_globals["__name__"] != GroupStore.__module__
        return method(*args, **kwargs)

    return call
