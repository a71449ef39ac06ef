"""What ranks run to be measured, and what spoils a rank. No pytest here."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.bench.collectives import COLLECTIVES, PreparedCall, Works, checked_call, run_calls
from meshkit.bench.results.collectives import OPERATIONS
from meshkit.bench.results.measurement import Case, Measurement
from meshkit.bench.results.run import plan_cases
from meshkit.bench.results.targets import parse_targets
from meshkit.bench.run import Request, agree_on_hosts, run_benchmark
from meshkit.bench.sweep import Sweep, SweepOptions

CPU = torch.device("cpu")
LATE = {"slow": 0.02, "slower": 0.2, "stuck": 3.0}  # seconds


def every_call() -> tuple[dict[tuple[str, str], int | None], dict[str, int], int]:
    """Wrong elements of each call; of each that does nothing; and how many works two calls make."""
    with meshkit.build_mesh(dp=3, sp=2) as mesh:
        right: dict[tuple[str, str], int | None] = {}
        silent = {}
        for op in COLLECTIVES:
            for axis in ("dp", "sp"):
                mine = mesh.peers(axis).tolist(), 24, mesh.group(axis), CPU
                call = checked_call(op, *mine)
                if axis == "dp" and not OPERATIONS[op].in_place:
                    silent[op] = call.num_wrong(mesh.rank)
                run_calls([call])
                right[op, axis] = call.num_wrong(mesh.rank) or None
        both = [("send_recv", "dp"), ("all_reduce", "sp")]
        made = [checked_call(op, mesh.peers(a).tolist(), 24, mesh.group(a), CPU) for op, a in both]
        works = [work for call in made for work in call.begin()]
        for work in works:
            if work is not None:
                work.wait()
        mesh.barrier()
        return right, silent, len(works)


def swept(
    sizes: dict[str, int],
    operations: Sequence[str],
    names: Sequence[str],
    sizes_bytes: Sequence[int],
    fault: str = "",
    timeout: float = 20.0,
    warm_up: int = 1,
    alone: int | None = None,
) -> tuple[list[Measurement], list[Case]]:
    """A sweep on a mesh, and what was told; with a fault on one rank."""
    with meshkit.build_mesh(sizes, groups=[n for n in names if " " in n] or None) as mesh:
        told: list[Case] = []
        stop = False

        def tell(case: Case) -> None:
            nonlocal stop
            told.append(case)
            if fault == "stops" and mesh.rank == 1:
                stop = len(told) == 2
            if fault == "hangs" and mesh.rank == 1 and len(told) == 2:
                time.sleep(6)
            if fault == "dies" and mesh.rank == 1 and len(told) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        if fault == "wrong" and mesh.rank == 1:
            spoil("all_gather", 3)
        if fault == "full" and mesh.rank == 1:
            fill("broadcast")
        if fault == "lacks":
            lack("all_to_all")
        if fault in LATE and mesh.rank == 2:
            dawdle(LATE[fault])
        todo = plan_cases(mesh.layout, operations, parse_targets(mesh.layout, names), sizes_bytes)
        terms = SweepOptions(warm_up, 4, timeout, alone)
        sweep = Sweep(mesh, CPU, hosts(mesh), terms, lambda: stop, tell)
        return sweep.run(todo), told


def hosts(mesh: meshkit.Mesh) -> dict[int, str]:
    """All on one machine."""
    return dict.fromkeys(mesh.peers().tolist(), "here")


def spoil(op: str, number: int) -> None:
    """So many elements of each result are wrong on this rank."""
    wrong = PreparedCall.num_wrong
    PreparedCall.num_wrong = lambda self, rank: _spoiled(self, op, number) or wrong(self, rank)  # type: ignore[method-assign]


def _spoiled(call: PreparedCall, op: str, number: int) -> int:
    if call.op == op:
        call.out[:number] += 1
    return 0


def lack(op: str) -> None:
    """The backend has no such operation."""

    def begin(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> Works:
        raise RuntimeError(f"Backend gloo does not support {op}\nmore of c10d")

    COLLECTIVES[op] = replace(COLLECTIVES[op], begin=begin)


def fill(op: str) -> None:
    """This rank has no memory for such an operation."""

    def begin(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> Works:
        torch.empty(2**60)
        return []

    COLLECTIVES[op] = replace(COLLECTIVES[op], begin=begin)


def dawdle(wait: float) -> None:
    """This rank begins each all_reduce late."""
    begin = COLLECTIVES["all_reduce"].begin

    def late(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> Works:
        time.sleep(wait)
        return begin(out, source, group, later)

    COLLECTIVES["all_reduce"] = replace(COLLECTIVES["all_reduce"], begin=late)


def alone_and_together(alone: int | None = None) -> list[tuple[float, float]]:
    """When this rank was inside a timed call of dp: alone, then with all groups at once."""
    inside: list[tuple[float, float]] = []
    with meshkit.build_mesh(dp=2, sp=2) as mesh:

        def begin(
            out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
        ) -> Works:
            began = time.monotonic()
            dist.all_reduce(out, group=group)
            time.sleep(0.03)
            inside.append((began, time.monotonic()))
            return []

        COLLECTIVES["all_reduce"] = replace(COLLECTIVES["all_reduce"], begin=begin)
        todo = plan_cases(mesh.layout, ["all_reduce"], parse_targets(mesh.layout, ["dp"]), [64])
        Sweep(
            mesh,
            CPU,
            hosts(mesh),
            SweepOptions(0, 2, 20.0, alone),
            lambda: False,
            lambda case: None,
        ).run(todo)
    return inside


def asking(others: Sequence[dict[str, Any]]) -> list[str]:
    """What all are told where rank 1 asks for something else, each time; nothing is measured."""
    layout = meshkit.Layout(dp=2)
    targets = parse_targets(layout, ["dp"])
    usual = Request(
        {"dp": 2}, None, ("broadcast",), targets, (64,), SweepOptions(1, 2, 20.0), "cpu"
    )
    COLLECTIVES["broadcast"] = replace(
        COLLECTIVES["broadcast"], begin=lambda *_: sys.exit("it was measured")
    )
    found = []
    for other in others:
        try:
            run_benchmark(replace(usual, **other) if meshkit.detect().rank == 1 else usual, layout)
        except meshkit.DisagreementError as error:
            found.append(str(error))
    return found


def hosts_of_ranks() -> list[str]:
    """The host of each rank, where each says that it is on one of its own."""
    rank = meshkit.detect().rank
    socket.gethostname = lambda: f"host-{rank}"
    meshkit.init(device="cpu")
    targets = parse_targets(meshkit.Layout(dp=4), ["dp"])
    return agree_on_hosts(Request({"dp": 4}, None, (), targets, (64,), SweepOptions(1, 2, 20.0)))
