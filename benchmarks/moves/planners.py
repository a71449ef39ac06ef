"""The planner of one rank, and random moves beside the limits that other planners state.

A random move has two meshes of up to four axes on random ranks, a tensor of one to three dims, and
any cuts and marks. The limits of the peers are predicates here:

- NCCL M2N 0.2 (README of nccl-extensions): meshes of one or two axes, exactly one axis that cuts on
  each side, parts of equal size, tensors of at most three dims, disjoint ranks; copies elsewhere.
- Megatron-core 0.16 (``_plan_multi_dim_lcm`` in ``megatron/core/resharding/planner.py``): at most
  one axis that cuts on each side, both along one dim, which the least common multiple of their
  sizes divides; copies elsewhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from meshkit import Layout
from meshkit.errors import MeshkitError
from meshkit.redistribute.mesh_move import MeshMove, join_axes, make_mesh_move
from meshkit.redistribute.move import Region
from meshkit.redistribute.pattern import parse_pattern

from ..harness import Goal, Row, compare, single

AXES, DIMS, MARKS = ("pp", "dp", "sp", "tp"), ("a", "b", "c"), "=*+@"
TENSORS, PLANNED = 1000, "o/dp/tp i -> o/tp i"
FAST, FLAT, ALL = Goal("ours", "<=", 0.2), Goal("ratio", "<=", 1.5), Goal("ours", ">=", 100)


class Side(NamedTuple):
    """One side of a random move."""

    layout: Layout
    cuts: Mapping[str, list[str]]  # dim to the axes longer than 1 that cut it
    marks: str  # the marks of the other axes longer than 1
    text: str

    @property
    def cutting(self) -> list[str]:
        """The dims that are cut, once for each axis."""
        return [dim for dim, axes in self.cuts.items() for _ in axes]


class RandomMove(NamedTuple):
    """A random move between two meshes."""

    source: Side
    target: Side
    sizes: Mapping[str, int]


# ------------------------------------------------------------------ the planner


def planning_rows(repeats: int) -> list[Row]:
    """Return the seconds that one rank plans 1,000 tensors, on large and on small meshes."""
    large, small = ({"dp": 1024, "tp": 8}, {"dp": 256, "tp": 8}), ({"dp": 8, "tp": 8}, {"tp": 8})
    meshes = [layouts_of(*pair) for pair in (large, small)]
    ranks = {"rank 5,000 of the trainer": (5000, 50), "rank 500 of the sampler": (8692, 66)}
    rows = []
    for name, numbers in ranks.items():
        figures = [
            [plan_seconds(*pair, rank, TENSORS) for _ in range(repeats)]
            for pair, rank in zip(meshes, numbers, strict=True)
        ]
        what = f"planning {TENSORS:,} tensors, 8,192 to 2,048 ranks, {name}"
        goal = FAST if name.endswith("trainer") else None
        rows.append(single(what, 8192, "s", figures[0], goal))
        rows.append(compare(what, 8192, "64 to 8 ranks", "s", (figures[0], figures[1]), FLAT))
    return rows


def layouts_of(source: Mapping[str, int], target: Mapping[str, int]) -> tuple[Layout, Layout]:
    """Return layouts on disjoint ranks."""
    first, count = math.prod(source.values()), math.prod(target.values())
    return Layout(source), Layout(target, ranks=range(first, first + count))


def plan_seconds(source: Layout, target: Layout, rank: int, tensors: int) -> float:
    """Return the seconds in which a rank plans its messages of tensors of different sizes."""
    began = time.process_time()
    joined = join_axes(parse_pattern(PLANNED), source.sizes, target.sizes)
    for number in range(tensors):
        move = make_mesh_move(joined, source, target, {"o": 8192, "i": 1024 + number})
        move.sends(rank), move.receives(rank), move.gather(rank)
    return time.process_time() - began


# ------------------------------------------------------------------ random moves


def generality_rows(count: int) -> list[Row]:
    """Return the share of random moves that each planner accepts."""
    generator = np.random.default_rng(32)
    moves = [draw_move(generator) for _ in range(count)]
    ours = 100 * sum(map(is_planned, moves)) / count
    rows = [single(f"{count:,} random moves that are planned", 32, "%", [ours], ALL)]
    for peer, accepts in (("M2N, its stated limits", is_m2n), ("Megatron's planner", is_megatron)):
        theirs = 100 * sum(map(accepts, moves)) / count
        what = f"{count:,} random moves that are planned"
        rows.append(Row(what, 32, peer, "%", ours=ours, theirs=theirs))
    return rows


def draw_move(generator: np.random.Generator) -> RandomMove:
    """Return a random move; a third each has disjoint, equal and any other ranks."""
    dims = DIMS[: generator.integers(1, 4)]
    kind = generator.choice(["disjoint", "equal", "any"])
    axes = [draw_axes(generator) for _ in range(2)]
    counts = [math.prod(sizes.values()) for sizes in axes]
    if kind == "equal":
        axes[1] = dict(zip(reversed(axes[0]), axes[0].values(), strict=True))
        counts[1] = counts[0]
    first = {"disjoint": counts[0], "equal": 0, "any": int(generator.integers(0, counts[0] + 1))}
    layouts = [
        Layout(axes[0], ranks=range(counts[0])),
        Layout(axes[1], ranks=range(first[kind], first[kind] + counts[1])),
    ]
    source, target = (draw_side(generator, layout, dims) for layout in layouts)
    sizes = {dim: int(generator.integers(1, 65)) for dim in dims}
    if generator.integers(2):  # half of the moves have parts of equal size
        for dim in dims:
            parts = [
                math.prod(side.layout.sizes[axis] for axis in side.cuts[dim])
                for side in (source, target)
            ]
            sizes[dim] = math.lcm(*parts) * int(generator.integers(1, 5))
    return RandomMove(source, target, sizes)


def draw_axes(generator: np.random.Generator) -> dict[str, int]:
    """Return the sizes of one to four axes, 16 ranks at most."""
    names = sorted(generator.choice(AXES, generator.integers(1, 5), replace=False))
    sizes: dict[str, int] = {}
    for name in map(str, names):
        limit = 16 // math.prod(sizes.values())
        sizes[name] = int(generator.choice([n for n in (1, 2, 2, 3, 4) if n <= limit]))
    return sizes


def draw_side(generator: np.random.Generator, layout: Layout, dims: tuple[str, ...]) -> Side:
    """Return a side: each axis cuts a dim, or has a mark."""
    cuts: dict[str, list[str]] = {dim: [] for dim in dims}
    words, marks = {dim: dim for dim in dims}, []
    for axis in generator.permutation([*layout.axes]):
        place = generator.choice([*dims, *dims, *MARKS])
        size = layout.sizes[str(axis)]
        if place in cuts:
            words[place] += f"/{axis}"
            if size > 1:
                cuts[place].append(str(axis))
        else:
            marks.append((size, f"{place}{axis}" + (":0" if place == "@" else "")))
    text = " ".join([*words.values(), *(mark for _, mark in marks)])
    return Side(layout, cuts, "".join(mark[0] for size, mark in marks if size > 1), text)


def is_planned(move: RandomMove) -> bool:
    """Return whether meshkit plans the move, so that every rank receives exactly what it lacks."""
    layouts = move.source.layout, move.target.layout
    pattern = parse_pattern(f"{move.source.text} -> {move.target.text}")
    try:
        planned = make_mesh_move(
            join_axes(pattern, layouts[0].sizes, layouts[1].sizes), *layouts, move.sizes
        )
    except MeshkitError:
        return False
    return all(receives_what_it_lacks(planned, int(rank)) for rank in layouts[1].grid.flat)


def receives_what_it_lacks(move: MeshMove, rank: int) -> bool:
    """Return whether the messages and the gather of a rank have what it lacks, by counting."""

    def count(boxes: Iterable[Region]) -> int:
        return sum(math.prod(interval.size for interval in box) for box in boxes)

    gather = move.gather(rank)
    gathered = 0 if gather is None else count(gather.runs[0]) - count(gather.own)
    sent = count(box for message in move.receives(rank) for box in message.boxes)
    return bool(sent + gathered == move.received(rank))


def is_even(side: Side, sizes: Mapping[str, int]) -> bool:
    """Return whether all parts of a side have one size."""
    parts = {
        dim: math.prod(side.layout.sizes[axis] for axis in axes) for dim, axes in side.cuts.items()
    }
    return all(sizes[dim] % count == 0 for dim, count in parts.items())


def is_m2n(move: RandomMove) -> bool:
    """Return whether the move is within the limits that NCCL M2N 0.2 states."""
    sides = move.source, move.target
    ranks = [{*map(int, side.layout.grid.flat)} for side in sides]
    return all(
        sum(size > 1 for size in side.layout.sizes.values()) <= 2
        and len(side.cutting) == 1
        and is_even(side, move.sizes)
        and {*side.marks} <= {*"=*"}
        for side in sides
    ) and not (ranks[0] & ranks[1])


def is_megatron(move: RandomMove) -> bool:
    """Return whether the move is within what Megatron-core 0.16 plans: one cut dim, copies."""
    sides = move.source, move.target
    dims = {dim for side in sides for dim in side.cutting}
    counts = [math.prod(side.layout.sizes[a] for d in dims for a in side.cuts[d]) for side in sides]
    return (
        all(len(side.cutting) <= 1 and {*side.marks} <= {*"=*"} for side in sides)
        and len(dims) <= 1
        and all(move.sizes[dim] % math.lcm(*counts) == 0 for dim in dims)
    )
