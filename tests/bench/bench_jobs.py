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
from meshkit.bench.bench import Request, agreed_hosts, bench
from meshkit.bench.calls import CALLS, Prepared, Works, checkable, run
from meshkit.bench.sweep import Sweep, Terms
from meshkit.core.measured import cases
from meshkit.core.measurement import Case, Measurement
from meshkit.core.operations import OPERATIONS
from meshkit.core.targets import typed_targets

CPU = torch.device("cpu")
LATE = {"slow": 0.02, "slower": 0.2, "stuck": 3.0}  # seconds


def every_call() -> tuple[dict[tuple[str, str], int | None], dict[str, int], int]:
    """Wrong elements of each call; of each that does nothing; and how many works two calls make."""
    with meshkit.build_mesh(dp=3, sp=2) as mesh:
        right: dict[tuple[str, str], int | None] = {}
        silent = {}
        for op in CALLS:
            for axis in ("dp", "sp"):
                mine = mesh.peers(axis).tolist(), 24, mesh.group(axis), CPU
                call = checkable(op, *mine)
                if axis == "dp" and not OPERATIONS[op].in_place:
                    silent[op] = call.wrong(mesh.rank)
                run([call])
                call.renew()
                run([call])
                right[op, axis] = call.wrong(mesh.rank) or None
        both = [("send_recv", "dp"), ("all_reduce", "sp")]
        made = [checkable(op, mesh.peers(a).tolist(), 24, mesh.group(a), CPU) for op, a in both]
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
        todo = cases(mesh.layout, operations, typed_targets(mesh.layout, names), sizes_bytes)
        terms = Terms(warm_up, 4, timeout, alone)
        sweep = Sweep(mesh, CPU, hosts(mesh), terms, lambda: stop, tell)
        return sweep.run(todo), told


def hosts(mesh: meshkit.Mesh) -> dict[int, str]:
    """All on one machine."""
    return dict.fromkeys(mesh.peers().tolist(), "here")


def spoil(op: str, number: int) -> None:
    """So many elements of each result are wrong on this rank."""
    wrong = Prepared.wrong
    Prepared.wrong = lambda self, rank: _spoiled(self, op, number) or wrong(self, rank)  # type: ignore[method-assign]


def _spoiled(call: Prepared, op: str, number: int) -> int:
    if call.op == op:
        call.out[:number] += 1
    return 0


def lack(op: str) -> None:
    """The backend has no such operation."""

    def begin(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> Works:
        raise RuntimeError(f"Backend gloo does not support {op}\nmore of c10d")

    CALLS[op] = replace(CALLS[op], begin=begin)


def fill(op: str) -> None:
    """This rank has no memory for such an operation."""

    def begin(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> Works:
        torch.empty(2**60)
        return []

    CALLS[op] = replace(CALLS[op], begin=begin)


def dawdle(wait: float) -> None:
    """This rank begins each all_reduce late."""
    begin = CALLS["all_reduce"].begin

    def late(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> Works:
        time.sleep(wait)
        return begin(out, source, group, later)

    CALLS["all_reduce"] = replace(CALLS["all_reduce"], begin=late)


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

        CALLS["all_reduce"] = replace(CALLS["all_reduce"], begin=begin)
        todo = cases(mesh.layout, ["all_reduce"], typed_targets(mesh.layout, ["dp"]), [64])
        Sweep(
            mesh, CPU, hosts(mesh), Terms(0, 2, 20.0, alone), lambda: False, lambda case: None
        ).run(todo)
    return inside


def asking(others: Sequence[dict[str, Any]]) -> list[str]:
    """What all are told where rank 1 asks for something else, each time; nothing is measured."""
    layout = meshkit.Layout(dp=2)
    targets = typed_targets(layout, ["dp"])
    usual = Request({"dp": 2}, None, ("broadcast",), targets, (64,), Terms(1, 2, 20.0), "cpu")
    CALLS["broadcast"] = replace(CALLS["broadcast"], begin=lambda *_: sys.exit("it was measured"))
    found = []
    for other in others:
        try:
            bench(replace(usual, **other) if meshkit.detect().rank == 1 else usual, layout)
        except meshkit.DisagreementError as error:
            found.append(str(error))
    return found


def hosts_of_ranks() -> list[str]:
    """The host of each rank, where each says that it is on one of its own."""
    rank = meshkit.detect().rank
    socket.gethostname = lambda: f"host-{rank}"
    meshkit.init(device="cpu")
    targets = typed_targets(meshkit.Layout(dp=4), ["dp"])
    return agreed_hosts(Request({"dp": 4}, None, (), targets, (64,), Terms(1, 2, 20.0)))
