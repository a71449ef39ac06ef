"""Maps: rank to coordinate and all groups of a grid, for 8 to 1,048,576 ranks.

The grid is dp x sp=2 x tp=2. In bulk numpy is the floor, and its goal holds from ``BULK`` ranks on:
below, the checks of a call take longer than its work. The other peers stop at ``BULK`` ranks, since
beyond that one of their calls takes ten seconds. Both sides must return equal answers before any of
them is timed. A question about one rank, and the memory of a layout, must not grow with the ranks.

Megatron calls sp cp. A ``DeviceMesh`` creates its groups in the constructor: here on torch's fake
backend, which opens no connection.
"""

from __future__ import annotations

import importlib
import io
import tracemalloc
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshkit

from .harness import INSTALL, ITSELF, Goal, Row, Work, compare, time_in_turns

SCALES = (8, 64, 1024, 65_536, 1_048_576)
BULK = 65_536
FLOOR, PEERS, FLAT = Goal("ratio", "<=", 1.5), Goal("ratio", "<=", 0.01), Goal("ratio", "<=", 1.5)
NUM_ASKED = 16  # ranks that one question is about, spread over all
NUMPY, MEGATRON = "numpy", "Megatron RankGenerator"
DEEPSPEED, DEVICE_MESH = "DeepSpeed ProcessTopology", "DeviceMesh (fake backend)"

Sizes = Mapping[str, int]
Groups = list[Any]  # one entry an axis, (num_groups, group_size)
Position = tuple[dict[str, int], list[list[int]]]  # coordinate, and the group of each axis
Peers = Mapping[str, Callable[[Sizes], Work]]  # name -> sizes -> the question
Plain = Callable[[Any], object]  # answer -> a value that is equal for equal answers


def run(quick: bool) -> list[Row]:
    """Return the rows of every work, then of every figure that must not grow."""
    scales, repeats = (SCALES[:2], 3) if quick else (SCALES, 7)
    works = (bulk_rows, group_rows, coordinate_rows, position_rows)
    rows = [row for work in works for ranks in scales for row in work(ranks, repeats)]
    return [*rows, *flat_rows(scales, repeats), *memory_rows(scales)]


def layout_of(ranks: int) -> meshkit.Layout:
    """Return the layout dp x sp=2 x tp=2."""
    return meshkit.factor_world(ranks, sp=2, tp=2)


def import_quietly(module: str) -> Any:  # noqa: ANN401  (the peers are untyped)
    """Import a module without its warnings and its output."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return importlib.import_module(module)


def asked_rank(sizes: Sizes) -> int:
    """Return the rank whose position is asked for."""
    return int(np.prod([*sizes.values()])) // 3


def numpy_groups(sizes: Sizes) -> Callable[[], Groups]:
    """Move every axis to the end, one after the other."""
    shape = tuple(sizes.values())

    def groups() -> Groups:
        grid = np.arange(np.prod(shape)).reshape(shape)
        return [np.moveaxis(grid, i, -1).reshape(-1, size) for i, size in enumerate(shape)]

    return groups


def megatron_groups(sizes: Sizes) -> Callable[[], Groups]:
    """Call ``RankGenerator.get_ranks`` for every axis."""
    module = import_quietly("megatron.core.parallel_state")
    dp, sp, tp = sizes.values()
    generator = module.RankGenerator(tp=tp, ep=1, dp=dp, pp=1, cp=sp, order="tp-cp-ep-dp-pp")
    return lambda: [generator.get_ranks(axis) for axis in ("dp", "cp", "tp")]


def deepspeed_topology(sizes: Sizes) -> Any:  # noqa: ANN401
    """Return a ``ProcessTopology``: a dict of all coordinates."""
    module = import_quietly("deepspeed.runtime.pipe.topology")
    return module.ProcessTopology(axes=list(sizes), dims=list(sizes.values()))


def deepspeed_groups(sizes: Sizes) -> Callable[[], Groups]:
    """Call ``get_axis_comm_lists`` for every axis."""
    topology = deepspeed_topology(sizes)
    return lambda: [topology.get_axis_comm_lists(axis) for axis in sizes]


def deepspeed_coordinate(sizes: Sizes) -> Work:
    """Call ``get_coord``, which searches all ranks."""
    topology = deepspeed_topology(sizes)
    return for_each(lambda rank: dict(topology.get_coord(rank)._asdict()), sizes)


def position_by(groups: Callable[[Sizes], Callable[[], Groups]]) -> Callable[[Sizes], Work]:
    """Build all groups and search them for a rank; its index in a group is its coordinate."""

    def question(sizes: Sizes) -> Work:
        rank = asked_rank(sizes)

        def position() -> Position:
            mine = [next(list(g) for g in axis if rank in g) for axis in groups(sizes)()]
            return {axis: g.index(rank) for axis, g in zip(sizes, mine, strict=True)}, mine

        return position

    return question


def device_mesh_position(sizes: Sizes) -> Work:
    """Build a ``DeviceMesh`` in a job of one process on the fake backend, then leave the job."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # torch's way to dry-run

    rank, ranks = asked_rank(sizes), int(np.prod([*sizes.values()]))

    def position() -> Position:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        try:
            mesh = init_device_mesh("cpu", (*sizes.values(),), mesh_dim_names=(*sizes,))
            coordinate = dict(zip(sizes, mesh.get_coordinate() or (), strict=True))
            groups = [dist.get_process_group_ranks(mesh.get_group(axis)) for axis in sizes]
            return coordinate, groups
        finally:
            dist.destroy_process_group()

    return position


GROUPS: Peers = {NUMPY: numpy_groups, MEGATRON: megatron_groups, DEEPSPEED: deepspeed_groups}
COORDINATE: Peers = {DEEPSPEED: deepspeed_coordinate}
POSITION: Peers = {
    MEGATRON: position_by(megatron_groups),
    DEEPSPEED: position_by(deepspeed_groups),
    DEVICE_MESH: device_mesh_position,
}


def bulk_rows(ranks: int, repeats: int) -> list[Row]:
    """Compare the coordinates of all ranks."""
    what, layout, every_rank = "rank -> coordinate, all ranks", layout_of(ranks), np.arange(ranks)

    def ours() -> object:
        return layout.coordinates(every_rank).T  # as unravel_index: an array for each axis

    peers: Peers = {NUMPY: lambda _: partial(np.unravel_index, every_rank, layout.shape)}
    return peer_rows(what, ranks, repeats, ours, peers, lambda axes: np.asarray(axes).tolist())


def group_rows(ranks: int, repeats: int) -> list[Row]:
    """Compare all groups of every axis."""
    layout = layout_of(ranks)

    def ours() -> Groups:
        return [layout.groups(axis) for axis in layout.axes]

    def lists(groups: Groups) -> list[list[list[int]]]:
        return [sorted(np.asarray(axis).tolist()) for axis in groups]

    return peer_rows("all groups of every axis", ranks, repeats, ours, GROUPS, lists)


def coordinate_rows(ranks: int, repeats: int) -> list[Row]:
    """Compare the coordinate of one rank, for ranks spread over all."""
    layout = layout_of(ranks)
    ours = for_each(layout.coordinate, layout.sizes)
    return peer_rows("rank -> coordinate, one rank", ranks, repeats, ours, COORDINATE)


def for_each(question: Callable[[int], object], sizes: Sizes) -> Work:
    """Return a call that asks about the next of 16 ranks each time, from the first to the last."""
    last = int(np.prod([*sizes.values()])) - 1
    ring = cycle([last * part // (NUM_ASKED - 1) for part in range(NUM_ASKED)])
    return lambda: question(next(ring))


def position_rows(ranks: int, repeats: int) -> list[Row]:
    """Compare the way from sizes to the coordinate and the groups of one rank."""
    sizes = layout_of(ranks).sizes
    rank = asked_rank(sizes)

    def ours() -> Position:
        layout = meshkit.factor_world(ranks, sp=sizes["sp"], tp=sizes["tp"])
        return layout.coordinate(rank), [layout.peers(rank, axis).tolist() for axis in sizes]

    return peer_rows("sizes -> my coordinate and my groups", ranks, repeats, ours, POSITION)


def peer_rows(
    what: str, ranks: int, repeats: int, ours: Work, peers: Peers, plain: Plain = lambda a: a
) -> list[Row]:
    """Return a row for each peer; beyond ``BULK`` ranks for numpy alone.

    Raises:
        RuntimeError: if the answers of both sides differ, after ``plain`` made lists of them.
    """
    rows = []
    for peer in peers if ranks <= BULK else [name for name in peers if name == NUMPY]:
        try:
            theirs = peers[peer](layout_of(ranks).sizes)
            for _ in range(NUM_ASKED if peers is COORDINATE else 1):
                if plain(answer := ours()) != plain(other := theirs()):
                    raise RuntimeError(f"{what}: meshkit and {peer} differ: {answer} and {other}")
        except ModuleNotFoundError as error:
            reason = f"{error.name} is not installed: {INSTALL}"
            rows.append(Row(what, ranks, peer, "s", missing=reason))
            continue
        goal = (FLOOR if peer == NUMPY else PEERS) if ranks >= BULK else None
        times = time_in_turns(ours, theirs, repeats)
        rows.append(compare(what, ranks, peer, "s", times, goal))
    return rows


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
