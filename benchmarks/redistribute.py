"""Redistribute: tensors that move over mesh axes, beside functions by hand, DTensor and spmd_types.

Equal results on real ranks come first, then their times, the CPU time of a call, the elements that
plans receive, the time of the planner, and the graphs of torch.compile.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshkit

from .harness import Goal, Row, single
from .moves.calls import RANKS, call_rows
from .moves.plans import AXES, byte_rows, planner_rows
from .moves.times import ITEMS, time_rows

ONE_GRAPH = Goal("ours", "<=", 1)


def run(quick: bool) -> list[Row]:
    """Return the rows of all parts."""
    timed = time_rows(1, 4096) if quick else time_rows(5, ITEMS)
    return [*timed, *without_communication(3 if quick else 41)]


def without_communication(repeats: int) -> list[Row]:
    """Return the rows that need no other rank, measured in a process of their own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, repeats).result()


def measure(repeats: int) -> list[Row]:
    """Return these rows, in a process without a default group."""
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=1, world_size=RANKS)
    try:
        with meshkit.build_mesh({"x": RANKS}, order="x") as mesh:
            rows = [*call_rows(mesh, repeats), graphs_row(mesh)]
        device_mesh = init_device_mesh("cpu", (*AXES.values(),), mesh_dim_names=(*AXES,))
        return [*rows, *byte_rows(device_mesh), *planner_rows(repeats)]
    finally:
        dist.destroy_process_group()


def graphs_row(mesh: meshkit.Mesh) -> Row:
    """Return the row of the graphs that torch.compile makes for two lengths.

    Each has the forward and the backward of an exchange. No two dims have one size, since torch
    would give them one symbol.
    """
    from torch._dynamo.testing import CompileCounterWithBackend

    def exchange(x: torch.Tensor) -> torch.Tensor:
        return mesh.redistribute(x, "b s/x h d -> b s h/x d")

    backend = CompileCounterWithBackend("aot_eager")
    step = torch.compile(exchange, fullgraph=True, backend=backend, dynamic=True)
    for length in (24, 48):
        x = torch.ones(2, length, RANKS, 4, requires_grad=True)
        torch.autograd.grad(step(x).sum(), x)
    what = "torch.compile(fullgraph=True), two lengths"
    return single(what, RANKS, "graphs", [float(backend.frame_count)], ONE_GRAPH)
