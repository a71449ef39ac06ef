"""A long run holds what a short one held: descriptors, threads, groups, objects and memory."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit import Mesh
from tests.pool import Pool
from tests.resources import descriptors, live_groups, python_objects, resident_memory, threads

RANKS = 4  # of the pool
WARM = 5  # rounds before the first count
NOISE = 30  # objects that caches and other threads may add; 6 were seen
# objects of torch that stay for each round: an empty list of tags for each group, and an
# excepthook around the one before for each default group
OF_TORCH = {"builds": 2, "recoveries": 4}
MEMORY = 32e6  # bytes that the allocator may add


def build_and_close(mesh: Mesh) -> Mesh:
    with meshkit.build_mesh(dp=4) as other, other.view(x=2, y=2, order="x y") as view:
        view.barrier("x")
        other.agree("x", 1)
    return mesh


def recover(mesh: Mesh) -> Mesh:
    try:
        raise meshkit.CollectiveError("played")
    except meshkit.CollectiveError:
        return mesh.recover()


def take_guarded_step(mesh: Mesh) -> Mesh:
    with mesh.guard(timeout=60):
        dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
        mesh.commit()
    return mesh


KINDS: dict[str, Callable[[Mesh], Mesh]] = {
    "builds": build_and_close,
    "recoveries": recover,
    "guarded steps": take_guarded_step,
}


def count_held(kind: str, times: int) -> list[list[int]]:
    """Return what this rank holds after few rounds of a kind, and after many more."""
    mesh, counts = meshkit.build_mesh(dp=2, tp=2), []
    for more in (WARM, times):
        for _ in range(more):
            mesh = KINDS[kind](mesh)
        mesh.agree("rounds", more)
        time.sleep(1.5)  # the thread that calls the store ends a second after its last call
        objects = python_objects()  # first: an error and its frames may hold groups of the past
        counts.append([descriptors(), threads(), live_groups(), objects, resident_memory()])
    mesh.close()
    return counts


def check_held(kind: str, times: int, pool: Pool, timeout: float) -> None:
    for before, after in pool.run(count_held, kind, times, timeout=timeout):
        assert after[:3] == before[:3], "descriptors, threads, groups"
        more = after[3] - before[3] - times * OF_TORCH.get(kind, 0)
        assert more < NOISE, f"objects: {before[3]}, then {after[3]}"
        assert after[4] - before[4] < MEMORY, f"bytes: {before[4]}, then {after[4]}"


@pytest.mark.parametrize(
    ("kind", "times"), [("builds", 20), ("recoveries", 5), ("guarded steps", 200)]
)
def test_a_rank_holds_what_it_held(kind: str, times: int, pool: Pool) -> None:
    check_held(kind, times, pool, 60)


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("builds", 80), ("recoveries", 40))
        ),
        pytest.param("guarded steps", 1000, marks=pytest.mark.slow),
        pytest.param("builds", 500, marks=pytest.mark.nightly),
        pytest.param("recoveries", 200, marks=pytest.mark.nightly),
        pytest.param("guarded steps", 10_000, marks=pytest.mark.nightly),
    ],
)
def test_a_rank_holds_what_it_held_in_a_long_run(kind: str, times: int, pool: Pool) -> None:
    check_held(kind, times, pool, 500)
