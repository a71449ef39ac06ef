"""Transfer: weights from trainer to sampler over slow links, beside three ways by hand.

As root on Linux, the benchmark makes hosts of two ranks each: network namespaces on one switch,
with links of 200 Mbit/s. The trainer has two hosts (dp=2 tp=2), and cuts each weight over both
axes. The sampler has two or four hosts (dp=hosts tp=2), and each host wants the whole state. So no
way takes less than the state needs to enter one host, by law 4 of a transfer::

    bound = max(state into a host / link, state / links of the trainer)

The ways by hand: all parts to rank 0, then a broadcast of the whole state; each rank of the sampler
receives its part from ranks of the trainer. Times are those of the slowest rank, in turns in one
run, over the bound. Counters of the links give the bytes without headers.

The planner of one rank, and how many random moves other planners accept, need no link.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import meshkit

from .harness import Goal, Row, compare, figure_text, single
from .hosts import NoHostsError, hosts_on_a_switch, read_figures, read_payload, start_rank
from .moves.planners import generality_rows, planning_rows
from .report import markdown_table, put_section

RATE, BYTES_PER_SECOND = "200mbit", 200e6 / 8
TRAINER, PER_HOST = 4, 2  # ranks of the trainer, and of each host
TENSORS, COLUMNS, MIB = 16, 1024, 2**20
CHUNK = 4 * MIB
PORT, TIMEOUT = 29779, 400.0
NEAR, EXACT = Goal("ours", "<=", 1.15), Goal("ours", "<=", 1.005)
PATTERN = "o/dp/tp i -> o/tp i"
PEERS = {
    "broadcast": "gather + broadcast",
    "pull": "direct pull",
    "unchunked": "one chunk of 64 MiB",
}

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "transfer.md"
BEGIN, END = "<!-- transfer -->", "<!-- /transfer -->"

State = dict[str, Tensor]


def run(quick: bool) -> list[Row]:
    """Return the rows of the links, of the planner and of random moves."""
    rows = [*planning_rows(3 if quick else 7), *generality_rows(200 if quick else 5000)]
    for hosts, mib in ((2, 4),) if quick else ((2, 64), (4, 64)):
        what = f"{mib} MiB, 2 + {hosts} hosts of 2 ranks, links of {RATE}"
        try:
            figures = measure(hosts, mib, 1 if quick else 3)
        except NoHostsError as error:
            rows.append(Row(what, TRAINER + PER_HOST * hosts, "-", "s / bound", missing=str(error)))
            continue
        rows += link_rows(what, TRAINER + PER_HOST * hosts, figures)
    if not quick:
        put_section(PAGE, BEGIN, END, f"\n{table(rows)}\n")
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return the times over the bound as a table in Markdown, a line for each way."""
    times = [row for row in rows if row.what.endswith(": time")]
    shapes = list(dict.fromkeys(row.what.removesuffix(": time") for row in times))
    ways = {"meshkit": [figure_text(row.ours) for row in times if row.peer == "-"]}
    for row in times:
        if row.theirs is not None:
            ways.setdefault(row.peer, []).append(figure_text(row.theirs))
    return markdown_table([["", *shapes], *([way, *figures] for way, figures in ways.items())])


def link_rows(what: str, ranks: int, figures: Mapping[str, Any]) -> list[Row]:
    """Return the rows of one shape, from seconds and bytes over their bounds."""
    times = figures["times"]
    rows = [single(f"{what}: time", ranks, "of the bound", times["ours"], NEAR)]
    for name, peer in PEERS.items():
        pair = times["ours"], times[name]
        rows.append(compare(f"{what}: time", ranks, peer, "of the bound", pair))
    received, sent = figures["bytes"]
    rows.append(single(f"{what}: bytes into a host", ranks, "of the bound", received, EXACT))
    return [*rows, single(f"{what}: bytes out of a host", ranks, "of the bound", sent, EXACT)]


def measure(hosts: int, mib: int, repeats: int) -> dict[str, Any]:
    """Run a job on hosts of two ranks; return seconds and bytes over their bounds.

    Raises:
        NoHostsError: if this machine forbids network namespaces.
        RuntimeError: if the job fails.
    """
    count = TRAINER // PER_HOST + hosts
    with (
        tempfile.TemporaryDirectory() as folder,
        hosts_on_a_switch(Path(folder), count, RATE) as machines,
    ):
        ranks = count * PER_HOST
        args, master = ("benchmarks.transfer", mib, repeats), (machines[0].address, PORT)
        places = [(rank, ranks, rank % PER_HOST, PER_HOST) for rank in range(ranks)]
        processes = [start_rank(machines[p[0] // PER_HOST], args, p, master) for p in places]
        return read_figures(processes, processes[0], TIMEOUT)


def run_rank(mib: int, repeats: int) -> None:
    """Time all ways on one rank; rank 0 prints the figures. Collective."""
    world = meshkit.init(timeout=TIMEOUT)
    torch.set_num_threads(1)
    hosts = (world.world_size - TRAINER) // PER_HOST
    targets = range(TRAINER, world.world_size)
    trainer = meshkit.build_mesh(ranks=range(TRAINER), dp=2, tp=2)
    sampler = meshkit.build_mesh(ranks=targets, dp=hosts, tp=2)
    wide = meshkit.build_mesh(ranks=[0, *targets], dp=-1)
    rows = mib * MIB // (4 * COLUMNS * TENSORS)
    wholes = {
        f"w{n}": torch.arange(rows * COLUMNS, dtype=torch.float32).view(rows, COLUMNS) + n
        for n in range(TENSORS)
    }
    state = trainer.local_state(wholes, {"*": "o/dp/tp i"}) if trainer.inside else None
    wanted = sampler.local_state(wholes, {"*": "o/tp i"}) if sampler.inside else {}
    out = {name: torch.zeros_like(part) for name, part in wanted.items()} or None
    like = state or out
    sync = trainer.transfer({"*": PATTERN}, to=sampler, like=like, chunk=CHUNK)
    whole = trainer.transfer({"*": PATTERN}, to=sampler, like=like)
    ways: dict[str, Callable[[], object]] = {
        "ours": lambda: sync(state, out=out),
        "unchunked": lambda: whole(state, out=out),
        "broadcast": lambda: gather_and_broadcast(trainer, sampler, wide, state, out),
        "pull": lambda: pull(trainer, sampler, state, out),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    byte_rows: list[tuple[int, int]] = []
    size = mib * MIB
    bound = max(size / BYTES_PER_SECOND, size / (2 * BYTES_PER_SECOND))
    for repeat in range(repeats + 1):
        names = [*ways][repeat % len(ways) :] + [*ways][: repeat % len(ways)]
        for name in names:
            for tensor in (out or {}).values():
                tensor.zero_()
            before = read_payload(os.environ["GLOO_SOCKET_IFNAME"])
            seconds = time_way(ways[name])
            after = read_payload(os.environ["GLOO_SOCKET_IFNAME"])
            if any(not torch.equal(part, (out or {})[key]) for key, part in wanted.items()):
                raise RuntimeError(f"{name}: the weights are wrong")
            if repeat > 0:  # the first repetition opens connections
                times[name].append(seconds / bound)
                if name == "ours":
                    byte_rows.append((after[0] - before[0], after[1] - before[1]))
    gathered: list[Any] = [None] * world.world_size
    dist.all_gather_object(gathered, byte_rows)
    if trainer.rank == 0:
        received = [max(n[i][0] for n in gathered[TRAINER:]) / size for i in range(repeats)]
        sent = [max(n[i][1] for n in gathered[:TRAINER]) / (size / 2) for i in range(repeats)]
        print(json.dumps({"times": times, "bytes": [received, sent]}))
    meshkit.shutdown()


def time_way(way: Callable[[], object]) -> float:
    """Return the seconds of one way on the slowest rank."""
    dist.barrier()
    began = time.perf_counter()
    way()
    seconds = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds)


def gather_and_broadcast(
    trainer: meshkit.Mesh,
    sampler: meshkit.Mesh,
    wide: meshkit.Mesh,
    state: State | None,
    out: State | None,
) -> None:
    """Gather the state on rank 0, broadcast it whole, and keep a part of it."""
    flat = None
    if state is not None:
        own = torch.cat([part.flatten() for part in state.values()])
        parts = [torch.empty_like(own) for _ in range(TRAINER)] if trainer.rank == 0 else None
        dist.gather(own, parts, dst=0, group=trainer.group())
        if parts is not None:
            rows = [part.view(TENSORS, -1, COLUMNS) for part in parts]
            flat = torch.cat(rows, dim=1)
    if out is not None:
        rows_of_part = next(iter(out.values())).shape[0]
        flat = torch.empty(TENSORS, 2 * rows_of_part, COLUMNS)
    if flat is None:
        return
    dist.broadcast(flat, 0, group=wide.group())
    if out is not None:
        for number, part in enumerate(out.values()):
            part.copy_(flat[number].chunk(2)[sampler.coordinate["tp"]])


def pull(
    trainer: meshkit.Mesh, sampler: meshkit.Mesh, state: State | None, out: State | None
) -> None:
    """Receive on each rank of the sampler its part from the two ranks that hold it."""
    ops, buffers = [], []
    if state is not None:
        own = torch.cat([part.flatten() for part in state.values()])
        half = trainer.coordinate["dp"]
        for replica in range(sampler.layout.sizes["dp"]):
            ops.append(dist.P2POp(dist.isend, own, sampler.layout.rank(dp=replica, tp=half)))
    elif out is not None:
        half = sampler.coordinate["tp"]
        for quarter in range(2):
            size = sum(part.numel() for part in out.values()) // 2
            buffers.append(torch.empty(size))
            sender = trainer.layout.rank(dp=half, tp=quarter)
            ops.append(dist.P2POp(dist.irecv, buffers[-1], sender))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    if out is not None:
        quarters = [buffer.view(TENSORS, -1, COLUMNS) for buffer in buffers]
        for number, part in enumerate(out.values()):
            part.copy_(torch.cat([quarter[number] for quarter in quarters]))


if __name__ == "__main__":
    run_rank(int(sys.argv[1]), int(sys.argv[2]))
