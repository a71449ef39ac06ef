"""The time of moves on 8 real ranks, beside functions by hand and DTensor, after equal results.

A tensor has 16 MiB on the side where it is larger. All ranks begin a call together, and its time
is that of the slowest rank. DTensor cannot say four of the twenty uses: the ring, the zigzag order,
and the moves from one rank to all or to another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import meshkit
from meshkit.redistribute.move import Move, local_shape, make_move
from meshkit.redistribute.pattern import AxisType, parse_pattern

from ..harness import Goal, Row, compare, turn
from .by_dtensor import make_dtensor_move
from .by_hand import BY_HAND

RANKS, ITEMS = 8, 4 * 2**20  # float32
NEAR = Goal("ratio", "<=", 1.05)
USES = {  # name -> the pattern, and the dim that makes the tensor as large as wanted
    "Ulysses in": ("b s/sp h d -> b s h/sp d", "s"),
    "Ulysses out": ("b s h/sp d -> b s/sp h d", "s"),
    "Ulysses in, QKV": ("b s/sp (three h d) -> three b h/sp s d", "s"),
    "gather KV": ("two b s/cp h d -> two b s h d *cp", "s"),
    "Megatron f": ("b s d =tp -> b s d *tp", "s"),
    "Megatron g": ("b s d +tp -> b s d =tp", "s"),
    "SP gather": ("b s/tp d -> b s d *tp", "s"),
    "SP scatter": ("b s d +tp -> b s/tp d", "s"),
    "norm weight": ("d =tp -> d *tp", "d"),
    "logits": ("b s v/tp -> b s v =tp", "v"),
    "FSDP": ("o/dp i -> o i *dp", "o"),
    "HSDP": ("o/shard i =rep -> o i *shard *rep", "o"),
    "gradient sum": ("n +dp +sp -> n =dp =sp", "n"),
    "MoE": ("g/ep e c d -> g e/ep c d", "c"),
    "reshard": ("o/dp/tp i -> o/tp i/dp", "o"),
    "fused QKV": ("(qkv h/tp d) i -> (qkv h d) i =tp", "i"),
    "loss of a cut vocabulary": ("two b s +tp -> two b s =tp", "s"),
}
SIZES = {"two": 2, "three": 3, "qkv": 3, "b": 1, "g": 8, "e": 8, "h": 16}  # of a dim that is fixed
FIXED = 64  # the size of other dims

Call = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Pair:
    """One move by both sides.

    Attributes:
        name: the name of the move.
        calls: meshkit's function and the peer's.
        x: the local tensor.
        gradient: the gradient of the result; None to leave the backward out.
    """

    name: str
    calls: tuple[Call, Call]
    x: Tensor
    gradient: Tensor | None

    def run(self, side: int) -> tuple[Tensor, ...]:
        """Return the result of one side and the gradient of the input, if wanted. Collective."""
        if self.gradient is None:
            return (self.calls[side](self.x),)
        leaf = self.x.detach().requires_grad_()
        y = self.calls[side](leaf)
        return y, *torch.autograd.grad(y, leaf, self.gradient)


def time_rows(repeats: int, items: int = ITEMS) -> list[Row]:
    """Return the rows of real ranks."""
    return meshkit.spawn(measure, RANKS, (repeats, items), timeout=1800)[0]


def measure(repeats: int, items: int) -> list[Row]:
    """Check both sides of all moves, time them, and return the rows. Collective.

    Raises:
        RuntimeError: if the sides differ.
    """
    torch.set_num_threads(1)
    meshkit.init(device="cpu")
    meshes: dict[str, meshkit.Mesh] = {}
    by_hand = [pair_by_hand(meshes, text, items) for text in BY_HAND]
    by_dtensor = [pair_by_dtensor(meshes, name, items) for name in USES]
    for pair in [*by_hand, *by_dtensor]:
        check(pair)
    hand_times = time_pairs(by_hand, 3 * repeats)
    times = time_pairs(by_dtensor, repeats)
    for mesh in meshes.values():
        mesh.close()
    return [
        *make_rows(by_hand, "the collective by hand", hand_times, NEAR),
        *make_rows(by_dtensor, "DTensor", times, None),
    ]


def make_rows(pairs: list[Pair], peer: str, times: Tensor, goal: Goal | None) -> list[Row]:
    """Return a row for each pair, and one with the goal for the geometric mean of all.

    The times are seconds (pairs, 2, repeats).
    """
    rows = []
    for pair, (ours, theirs) in zip(pairs, times.tolist(), strict=True):
        rows.append(compare(f"16 MiB, {pair.name}", RANKS, peer, "s", (ours, theirs)))
    ours, theirs = times.log().mean(dim=0).exp().tolist()
    what = f"16 MiB, {len(pairs)} moves, geometric mean"
    return [*rows, compare(what, RANKS, peer, "s", (ours, theirs), goal)]


def find_mesh(meshes: dict[str, meshkit.Mesh], sizes: Mapping[str, int]) -> meshkit.Mesh:
    """Return the mesh of some sizes, built once. Collective."""
    key = str(sizes)
    if key not in meshes:
        meshes[key] = meshkit.build_mesh(dict(sizes), order=" ".join(sizes))
    return meshes[key]


def mesh_sizes(text: str) -> dict[str, int]:
    """Return the sizes of the axes of a pattern, 8 ranks together."""
    axes = [*parse_pattern(text).types]
    return {axes[0]: RANKS} if len(axes) == 1 else {axes[0]: 4, axes[1]: 2}


def pair_by_hand(meshes: dict[str, meshkit.Mesh], text: str, items: int) -> Pair:
    """Return a move beside the function by hand, forward alone. Collective."""
    mesh = find_mesh(meshes, mesh_sizes(text))
    group, move = mesh.group("x"), sized_move(text, "s", items)
    x = random_part(mesh, move, 0)
    return Pair(text, (mesh.redistribution(text), lambda x: BY_HAND[text](x, group)), x, None)


def pair_by_dtensor(meshes: dict[str, meshkit.Mesh], name: str, items: int) -> Pair:
    """Return a use beside DTensor, with its backward. Collective."""
    text, free = USES[name]
    mesh, move = find_mesh(meshes, mesh_sizes(text)), sized_move(text, free, items)
    coordinate = mesh.coordinate
    names = [dim.name for dim in parse_pattern(text).left.dims]
    brackets = [entry for entry in move.left_entries if len(entry) > 1]
    given: dict[str, Any] = {names[dim]: move.sizes[dim] for entry in brackets for dim in entry}
    ours = mesh.redistribution(text, **given)
    theirs = make_dtensor_move(text, mesh.device_mesh(), move.source.shape(coordinate))
    x, gradient = (random_part(mesh, move, side) for side in (0, 1))
    return Pair(f"{name}: {text}", (ours, theirs), x, gradient)


def sized_move(text: str, free: str, items: int) -> Move:
    """Return the move with as large a free dim as gives a rank this number of elements."""
    pattern, axes = parse_pattern(text), mesh_sizes(text)
    names = [dim.name for dim in pattern.left.dims]
    sizes = {name: RANKS if name == free else SIZES.get(name, FIXED) for name in names}
    for _ in range(2):  # the second time with the final size
        move = make_move(pattern, axes, sizes)
        first = dict.fromkeys(axes, 0)
        largest = max(math.prod(cut.shape(first)) for cut in (move.source, move.target))
        sizes[free] = max(1, sizes[free] * items // largest // RANKS) * RANKS
    return move


def random_part(mesh: meshkit.Mesh, move: Move, side: int) -> Tensor:
    """Return random numbers for the left side, or as the gradient of the right side.

    Ranks that hold copies get equal numbers.
    """
    coordinate, types = mesh.coordinate, move.type_of
    copies = "*=" if side == 0 else "+="  # the gradient at + is a copy
    seed = 1
    for axis, index in coordinate.items():
        kind: AxisType = types[axis][side]
        seed = seed * RANKS + (0 if kind.symbol in copies else index)
    sides = (move.left_entries, move.source), (move.right_entries, move.target)
    entries, cut = sides[side]
    shape = local_shape(entries, cut.shape(coordinate))
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 10**6 * side))


def check(pair: Pair) -> None:
    """Raise RuntimeError if the sides give different results or gradients. Collective."""
    for ours, theirs in zip(pair.run(0), pair.run(1), strict=True):
        if not torch.allclose(ours, theirs, rtol=1e-5, atol=1e-5):
            raise RuntimeError(f"{pair.name}: meshkit and its peer give different results")


def time_pairs(pairs: list[Pair], repeats: int) -> Tensor:
    """Return the seconds of the slowest rank, (pairs, 2, repeats). Collective."""
    barrier_group = dist.new_group()
    times = torch.zeros(len(pairs), 2, 1 + repeats, dtype=torch.float64)  # the first is a warm-up
    for repeat in range(1 + repeats):
        for pair, row in zip(pairs, times, strict=True):
            for side in turn(repeat):
                dist.barrier(barrier_group)
                began = time.perf_counter()
                pair.run(side)
                row[side, repeat] = time.perf_counter() - began
    times = times[:, :, 1:].contiguous()
    dist.all_reduce(times, dist.ReduceOp.MAX, group=barrier_group)
    return times
