"""torchtitan's meshes: as many groups as there are distinct member lists, fewer than torch's."""

from __future__ import annotations

import contextlib
import io
import itertools

import meshkit
from examples import torchtitan_meshes

S = torchtitan_meshes.SIZES
RANKS = S["pp"] * S["dp_replicate"] * S["dp_shard"] * S["cp"] * S["tp"]


def members(rank: int, shape: list[int], dims: list[int]) -> tuple[int, ...]:
    """The ranks that share a rank's indices on all other dims, from plain counting."""
    places = list(itertools.product(*(range(size) for size in shape)))
    own = places[rank]
    others = [dim for dim in range(len(shape)) if dim not in dims]
    return tuple(r for r, p in enumerate(places) if all(p[dim] == own[dim] for dim in others))


def distinct(rank: int) -> set[tuple[int, ...]]:
    """Every group of torchtitan's set that holds a rank, and the world."""
    batch, fsdp = S["dp_replicate"] * S["dp_shard"], S["dp_shard"] * S["cp"]
    efsdp = fsdp * S["tp"] // (S["ep"] * S["etp"])
    shapes = [
        [S["pp"], batch, S["cp"], S["tp"]],
        [S["pp"], S["dp_replicate"], fsdp, S["tp"]],
        [S["pp"], S["dp_replicate"], efsdp, S["ep"], S["etp"]],
    ]
    single = {members(rank, shape, [dim]) for shape in shapes for dim in range(len(shape))}
    return {*single, members(rank, shapes[0], [1, 2]), tuple(range(RANKS))}


def run() -> tuple[list[tuple[int, ...]], int, str]:
    """Return what the program returns and prints on this rank."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        results = torchtitan_meshes.main()
    return *results, printed.getvalue()


def test_as_many_groups_as_distinct_member_lists() -> None:
    results = meshkit.spawn(run, RANKS, timeout=120)
    for rank, (held, theirs, printed) in enumerate(results):
        assert len(held) == len(set(held))
        assert set(held) == distinct(rank)
        assert (len(held), theirs) == (10, 15)
        assert bool(printed) is (rank == 5)
    printed = results[5][2]
    assert printed.startswith("rank 5 holds 10 process groups, 9 created.\n")
    assert printed.endswith("torch: 15 process groups for the same meshes\n")
