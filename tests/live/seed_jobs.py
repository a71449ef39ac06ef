"""What the ranks of test_seeds.py run. No pytest here: every child imports this."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

import meshkit
from meshkit import stream_seed
from meshkit.launch.record import known

VARY = ("dp", "tp")
Sizes = dict[str, int]


def caught(call: Callable[[], Any]) -> tuple[str, str] | None:
    """Kind and text of what a call raises."""
    try:
        call()
    except meshkit.MeshkitError as error:
        return type(error).__name__, str(error)
    return None


def numbers(count: int = 4) -> list[float]:
    """The next numbers of the global generator."""
    return torch.rand(count).tolist()


def mask() -> list[int]:
    """Which of 64 places dropout lets through."""
    return F.dropout(torch.ones(64), 0.5).ne(0).int().tolist()


def both(sizes: Sizes) -> Any:
    """What a mesh draws, and its seeds, in one job."""
    return streams(sizes), seeds(sizes)


def bases() -> Any:
    """What seeds are of where ``init`` was given none, and where it drew one, twice."""
    found = []
    for seed in (None, "shared", "shared"):
        meshkit.init(seed=seed)
        with meshkit.build_mesh() as mesh, mesh.rng("x"):
            seeds = mesh.seed(), known().seed
        found.append((*seeds, stream_seed(torch.initial_seed())))
        gone = weakref.ref(mesh)
        gc.disable()  # a mesh that has been let go of is gone at once: its store is, too
        del mesh
        found[-1] = (*found[-1], gone() is None)
        gc.enable()
        meshkit.shutdown()
    return found


def seeds(sizes: Sizes) -> Any:
    """Seeds by what they vary along, and what they are of; before and after another ``init``."""
    meshkit.init(seed=5)
    with meshkit.build_mesh(sizes) as mesh:
        torch.manual_seed(1)
        before = torch.get_rng_state()
        found = {vary: mesh.seed(vary=vary) for vary in ("", "dp", "dp tp", "sp")}
        touched = not torch.equal(before, torch.get_rng_state())
        more = mesh.seed(7), mesh.seed(7, vary=["tp", "dp"])  # type: ignore[arg-type]
        meshkit.init(seed=11)
        later = mesh.seed()
    meshkit.init(seed=12)
    kept = mesh.seed()
    meshkit.shutdown()
    return mesh.coordinate, found, touched, more, later, kept, mesh.seed()


def streams(sizes: Sizes) -> Any:
    """What each rank draws: outside, in a stream, outside again, and on coming back."""
    meshkit.init(seed=5)
    with meshkit.build_mesh(sizes) as mesh:
        outside = [numbers()]
        with mesh.rng("dropout", vary=VARY):
            first, dropped = numbers(), mask()
        outside.append(numbers())
        with mesh.rng("dropout", vary="tp dp"):  # the same stream
            second = numbers()
        with mesh.rng("dropout"):
            alike = numbers()
        return mesh.coordinate, outside, (first, dropped, second), alike


def resumes(first: Sizes, later: Sizes, folder: str, way: str) -> Any:
    """The streams of a mesh, and what becomes of them on another one."""
    return saved(first, folder, way), resumed(later, folder, way)


def saved(sizes: Sizes, folder: str, way: str) -> Any:
    """Draw, save the streams, a file a rank or by torch.distributed.checkpoint, then go on."""
    meshkit.init(seed=5)
    with meshkit.build_mesh(sizes) as mesh:
        with mesh.rng("dropout", vary=VARY):
            numbers()
        with mesh.rng("noise", vary="dp"):
            numbers(7)
        state = mesh.rng.state_dict()
        if way == "dcp":
            import torch.distributed.checkpoint as dcp  # a second to import, needed here only

            dcp.save({"rng": state}, checkpoint_id=Path(folder) / "dcp")
        else:
            torch.save(state, Path(folder) / f"{mesh.rank}.pt")
            mesh.barrier()
        return mesh.coordinate, sorted(state), drawn(mesh)


def resumed(sizes: Sizes, folder: str, way: str) -> Any:
    """The streams of a mesh of other sizes, which go on where they stood or begin."""
    meshkit.init(seed=5)
    with meshkit.build_mesh(sizes) as mesh:
        load(mesh, folder, way)
        return mesh.coordinate, sorted(mesh.rng.state_dict()), drawn(mesh)


def load(mesh: meshkit.Mesh, folder: str, way: str) -> None:
    if way == "merged":
        merged: dict[str, Any] = {}
        for path in Path(folder).glob("*.pt"):
            merged |= torch.load(path)
        mesh.rng.load_state_dict(merged)
        return
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

    drawn(mesh)  # so that there is something to read into, which is begun anew where it is not
    state = {"rng": mesh.rng.state_dict()}
    own = dict(state["rng"])
    planner = DefaultLoadPlanner(allow_partial_load=True)
    dcp.load(state, checkpoint_id=Path(folder) / "dcp", planner=planner)
    keys = dcp.FileSystemReader(Path(folder) / "dcp").read_metadata().state_dict_metadata
    there = {key for key in own if f"rng.{key}.cpu" in keys}
    mesh.rng.load_state_dict({key: state["rng"][key] for key in there})


def drawn(mesh: meshkit.Mesh) -> tuple[list[float], list[float]]:
    """The next numbers of both streams."""
    with mesh.rng("dropout", vary=VARY):
        dropout = numbers()
    with mesh.rng("noise", vary="dp"):
        return dropout, numbers()


def refused() -> Any:
    """What each mistake says, on one rank of two, and on one that is outside the mesh."""
    with meshkit.build_mesh(dp=1, sp=1, ranks=[0]) as mesh:
        told = [caught(lambda: mesh.seed(vary="dp"))]
        told.append(caught(lambda: mesh.rng("init", vary="dp")))
        told.append(caught(lambda: mesh.seed(vary="ttp")))
        told.append(caught(lambda: mesh.rng("init", vary="pp")))
        told.append(caught(lambda: mesh.seed(True)))
        told.append(caught(lambda: mesh.rng("init", seed=1.5)))  # type: ignore[arg-type]
        with mesh.rng("init"):  # nothing is varied: a rank outside may
            shared = numbers()
        return dist.get_rank(), told, shared, mesh.seed()
