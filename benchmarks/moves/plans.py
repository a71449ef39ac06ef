"""The figures of plans: bytes that a rank receives beside DTensor's plan, and the planner's time.

DTensor's plan is that of its own planner, which gives the steps one axis at a time. An all_to_all
counts as one, although DTensor's CPU path gathers in its place.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._redistribute import _gen_transform_infos_non_cached

from meshkit.redistribute.move import Move, make_move
from meshkit.redistribute.pattern import parse_pattern, parse_text
from meshkit.redistribute.plan import most_needed, most_received, plan_move

from ..harness import ITSELF, Goal, Row, compare, single, time_in_turns
from .calls import cpu_seconds

AXES, SIDE = {"a": 2, "b": 2, "c": 2}, 64
PLACES = {"": Replicate(), "o": Shard(0), "i": Shard(1)}
SCALES = (8, 65_536)
AT_ONCE, KEPT, FLAT = Goal("ours", "<=", 1e-3), Goal("ours", "<=", 1e-6), Goal("ratio", "<=", 1.5)
PLANNED = (  # an exchange, a move with every digit, one with a sum, one of regions
    "b s/x h d -> b s h/x d",
    "o/x/y i -> o/y i/x",
    "b s +x d/y -> b s/x d *y",
    "b s @x:0 -> b/x s",
)

Division = tuple[str, ...]  # the dim that each axis cuts, or ""


def byte_rows(mesh: DeviceMesh) -> list[Row]:
    """Return the rows of all moves of a matrix over three axes, which the mesh has."""
    counts = [count_elements(left, right, mesh) for left, right in pairs()]
    ours, bound, theirs = (sum(column) for column in zip(*counts, strict=True))
    worst = max(mine / least for mine, least, _ in counts if least)
    worst_theirs = max(other / least for _, least, other in counts if least)
    if any(mine for mine, least, _ in counts if not least):
        raise RuntimeError("a plan receives elements, and a rank lacks none")
    what = f"received in {len(counts)} moves of a matrix on 2x2x2"
    ranks, unit, exact = math.prod(AXES.values()), "x the bound", Goal("ours", "<=", 1)
    total = ([ours / bound], [theirs / bound])
    return [
        compare(f"{what}, all together", ranks, "DTensor's plan", unit, total, exact),
        compare(f"{what}, worst", ranks, "DTensor's plan", unit, ([worst], [worst_theirs]), exact),
    ]


def pairs() -> list[tuple[Division, Division]]:
    """Return each two different divisions, with the axes of a dim in the order of the mesh."""
    return [*itertools.permutations(itertools.product(PLACES, repeat=len(AXES)), 2)]


def count_elements(left: Division, right: Division, mesh: DeviceMesh) -> tuple[int, int, int]:
    """Return the elements that a rank receives by meshkit, at least, and by DTensor."""
    pattern = parse_pattern(f"{side_text(left)} -> {side_text(right)}")
    move = make_move(pattern, AXES, {"o": SIDE, "i": SIDE})
    infos = _gen_transform_infos_non_cached(spec(left, mesh), spec(right, mesh))
    return most_received(plan_move(move)), most_needed(move), sum(map(step_elements, infos))


def side_text(division: Division) -> str:
    """Return a division as one side of a pattern."""
    words = {"o": "o", "i": "i", "": ""}
    for axis, place in zip(AXES, division, strict=True):
        words[place] += f"/{axis}" if place else f" *{axis}"
    return f"{words['o']} {words['i']}{words['']}"


def spec(division: Division, mesh: DeviceMesh) -> DTensorSpec:
    """Return a division as DTensor's."""
    meta = TensorMeta(torch.Size((SIDE, SIDE)), (SIDE, 1), torch.float32)
    return DTensorSpec(mesh, tuple(PLACES[place] for place in division), meta)


def step_elements(info: Any) -> int:  # noqa: ANN401  # private to torch
    """Return the elements that a rank receives in one of DTensor's steps over two ranks.

    Half of the tensor of both ranks is gathered, and a quarter exchanged. A slice is local.
    """
    source, target = info.src_dst_placements
    elements: int = math.prod(info.logical_shape)
    if not source.is_shard():
        return 0
    return elements // 2 if target.is_replicate() else elements // 4


# ------------------------------------------------------------------ time


def planner_rows(repeats: int) -> list[Row]:
    """Return the rows of the planner: of the slowest pattern, without and with a cache."""
    rows = []
    for ranks in SCALES:
        cold = max((times_of_plan(text, ranks, repeats) for text in PLANNED), key=min)
        what = "pattern -> plans of a move and its gradient"
        rows.append(single(what, ranks, "s", cold, AT_ONCE))
    small, large = (partial(plan_all, ranks) for ranks in SCALES)
    growth = time_in_turns(large, small, repeats)
    rows.append(compare("plans of four patterns", SCALES[1], ITSELF, "s", growth, FLAT))
    for ranks in SCALES:
        again = partial(plan_move, move_of(PLANNED[1], ranks))
        kept, _ = time_in_turns(again, again, repeats)
        rows.append(single("plan of a move that was planned before", ranks, "s", kept, KEPT))
    return rows


def times_of_plan(text: str, ranks: int, repeats: int) -> list[float]:
    """Return the CPU seconds of several plans of one pattern, each from its text."""
    plan_new(text, ranks)  # imports, and the parts of Python that are compiled on first use
    return [cpu_seconds(partial(plan_new, text, ranks), 1) for _ in range(10 * repeats)]


def plan_all(ranks: int) -> None:
    """Plan all patterns, none from a cache."""
    for text in PLANNED:
        plan_new(text, ranks)


def plan_new(text: str, ranks: int) -> None:
    """Plan a move and its gradient, from the text of the pattern."""
    parse_text.cache_clear()
    plan_move.cache_clear()
    plan_move(move_of(text, ranks))
    plan_move(move_of(text, ranks, mirrored=True))


def move_of(text: str, ranks: int, *, mirrored: bool = False) -> Move:
    """Return the move of a pattern over one or two axes of some ranks."""
    pattern = parse_pattern(text)
    axes = {"x": ranks // 4, "y": 4} if "y" in pattern.types else {"x": ranks}
    sizes = {dim.name: 4 * ranks for dim in pattern.left.dims}
    return make_move(pattern.mirror if mirrored else pattern, axes, sizes)
