"""The CPU time of a call, with groups of 8 ranks that do not communicate (torch's fake backend).

The result of a call is meaningless here. ``times.py`` compares the results on real ranks first.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

import meshkit
from meshkit.groups.status import tracking
from meshkit.redistribute import equal_calls

from ..harness import INSTALL, Figures, Goal, Row, alternate, compare
from .by_dtensor import make_dtensor_move
from .by_hand import BY_HAND

RANKS, CALLS = 8, 100
MOVES = {  # pattern -> its name, and the shape of a local tensor
    "b s/x h d -> b s h/x d": ("Ulysses exchange", (2, 4, 8, 2)),
    "b s/x d -> b s d *x": ("SP gather", (2, 4, 8)),
}
ALONE = "DTensor.redistribute alone"  # from a DTensor to a DTensor, which is less work
PEERS: dict[str, tuple[Goal | None, Goal | None]] = {  # goals: forward, and with its backward
    "autograd function by hand": (Goal("ratio", "<=", 1.5), Goal("ratio", "<=", 1.3)),
    "spmd_types": (Goal("ratio", "<=", 1), Goal("ratio", "<=", 1)),
    "DTensor": (Goal("ratio", "<=", 0.2), Goal("ratio", "<=", 0.2)),
    ALONE: (None, None),
}


# a call that is also compared with those of the other ranks, beside one that is not
COMPARED = {"autograd function by hand", "DTensor"}
AS_ON_NCCL = "in a guard as on nccl"


@contextmanager
def as_on_nccl() -> Iterator[None]:
    """Compare calls as in a guard on nccl. The copy between a device and the host is not in it."""
    with (
        mock.patch.object(equal_calls, "is_late", return_value=True),
        tracking(timedelta(minutes=1)),
    ):
        yield


@dataclass(frozen=True)
class Side:
    """One way to make a move: a function of its input, and the gradient of its result."""

    move: Callable[[Any], Any]
    x: Any
    gradient: Any

    def call(self, work: str) -> Callable[[], object]:
        """Return a forward of an input without a gradient, or a forward with its backward."""
        if work == "forward":
            return lambda: self.move(self.x)
        leaf = self.x.clone().requires_grad_()
        return lambda: torch.autograd.grad(self.move(leaf), leaf, self.gradient)


def call_rows(mesh: meshkit.Mesh, repeats: int) -> list[Row]:
    """Return the rows of all moves and peers, on a mesh of one axis x."""
    return [row for text in MOVES for row in rows_of_move(mesh, text, repeats)]


def rows_of_move(mesh: meshkit.Mesh, text: str, repeats: int) -> list[Row]:
    """Return the rows of one move, beside each peer."""
    x = torch.zeros(MOVES[text][1])
    sides = make_sides(mesh, text, x)
    rows = []
    for peer, goals in PEERS.items():
        for work, goal in zip(("forward", "forward and backward"), goals, strict=True):
            what = f"CPU time of a call, {MOVES[text][0]}, {work}"
            if peer in sides:
                figures = time_calls(sides["meshkit"], sides[peer], work, repeats)
                rows.append(compare(what, RANKS, peer, "s", figures, goal))
                if work == "forward" and peer in COMPARED:
                    with as_on_nccl():
                        figures = time_calls(sides["meshkit"], sides[peer], work, repeats)
                    rows.append(compare(f"{what}, {AS_ON_NCCL}", RANKS, peer, "s", figures))
            else:
                missing = f"{peer} is not installed: {INSTALL}"
                rows.append(Row(what, RANKS, peer, "s", missing=missing))
    return rows


def make_sides(mesh: meshkit.Mesh, text: str, x: Tensor) -> dict[str, Side]:
    """Return the ways to make a move, those of installed libraries alone. Collective."""
    group, ours = mesh.group("x"), mesh.redistribution(text)
    gradient = torch.zeros_like(ours(x))
    by_hand, theirs = BY_HAND[text], make_dtensor_move(text, mesh.device_mesh(), tuple(x.shape))
    upstream = type(theirs.begin(x)).from_local(gradient, theirs.mesh, theirs.gradient)
    sides = {
        "meshkit": Side(ours, x, gradient),
        "autograd function by hand": Side(lambda x: by_hand(x, group), x, gradient),
        "DTensor": Side(theirs, x, gradient),
        ALONE: Side(lambda x: x.redistribute(placements=theirs.right), theirs.begin(x), upstream),
    }
    by_types = move_with_types(text, group)
    return sides if by_types is None else {**sides, "spmd_types": Side(by_types, x, gradient)}


def move_with_types(text: str, group: dist.ProcessGroup) -> Callable[[Tensor], Tensor] | None:
    """Return the move by spmd_types, or None if it is not installed."""
    try:
        import spmd_types as spmd
    except ModuleNotFoundError:
        return None
    before = spmd.S(1)
    if text == "b s/x d -> b s d *x":
        return lambda x: spmd.all_gather(x, group, src=before, dst=spmd.R)
    after = spmd.S(2)
    return lambda x: spmd.all_to_all(x, group, src=before, dst=after)


def time_calls(ours: Side, theirs: Side, work: str, repeats: int) -> Figures:
    """Return the CPU seconds of a call of both sides, in turns."""
    first, second = (partial(cpu_seconds, side.call(work)) for side in (ours, theirs))
    gc.collect()
    gc.disable()
    try:
        return alternate(first, second, repeats, warm_up=3)
    finally:
        gc.enable()


def cpu_seconds(call: Callable[[], object], calls: int = CALLS) -> float:
    """Return the CPU seconds of one call, from many. Other processes do not count."""
    began = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - began) / calls
