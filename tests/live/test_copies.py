"""Objects that keep a mesh can be copied, and other processes get its coordinates."""

from __future__ import annotations

import copy
import os
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import meshkit
from tests.live.faults import error_of
from tests.live.newer_torch import needs_order


class Layer(nn.Module):
    """A layer that keeps a mesh and a shard, as layers of sequence parallelism do."""

    def __init__(self, mesh: meshkit.Mesh) -> None:
        super().__init__()
        self.mesh, self.shard = mesh, mesh.sequence(8)
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.mesh.size("sp")


class Coordinates(Dataset[tuple[Any, ...]]):
    """A dataset whose samples say where they were read."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        place = self.source
        answers = place.rank, place.coordinate, place.size("dp"), place.size()
        return os.getppid(), *answers, place.group_rank("dp", "sp"), place.peers("sp").tolist()


class Getters(Coordinates):
    """A dataset that asks the mesh in a forked worker."""

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        mesh: meshkit.Mesh = self.source
        plan = mesh.batch(global_batch=8, micro_batch=2)
        sampler = mesh.sampler(8, plan, shuffle=True, seed=3)
        return (
            *super().__getitem__(index),
            mesh.group("dp").size(),
            mesh.neighbor("sp"),
            mesh.ring("dp").tolist(),
            mesh.inside,
            str(mesh.position),
            [*sampler],
            plan.samples(1).tolist(),
            mesh.sequence(8).take(torch.arange(8), dim=0).tolist(),
            mesh.seed(1, vary="dp sp"),
            repr(mesh),
        )


def first(dataset: Dataset[Any], method: str) -> Any:
    """Return the first sample, as a worker reads it."""
    loader = DataLoader(
        dataset, batch_size=None, num_workers=1, multiprocessing_context=method, collate_fn=tuple
    )
    return next(iter(loader))


def spawned_worker(position: Any) -> tuple[Any, ...]:
    """Return the answers of a worker in a new interpreter, which takes seconds to import torch."""
    return first(Coordinates(position), "spawn")[1:]  # type: ignore[no-any-return]


def copies() -> dict[str, Any]:
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        layer = Layer(mesh)
        copied = copy.deepcopy(layer)
        ones = torch.ones(())
        dist.all_reduce(ones, group=copied.mesh.group("sp"))
        tokens = torch.arange(8).view(1, 8)
        forked = first(Getters(mesh), "fork")
        return {
            "shared": copied.mesh is mesh and copy.copy(mesh) is mesh,
            "weights": copied.linear.weight is not layer.linear.weight,
            "sum": int(ones),
            "gathered": copied.shard.gather(copied.shard.take(tokens)).tolist(),
            "pickled": error_of(lambda: pickle.dumps(layer)),
            "spawned mesh": error_of(lambda: first(Coordinates(mesh), "spawn")),
            "spawned": spawned_worker(mesh.position) if mesh.rank == 2 else None,
            "forked": forked == (os.getpid(), *Getters(mesh)[0][1:]),
            "position": mesh.position.coordinate == mesh.coordinate,
        }


def close_in_a_fork() -> Any:
    """Close the mesh in a forked child; return its exit code and a sum of the parents."""
    mesh, total = meshkit.build_mesh(dp=2), torch.ones(())
    child = os.fork()
    if child == 0:
        mesh.close()
        os._exit(5)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    dist.all_reduce(total, group=mesh.group())
    return code, int(total)


def test_a_forked_child_that_closes_the_mesh_lives_on() -> None:
    assert meshkit.spawn(close_in_a_fork, 2, timeout=60) == [(5, 2)] * 2


def test_copies_share_the_mesh_and_workers_get_coordinates() -> None:
    layout = meshkit.Layout(dp=2, sp=2)
    refused = (
        "MeshkitError",
        "a mesh cannot be pickled, because its process groups belong to one process.\n"
        "  Fix: mesh.position, which knows the rank and the layout. Save models with "
        "torch.save(model.state_dict(), path).",
    )
    for rank, report in enumerate(meshkit.spawn(copies, 4, timeout=120)):
        peers = layout.peers(rank, "sp").tolist()
        assert report == {
            "shared": True,
            "weights": True,
            "sum": 2,
            "gathered": [[*range(8)]],
            "pickled": refused,
            "spawned mesh": refused,
            "spawned": (rank, layout.coordinate(rank), 2, 4, rank, peers) if rank == 2 else None,
            "forked": True,
            "position": True,
        }


def compiled() -> dict[str, bool]:
    """Return for each function whether it is one graph with the result of plain Python."""
    from torch.distributed import _functional_collectives as functional

    mesh = meshkit.build_mesh(dp=2, sp=2, groups=["sp dp"])
    shards = {
        "take": mesh.sequence(8),
        "take zigzag": mesh.sequence(8, order="zigzag"),
        "take padded": mesh.sequence(7, order="zigzag", pad=True),
        "take all": mesh.sequence(8, axes=()),
    }
    position = mesh.position
    functions = {
        name: lambda x, shard=shard: shard.take(x[:, : shard.plan.length])
        for name, shard in shards.items()
    }
    functions |= {
        "size": lambda x: x * mesh.size("dp") + mesh.size() + mesh.size("dp", "sp"),
        "coordinate": lambda x: x * mesh.coordinate["dp"] + mesh.coordinate["sp"],
        "group_rank": lambda x: x * mesh.group_rank("sp", "dp") + mesh.rank,
        "neighbor": lambda x: x * (mesh.neighbor("dp") or 0),
        "group": lambda x: functional.all_reduce(x, "sum", mesh.group("dp")),
        "groups": lambda x: x * mesh.group().size() + mesh.group("sp", "dp").rank(),
        "position": lambda x: x * position.coordinate["dp"] + position.size("sp"),
    }
    x, same = torch.arange(16.0).view(2, 8), {}
    for name, function in functions.items():
        whole = function
        if mesh.rank == 0:  # a compiler takes seconds a rank; the others take part
            torch._dynamo.reset()
            # the name "eager" would import every backend
            whole = torch.compile(function, backend=lambda graph, _: graph.forward, fullgraph=True)
        same[name] = torch.equal(whole(x), function(x))
    return same


@needs_order
def test_getters_are_part_of_one_graph() -> None:
    by_rank = meshkit.spawn(compiled, 4, timeout=300)
    assert all(len(report) == 11 and all(report.values()) for report in by_rank), by_rank
