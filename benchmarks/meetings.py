"""What one rank of :mod:`benchmarks.agreement` does: count store operations, then time.

Nothing in meshkit is changed: a meeting is timed where ``build_mesh`` calls it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import numpy as np
import torch.distributed as dist

import meshkit
from meshkit.launch import meet, together
from meshkit.live import agree

from .collectives import gated
from .measure import WARM_UP
from .store_calls import Counts, counted

TIMED = ("build", "first", "second", "raw", "barrier")  # the columns of what a rank measures
Times = list[list[float]]  # (repeats, TIMED), seconds


def sizes_of(ranks: int) -> dict[str, int]:
    """The sizes of the mesh on an even number of ranks.

    Example:
        >>> sizes_of(32), sizes_of(2)
        ({'dp': 8, 'sp': 2, 'tp': 2}, {'dp': 1, 'sp': 1, 'tp': 2})
    """
    sp, tp = 2 if ranks % 4 == 0 else 1, 2
    return {"dp": ranks // (sp * tp), "sp": sp, "tp": tp}


def raw_groups(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """The groups of such a mesh by numpy alone, each once, less the whole world.

    They are those over dp, over sp, over tp, and over dp and sp, whose gradients are averaged.

    Example:
        >>> raw_groups((2, 1, 2))
        [(0, 2), (1, 3), (0,), (1,), (2,), (3,), (0, 1), (2, 3)]
    """
    grid = np.arange(np.prod(shape)).reshape(shape)
    lines = [np.moveaxis(grid, axis, -1).reshape(-1, size) for axis, size in enumerate(shape)]
    planes = grid.reshape(-1, shape[-1]).T
    found = dict.fromkeys(tuple(group) for each in (*lines, planes) for group in each.tolist())
    return [group for group in found if len(group) < grid.size]


def measure(init_method: str | None, repeats: int) -> tuple[dict[str, Counts], Times]:
    """Count, then time; what a rank returns. Collective.

    Args:
        init_method: where the ranks meet; None means the file that spawn provides.
        repeats: how many repetitions to time.
    """
    counts = first_calls(init_method)
    with gated() as gate:
        numbers = range(WARM_UP + repeats)
        return counts, [times(gate, backwards=bool(n % 2)) for n in numbers][WARM_UP:]


def first_calls(init_method: str | None) -> dict[str, Counts]:
    """Make each call once; how often this rank asked the store for what. Collective."""
    join = partial(meshkit.init, device="cpu")
    with counted() as init:
        world = join(init_method=init_method) if init_method else join()
    with counted() as build:
        mesh = meshkit.build_mesh(sizes_of(world.world_size))
    with mesh:
        with counted() as agreed:
            mesh.agree("the learning rate", 3e-4)
        with counted() as barrier:
            mesh.barrier()
    found = {"init": init, "build_mesh": build, "mesh.agree": agreed, "mesh.barrier": barrier}
    return {call: dict(counter) for call, counter in found.items()}


def times(gate: dist.ProcessGroup, *, backwards: bool) -> list[float]:
    """One repetition on this rank, (TIMED,) seconds. Collective.

    Args:
        gate: a group of all ranks on which nothing is measured.
        backwards: measure in the other order, so that none always comes first.
    """
    kinds = (build_seconds, meeting_seconds, raw_seconds, barrier_seconds)
    found = {kind: kind(gate) for kind in (kinds[::-1] if backwards else kinds)}
    return [seconds for kind in kinds for seconds in found[kind]]


def build_seconds(gate: dist.ProcessGroup) -> list[float]:
    """Of ``build_mesh`` as it is. Collective."""
    sizes = sizes_of(gate.size())
    dist.barrier(gate)
    began = time.perf_counter()
    mesh = meshkit.build_mesh(sizes)
    seconds = time.perf_counter() - began
    mesh.close()
    return [seconds]


def meeting_seconds(gate: dist.ProcessGroup) -> list[float]:
    """Of each meeting in a ``build_mesh``. Collective."""
    with meetings_timed(gate) as seconds:
        meshkit.build_mesh(sizes_of(gate.size())).close()
    return seconds


@contextmanager
def meetings_timed(gate: dist.ProcessGroup) -> Iterator[list[float]]:
    """The seconds of each meeting in the block, which a barrier of all ranks precedes."""
    seconds: list[float] = []
    meeting: Callable[..., int] = meet.arrive

    def arrive(*args: object, **options: object) -> int:
        dist.barrier(gate)
        began = time.perf_counter()
        number = meeting(*args, **options)
        seconds.append(time.perf_counter() - began)
        return number

    with patch.object(agree, "arrive", arrive), patch.object(together, "arrive", arrive):
        yield seconds


def raw_seconds(gate: dist.ProcessGroup) -> list[float]:
    """Of the same groups by torch alone. Collective."""
    groups = raw_groups(tuple(sizes_of(gate.size()).values()))
    dist.barrier(gate)
    began = time.perf_counter()
    made = [dist.new_group(ranks) for ranks in groups]
    seconds = time.perf_counter() - began
    dist.barrier(gate)  # whoever closed one now could leave another rank connecting
    for group in made:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    return [seconds]


def barrier_seconds(gate: dist.ProcessGroup) -> list[float]:
    """Of a barrier of the default group. Collective."""
    dist.barrier(gate)
    began = time.perf_counter()
    dist.barrier()
    return [time.perf_counter() - began]
