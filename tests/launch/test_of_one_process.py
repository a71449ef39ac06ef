"""Objects that keep a mesh can be copied, and other processes get its coordinates."""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import os
import pickle
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, IterableDataset

import meshkit
from meshkit.launch.of_one_process import OfOneProcess
from tests.faults import error_of
from tests.newer_torch import needs_order
from tests.pure import PURE


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
        "a Mesh cannot be pickled, because its process groups belong to one process.\n"
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


# ---------------------------------------------------------------- every class that holds groups

# names in the annotation of an attribute that is, or holds, a process group of this process
WINGS = ("groups", "data", "norm", "redistribute", "transfer", "guard", "recover", "mesh")
HELD = {"ProcessGroup", "GroupStore", "Store", "Job"}


def classes() -> Iterator[type]:
    """Yield the classes of the modules that may hold groups."""
    for wing in WINGS:
        package = importlib.import_module(f"meshkit.{wing}")
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            content = [] if Path(str(module.__file__)) in PURE else vars(module).values()
            yield from (c for c in content if inspect.isclass(c) and c.__module__ == info.name)


def attributes(kind: type) -> str:
    """Return the annotations of the attributes and of the arguments of a class, as text."""
    texts = dict(vars(kind).get("__annotations__", {}))
    if inspect.isfunction(init := vars(kind).get("__init__")):
        texts |= init.__annotations__
    return " ".join(map(str, texts.values()))


def holders() -> list[type]:
    """Return the classes with an attribute that holds groups, directly or through another class.

    A tuple or a protocol is left out: it is a value inside an object, and nobody keeps it.
    """
    names, found = set(HELD), dict[str, type]()
    kinds = [c for c in classes() if not issubclass(c, tuple) and Protocol not in c.__bases__]
    while True:
        new = [
            kind
            for kind in kinds
            if kind.__name__ not in found and names & {*re.findall(r"\w+", attributes(kind))}
        ]
        if not new:
            return [*found.values()]
        found |= {kind.__name__: kind for kind in new}
        names |= {*found}


def test_each_class_that_holds_groups_is_shared_by_copies() -> None:
    found = holders()
    assert {"Mesh", "MeshGroups", "Redistribution", "Transfer", "Recovery", "Guard"} <= {
        kind.__name__ for kind in found
    }
    assert not [kind for kind in found if not issubclass(kind, OfOneProcess)]


class Tokens(IterableDataset[int]):
    """A stream of eight numbers."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


@dataclass
class Settings:
    """A configuration that keeps an object, alone and in a list."""

    kept: Any
    several: list[Any]


class Keeper(nn.Module):
    """A layer that keeps an object."""

    def __init__(self, kept: Any) -> None:
        super().__init__()
        self.kept = kept
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


OWN_FIELDS = ("shard", "groups", "ring")  # dataclasses that ``asdict`` takes apart


def as_dict(thing: object) -> list[Any]:
    """Return what ``asdict`` and ``astuple`` make of an object in a configuration."""
    settings = Settings(thing, [thing])
    named, plain = asdict(settings), astuple(settings)
    return [named["kept"], *named["several"], plain[0], *plain[1]]


def kept_by_a_model() -> dict[str, Any]:
    """Return how copies of a model behave, for each object that a model may keep."""
    reports = {}
    with (
        meshkit.build_mesh(dp=2, sp=2) as mesh,
        mesh.view(a=2, b=2) as view,
        meshkit.build_mesh(dp=2, ranks=[0, 1]) as other,
    ):
        x = torch.ones(2, 2)
        redistribution = mesh.redistribution("a b/sp -> a/sp b")
        redistribution(x)
        mesh.grad_norm(nn.Linear(2, 2))
        guard = mesh.guard(timeout=30)
        kept = {
            "mesh": mesh,
            "view": view,
            "redistribution": redistribution,
            "to a view": mesh.redistribution("a b/sp -> a/a b", to=view),
            "to a mesh": mesh.redistribution("a/dp/sp b -> a/dp b", to=other),
            "handle": mesh.begin(x, "a b/sp -> a/sp b"),
            "transfer": mesh.transfer({"x": "a/dp/sp b -> a b"}, to=other, like={"x": x}),
            "recovery": mesh.recovery,
            "guard": guard,
            "shard": mesh.sequence(8),
            "method": mesh.redistribute,
            "groups": mesh._groups,
            "moves": mesh._moves,
            "norms": mesh._norms,
            "ring": mesh._moves.rings.get("sp") or mesh._moves.publish_ring("sp"),
        }
        for name, thing in kept.items():
            model = Keeper(thing)
            copied, averaged = copy.deepcopy(model), AveragedModel(model)
            reports[name] = (
                copied.kept == thing and averaged.module.kept == thing,
                copied.linear.weight is not model.linear.weight,
                name in OWN_FIELDS or all(kept == thing for kept in as_dict(thing)),
                [*model.state_dict()],
                error_of(lambda model=model: torch.save(model, io.BytesIO())),
            )
        kept["handle"].wait()
        with guard, copy.deepcopy(guard):
            pass
    return reports


def test_copies_of_a_model_share_what_holds_groups() -> None:
    for reports in meshkit.spawn(kept_by_a_model, 4, timeout=120):
        for name, (shared, own_weights, is_whole, names, refusal) in reports.items():
            assert (shared, own_weights, is_whole) == (True, True, True), name
            assert names == ["linear.weight", "linear.bias"]
            if name in ("shard", "ring"):  # a shard without its group; the name of an attribute
                assert refusal is None, name
                continue
            kind, text = refusal
            assert kind == "MeshkitError", (name, refusal)
            assert "cannot be pickled, because its process groups belong to one process" in text
            assert "Fix: mesh.position" in text


def copied_samplers() -> Any:
    """Return what copies of a sampler, a stream and a loader read."""
    with meshkit.build_mesh(dp=2) as mesh:
        plan = mesh.batch(global_batch=4, micro_batch=2)
        sampler, stream = mesh.sampler(8, plan), mesh.sampler(Tokens(), plan)
        loader = mesh.loader(torch.arange(8), plan)
        copies = copy.deepcopy([sampler, stream, loader])
        sampler.load_state_dict(sampler.state_dict(steps=1))
        rows = [[*copies[0]], [*copies[1]], [batch.tolist() for batch in copies[2]]]
        return mesh.rank, rows, len(sampler), len(copies[0])


def test_copies_of_samplers_have_positions_of_their_own() -> None:
    for rank, rows, length, copied in meshkit.spawn(copied_samplers, 2, timeout=60):
        expected = [[2 * rank, 2 * rank + 1], [2 * rank + 4, 2 * rank + 5]]
        assert rows == [expected] * 3
        assert (length, copied) == (1, 2)


def copied_streams() -> Any:
    """Return the numbers of a stream of a copied model, beside those of the original."""
    meshkit.init(seed=5)
    with meshkit.build_mesh(dp=2) as mesh:
        with mesh.rng("dropout", vary="dp"):
            torch.rand(3)
        model = Keeper(mesh.rng)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        copies = [copy.deepcopy(model).kept, AveragedModel(model).module.kept, copy.copy(mesh.rng)]
        drawn = []
        for rng in (*copies, loaded.kept, mesh.rng):
            with rng("dropout", vary="dp"):
                drawn.append(torch.rand(4).tolist())
            with rng("new", vary="dp"):
                drawn[-1] += torch.rand(4).tolist()
        return drawn


def test_a_copy_of_random_streams_goes_on_from_their_states() -> None:
    first, second = meshkit.spawn(copied_streams, 2, timeout=60)
    assert len(first) == 5
    assert all(numbers == first[0] for numbers in first)
    assert all(numbers == second[0] for numbers in second)
    assert first[0] != second[0]
