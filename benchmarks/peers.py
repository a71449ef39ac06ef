"""The libraries that also number ranks on a grid, each asked for the same in its own way.

All get the same grid, the axes dp, sp and tp, the last the fastest. Megatron's ``RankGenerator``
calls sp cp; it tells groups alone, never where a rank sits. ``DeviceMesh`` knows its own rank
alone, and makes its groups while it is built: here on torch's fake backend, which connects nothing.
"""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.device_mesh import init_device_mesh

Ints = NDArray[np.int64]
Topology = Any  # DeepSpeed is untyped
Groups = list[Any]  # by axis, (num_groups, group_size)
Place = tuple[dict[str, int], list[list[int]]]  # a coordinate, and the group of each axis


@dataclass(frozen=True)
class Peer:
    """One library.

    Attributes:
        name: as the table shows it.
        package: what brings it.
        groups: sizes to all groups of every axis; None where it has no such question.
        coordinate: sizes to what answers rank to coordinate.
        rank: sizes to what answers coordinate to rank.
        place: sizes and rank to the coordinate and groups of that rank, from nothing.
    """

    name: str
    package: str
    groups: Callable[[Mapping[str, int]], Callable[[], Groups]] | None = None
    coordinate: Callable[[Mapping[str, int]], Callable[[int], Mapping[str, int]]] | None = None
    rank: Callable[[Mapping[str, int]], Callable[[Mapping[str, int]], int]] | None = None
    place: Callable[[Mapping[str, int], int], Place] | None = None

    @property
    def installed(self) -> bool:
        """Whether it can be imported; nothing is."""
        module = {"megatron-core": "megatron"}.get(self.package, self.package)
        return importlib.util.find_spec(module) is not None


@contextmanager
def quietly() -> Iterator[None]:
    """Import a library without what it has to say of accelerators and of its own age."""
    words = io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(words), redirect_stderr(words):
        warnings.simplefilter("ignore")
        yield


def mine(groups: Groups, rank: int) -> list[list[int]]:
    """Of each axis the group in which a rank is."""
    return [next(list(one) for one in axis if rank in one) for axis in groups]


# --- numpy: the floor ----------------------------------------------------------------------------


def numpy_groups(sizes: Mapping[str, int]) -> Callable[[], Groups]:
    """Every axis moved to the end in turn."""
    shape = tuple(sizes.values())

    def groups() -> Groups:
        grid = np.arange(np.prod(shape)).reshape(shape)
        return [np.moveaxis(grid, i, -1).reshape(-1, size) for i, size in enumerate(shape)]

    return groups


def numpy_coordinate(sizes: Mapping[str, int]) -> Callable[[int], Mapping[str, int]]:
    """``unravel_index``, with names."""
    shape, axes = tuple(sizes.values()), tuple(sizes)
    return lambda rank: dict(zip(axes, map(int, np.unravel_index(rank, shape)), strict=True))


def numpy_rank(sizes: Mapping[str, int]) -> Callable[[Mapping[str, int]], int]:
    """``ravel_multi_index``, with names."""
    shape, axes = tuple(sizes.values()), tuple(sizes)
    return lambda at: int(np.ravel_multi_index([at[axis] for axis in axes], shape))


# --- Megatron-core -------------------------------------------------------------------------------


def megatron_groups(sizes: Mapping[str, int]) -> Callable[[], Groups]:
    """``get_ranks`` of every axis."""
    with quietly():
        from megatron.core.parallel_state import RankGenerator
    dp, sp, tp = sizes.values()
    made = RankGenerator(tp=tp, ep=1, dp=dp, pp=1, cp=sp, order="tp-cp-ep-dp-pp")
    return lambda: [made.get_ranks(axis) for axis in ("dp", "cp", "tp")]


def megatron_place(sizes: Mapping[str, int], rank: int) -> Place:
    """All groups, and in them this rank's; a coordinate is the place in a group."""
    groups = mine(megatron_groups(sizes)(), rank)
    return dict(zip(sizes, (one.index(rank) for one in groups), strict=True)), groups


# --- DeepSpeed -----------------------------------------------------------------------------------


def topology(sizes: Mapping[str, int]) -> Topology:
    """``ProcessTopology``: a dict of all coordinates."""
    with quietly():
        from deepspeed.runtime.pipe.topology import ProcessTopology
    return ProcessTopology(axes=list(sizes), dims=list(sizes.values()))


def deepspeed_groups(sizes: Mapping[str, int]) -> Callable[[], Groups]:
    """``get_axis_comm_lists`` of every axis."""
    made = topology(sizes)
    return lambda: [made.get_axis_comm_lists(axis) for axis in sizes]


def deepspeed_coordinate(sizes: Mapping[str, int]) -> Callable[[int], Mapping[str, int]]:
    """``get_coord``, which looks through all ranks."""
    made = topology(sizes)
    return lambda rank: dict(made.get_coord(rank)._asdict())


def deepspeed_rank(sizes: Mapping[str, int]) -> Callable[[Mapping[str, int]], int]:
    """``get_rank``, a look into the dict."""
    made = topology(sizes)
    return lambda at: int(made.get_rank(**at))


def deepspeed_place(sizes: Mapping[str, int], rank: int) -> Place:
    """The topology, the coordinate, and all groups, and in them this rank's."""
    made = topology(sizes)
    groups = [made.get_axis_comm_lists(axis) for axis in sizes]
    return dict(made.get_coord(rank)._asdict()), mine(groups, rank)


# --- DeviceMesh ----------------------------------------------------------------------------------


def device_mesh_place(sizes: Mapping[str, int], rank: int) -> Place:
    """A job of one process on the fake backend, which is left again."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # torch's way to dry-run

    ranks = int(np.prod(list(sizes.values())))
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (*sizes.values(),), mesh_dim_names=(*sizes,))
        at = dict(zip(sizes, mesh.get_coordinate() or (), strict=True))
        return at, [dist.get_process_group_ranks(mesh.get_group(axis)) for axis in sizes]
    finally:
        dist.destroy_process_group()


NUMPY = Peer("numpy", "numpy", numpy_groups, numpy_coordinate, numpy_rank)
MEGATRON = Peer("Megatron RankGenerator", "megatron-core", megatron_groups, place=megatron_place)
DEEPSPEED = Peer(
    "DeepSpeed ProcessTopology",
    "deepspeed",
    deepspeed_groups,
    deepspeed_coordinate,
    deepspeed_rank,
    deepspeed_place,
)
DEVICE_MESH = Peer("DeviceMesh (fake backend)", "torch", place=device_mesh_place)
EVERY = (NUMPY, MEGATRON, DEEPSPEED, DEVICE_MESH)
