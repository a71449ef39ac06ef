"""Maps: rank to coordinate and all groups of a grid, for 8 to 1,048,576 ranks.

The grid is dp x sp=2 x tp=2. In bulk numpy is the floor, and its goal holds from ``BULK`` ranks on:
below, the checks of a call take longer than its work. The other peers stop at ``BULK`` ranks, since
beyond that one of their calls takes ten seconds. Both sides must return equal answers before any of
them is timed.

A question about one rank is compared with the same question on 8 ranks, and so is the memory of a
layout. Neither may grow.

Megatron calls sp cp, and its ``RankGenerator`` returns groups alone. A ``DeviceMesh`` knows its own
rank alone and creates its groups in the constructor: here on torch's fake backend, which opens no
connection.
"""

from __future__ import annotations

import importlib.util
import io
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshkit

from .harness import ITSELF, Goal, Row, Work, compare, not_installed, time_in_turns

SCALES = (8, 64, 1024, 65_536, 1_048_576)
QUICK = (8, 64)
BULK = 65_536
FLOOR, PEERS, FLAT = Goal("ratio", "<=", 1.5), Goal("ratio", "<=", 0.01), Goal("ratio", "<=", 1.5)
NUM_ASKED = 16  # ranks that one question is about, spread over all

Sizes = Mapping[str, int]
Groups = list[Any]  # one entry an axis, (num_groups, group_size)
Position = tuple[dict[str, int], list[list[int]]]  # coordinate, and the group of each axis


def run(quick: bool) -> list[Row]:
    """Return the rows of every work, then of every figure that must not grow."""
    scales, repeats = (QUICK, 3) if quick else (SCALES, 7)
    works = (bulk_rows, group_rows, coordinate_rows, position_rows)
    rows = [row for work in works for ranks in scales for row in work(ranks, repeats)]
    return [*rows, *flat_rows(scales, repeats), *memory_rows(scales)]


def layout_of(ranks: int) -> meshkit.Layout:
    """Return the layout dp x sp=2 x tp=2."""
    return meshkit.factor_world(ranks, sp=2, tp=2)


# --- peers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """A library that numbers ranks on a grid.

    Attributes:
        name: its name in the table.
        package: the package that brings it.
        groups: sizes -> a call that returns all groups of every axis.
        coordinate: sizes -> a call that returns the coordinate of a rank.
        position: sizes and rank -> coordinate and groups of that rank, from nothing.
    """

    name: str
    package: str
    groups: Callable[[Sizes], Callable[[], Groups]] | None = None
    coordinate: Callable[[Sizes], Callable[[int], Mapping[str, int]]] | None = None
    position: Callable[[Sizes, int], Position] | None = None

    @property
    def installed(self) -> bool:
        """Return whether the package can be imported, without an import."""
        module = {"megatron-core": "megatron"}.get(self.package, self.package)
        return importlib.util.find_spec(module) is not None


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the warnings and the output of an import."""
    output = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(output), redirect_stderr(output):
        warnings.simplefilter("ignore")
        yield


def groups_with(groups: Groups, rank: int) -> list[list[int]]:
    """Return, for each axis, the group that has the rank."""
    return [next(list(group) for group in axis if rank in group) for axis in groups]


def numpy_groups(sizes: Sizes) -> Callable[[], Groups]:
    """Move every axis to the end, one after the other."""
    shape = tuple(sizes.values())

    def groups() -> Groups:
        grid = np.arange(np.prod(shape)).reshape(shape)
        return [np.moveaxis(grid, i, -1).reshape(-1, size) for i, size in enumerate(shape)]

    return groups


def megatron_groups(sizes: Sizes) -> Callable[[], Groups]:
    """Call ``RankGenerator.get_ranks`` for every axis."""
    with quiet():
        from megatron.core.parallel_state import RankGenerator
    dp, sp, tp = sizes.values()
    generator = RankGenerator(tp=tp, ep=1, dp=dp, pp=1, cp=sp, order="tp-cp-ep-dp-pp")
    return lambda: [generator.get_ranks(axis) for axis in ("dp", "cp", "tp")]


def megatron_position(sizes: Sizes, rank: int) -> Position:
    """Look for the rank in all groups; its index in a group is its coordinate."""
    groups = groups_with(megatron_groups(sizes)(), rank)
    return dict(zip(sizes, (group.index(rank) for group in groups), strict=True)), groups


def deepspeed_topology(sizes: Sizes) -> Any:  # noqa: ANN401  (DeepSpeed is untyped)
    """Return a ``ProcessTopology``: a dict of all coordinates."""
    with quiet():
        from deepspeed.runtime.pipe.topology import ProcessTopology
    return ProcessTopology(axes=list(sizes), dims=list(sizes.values()))


def deepspeed_groups(sizes: Sizes) -> Callable[[], Groups]:
    """Call ``get_axis_comm_lists`` for every axis."""
    topology = deepspeed_topology(sizes)
    return lambda: [topology.get_axis_comm_lists(axis) for axis in sizes]


def deepspeed_coordinate(sizes: Sizes) -> Callable[[int], Mapping[str, int]]:
    """Call ``get_coord``, which searches all ranks."""
    topology = deepspeed_topology(sizes)
    return lambda rank: dict(topology.get_coord(rank)._asdict())


def deepspeed_position(sizes: Sizes, rank: int) -> Position:
    """Build the topology, the coordinate and all groups, and look for the rank in the groups."""
    topology = deepspeed_topology(sizes)
    groups = [topology.get_axis_comm_lists(axis) for axis in sizes]
    return dict(topology.get_coord(rank)._asdict()), groups_with(groups, rank)


def device_mesh_position(sizes: Sizes, rank: int) -> Position:
    """Build a ``DeviceMesh`` in a job of one process on the fake backend, then leave the job."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # torch's way to dry-run

    ranks = int(np.prod(list(sizes.values())))
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (*sizes.values(),), mesh_dim_names=(*sizes,))
        coordinate = dict(zip(sizes, mesh.get_coordinate() or (), strict=True))
        return coordinate, [dist.get_process_group_ranks(mesh.get_group(axis)) for axis in sizes]
    finally:
        dist.destroy_process_group()


NUMPY = Peer("numpy", "numpy", numpy_groups)
MEGATRON = Peer(
    "Megatron RankGenerator", "megatron-core", megatron_groups, position=megatron_position
)
DEEPSPEED = Peer(
    "DeepSpeed ProcessTopology",
    "deepspeed",
    deepspeed_groups,
    deepspeed_coordinate,
    deepspeed_position,
)
DEVICE_MESH = Peer("DeviceMesh (fake backend)", "torch", position=device_mesh_position)
ALL_PEERS = (NUMPY, MEGATRON, DEEPSPEED, DEVICE_MESH)


# --- works ---------------------------------------------------------------------------------------


def bulk_rows(ranks: int, repeats: int) -> list[Row]:
    """Compare the coordinates of all ranks with ``unravel_index``."""
    what, layout, every_rank = "rank -> coordinate, all ranks", layout_of(ranks), np.arange(ranks)
    theirs = np.stack(np.unravel_index(every_rank, layout.shape), axis=-1)
    check_same(what, NUMPY, layout.coordinates(every_rank).tolist(), theirs.tolist())
    return [
        timed_row(
            what,
            ranks,
            NUMPY,
            lambda: layout.coordinates(every_rank),
            lambda: np.unravel_index(every_rank, layout.shape),
            repeats,
        )
    ]


def group_rows(ranks: int, repeats: int) -> list[Row]:
    """Compare all groups of every axis with each peer that returns them."""
    what, layout = "all groups of every axis", layout_of(ranks)

    def ours() -> Groups:
        return [layout.groups(axis) for axis in layout.axes]

    def row(peer: Peer, groups: Callable[[Sizes], Callable[[], Groups]]) -> Row:
        theirs = groups(layout.sizes)
        check_same(what, peer, sorted_groups(ours()), sorted_groups(theirs()))
        return timed_row(what, ranks, peer, ours, theirs, repeats)

    return peer_rows(what, ranks, "groups", row)


def sorted_groups(groups: Groups) -> list[list[list[int]]]:
    """Return the groups of every axis as sorted lists."""
    return [sorted(np.asarray(axis).tolist()) for axis in groups]


def coordinate_rows(ranks: int, repeats: int) -> list[Row]:
    """Compare the coordinate of one rank, for ranks spread over all."""
    what, layout, asked = "rank -> coordinate, one rank", layout_of(ranks), asked_ranks(ranks)

    def row(peer: Peer, coordinate: Callable[[Sizes], Callable[[int], object]]) -> Row:
        theirs = coordinate(layout.sizes)
        check_same(what, peer, [*map(layout.coordinate, asked)], [*map(theirs, asked)])
        sides = for_each(layout.coordinate, asked), for_each(theirs, asked)
        return timed_row(what, ranks, peer, *sides, repeats)

    return peer_rows(what, ranks, "coordinate", row)


def asked_ranks(ranks: int) -> list[int]:
    """Return at most 16 ranks, evenly spread, the first and the last among them."""
    return sorted({(ranks - 1) * part // (NUM_ASKED - 1) for part in range(NUM_ASKED)})


def for_each(question: Callable[[int], object], ranks: Sequence[int]) -> Work:
    """Return a call that asks about the next rank each time."""
    ring = cycle(ranks)
    return lambda: question(next(ring))


def position_rows(ranks: int, repeats: int) -> list[Row]:
    """Compare the way from sizes to the coordinate and the groups of one rank."""
    what, sizes, rank = "sizes -> my coordinate and my groups", layout_of(ranks).sizes, ranks // 3

    def ours() -> Position:
        layout = meshkit.factor_world(ranks, sp=sizes["sp"], tp=sizes["tp"])
        return layout.coordinate(rank), [layout.peers(rank, axis).tolist() for axis in sizes]

    def row(peer: Peer, position: Callable[[Sizes, int], Position]) -> Row:
        check_same(what, peer, ours(), position(sizes, rank))
        return timed_row(what, ranks, peer, ours, lambda: position(sizes, rank), repeats)

    return peer_rows(what, ranks, "position", row)


def peer_rows(what: str, ranks: int, question: str, row: Callable[[Peer, Any], Row]) -> list[Row]:
    """Return a row for each peer that answers a question; beyond ``BULK`` ranks for numpy alone.

    Args:
        what: the work.
        ranks: of the grid.
        question: the attribute of :class:`Peer` that holds the question.
        row: compares the answers of both sides, then times them.
    """
    peers = [peer for peer in ALL_PEERS if ranks <= BULK or peer is NUMPY]
    return [
        row(peer, getattr(peer, question))
        if peer.installed
        else not_installed(what, ranks, peer.name, peer.package)
        for peer in peers
        if getattr(peer, question) is not None
    ]


def timed_row(what: str, ranks: int, peer: Peer, ours: Work, theirs: Work, repeats: int) -> Row:
    """Time both sides in turns and return their row."""
    times = time_in_turns(ours, theirs, repeats)
    return compare(what, ranks, peer.name, "s", times, goal(peer, ranks))


def check_same(what: str, peer: Peer, ours: object, theirs: object) -> None:
    """Check that both sides return the same.

    Raises:
        RuntimeError: if they differ.
    """
    if ours != theirs:
        raise RuntimeError(f"{what}: meshkit and {peer.name} differ: {ours!r} and {theirs!r}")


def goal(peer: Peer, ranks: int) -> Goal | None:
    """Return the goal beside a peer; None below ``BULK`` ranks."""
    if ranks < BULK:
        return None
    return FLOOR if peer is NUMPY else PEERS


# --- figures that must not grow ------------------------------------------------------------------


def questions(layout: meshkit.Layout) -> dict[str, Work]:
    """Return the questions that one rank asks about itself."""
    rank = layout.num_ranks - 2
    coordinate = layout.coordinate(rank)
    return {
        "layout.coordinate": lambda: layout.coordinate(rank),
        "layout.rank": lambda: layout.rank(**coordinate),
        "layout.neighbor": lambda: layout.neighbor(rank, "dp"),
        "layout.peers, a group of 2": lambda: layout.peers(rank, "tp"),
    }


def flat_rows(scales: Sequence[int], repeats: int) -> list[Row]:
    """Compare each question on many ranks with the same question on 8."""
    small = questions(layout_of(8))
    return [
        compare(what, ranks, ITSELF, "s", time_in_turns(question, small[what], 3 * repeats), FLAT)
        for what in small
        for ranks in scales
        for question in [questions(layout_of(ranks))[what]]
    ]


def memory_rows(scales: Sequence[int]) -> list[Row]:
    """Compare the memory of a layout that has answered every question with that on 8 ranks."""
    held = {ranks: [float(memory(ranks))] for ranks in scales}
    what = "memory of a layout that has answered"
    return [compare(what, n, ITSELF, "B", (held[n], held[min(scales)]), FLAT) for n in scales]


def memory(ranks: int) -> int:
    """Return the bytes that Python and numpy hold for one more layout that has answered."""
    for question in questions(layout_of(ranks)).values():
        question()  # fills the caches that all layouts share
    tracemalloc.start()
    try:
        layout = layout_of(ranks)
        for question in questions(layout).values():
            question()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
