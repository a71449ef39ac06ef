"""A rank on a core that another program keeps busy: the benchmark names its groups, no other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from benchmarks.hosts import read_figures
from meshkit.launch.world import free_port
from tests.launchers.checks import require_programs

BENCH = [sys.executable, "-m", "meshkit", "bench", "dp=2", "sp=2", "--device", "cpu", "--json"]
LOOP = [sys.executable, "-c", "while True: pass"]


def pinned(core: int, command: Sequence[str]) -> list[str]:
    return ["taskset", "-c", str(core), *command]


@contextmanager
def busy(cores: Sequence[int]) -> Iterator[None]:
    """Keep a core busy by a loop for each time that it is named."""
    with ExitStack() as stack:
        for core in cores:
            loop = subprocess.Popen(pinned(core, LOOP))
            stack.callback(loop.wait, 10)
            stack.callback(loop.kill)
        yield


def slow_groups(core_of_rank: Sequence[int]) -> set[tuple[str, str]]:
    """Return axes and coordinate of the groups that a benchmark of four ranks names."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "4"}
    place |= {"LOCAL_WORLD_SIZE": "4", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            pinned(core, BENCH),
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL if rank else subprocess.PIPE,
            text=True,
        )
        for rank, core in enumerate(core_of_rank)
    ]
    return {(row["axes"], row["group"]) for row in read_figures(ranks, ranks[0], 200)["slow"]}


@pytest.mark.slow
def test_a_rank_is_named_if_a_loop_keeps_its_core_busy_and_not_if_all_cores_are() -> None:
    require_programs("util-linux", "taskset")
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("one core: a loop slows all ranks alike")
    last = others[0]
    with busy([last]):
        assert slow_groups([first, first, first, last]) == {("dp", "sp=1"), ("sp", "dp=1")}
    with busy([first, last]):
        assert slow_groups([first, last, last, first]) == set()
