"""Placement: a tp all-reduce with ``place=True``, beside the same ranks in the launcher's order.

As root on Linux, the benchmark makes two hosts: network namespaces joined by a link of 200 Mbit/s.
It assigns ranks to them in turn, as Slurm's cyclic distribution does. One job builds ``dp=2 tp=4``
without and with ``place=True``, and times a 4 MiB all-reduce over all tp groups at once.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import meshkit

from .harness import Goal, Row, alternate, compare
from .hosts import NoHostsError, read_figures, start_rank, two_hosts

RANKS, REPEATS = 8, 5
RATE, ITEMS = "200mbit", 2**20  # of float32: 4 MiB
TIMEOUT = 300.0  # seconds for the whole job
PORT = 29778
FASTER = Goal("ratio", "<=", 0.2)


def run(quick: bool) -> list[Row]:
    """Return one row: tp within hosts beside tp across hosts."""
    what, peer = f"all_reduce over tp=4, hosts joined by {RATE}", "ranks as dealt"
    try:
        times = measure(1 if quick else REPEATS)
    except NoHostsError as error:
        return [Row(what, RANKS, peer, "s", missing=str(error))]
    return [compare(what, RANKS, peer, "s", (times["placed"], times["cyclic"]), FASTER)]


def measure(repeats: int, ranks: int = RANKS) -> dict[str, Any]:
    """Run a job on two hosts; return the times and the tp groups of rank 0, in both orders.

    Raises:
        NoHostsError: if this machine forbids network namespaces.
        RuntimeError: if the job fails.
    """
    with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder), "a", "b", rate=RATE) as h:
        args, master = ("benchmarks.placement", repeats), (h[0].address, PORT)
        processes = [
            start_rank(h[rank % 2], args, (rank, ranks, rank // 2, ranks // 2), master)
            for rank in range(ranks)
        ]
        return read_figures(processes, processes[0], TIMEOUT)


def run_rank(repeats: int) -> None:
    """Time both meshes on one rank of the job; rank 0 prints the times. Collective."""
    meshkit.init(timeout=TIMEOUT)
    cyclic = meshkit.build_mesh(dp=2, tp=-1, crossing={"tp": "allow"})
    placed = meshkit.build_mesh(dp=2, tp=-1, place=True, crossing={"tp": "error"})
    # the first repetition opens connections and fills buffers
    times = alternate(lambda: time_all_reduce(cyclic), lambda: time_all_reduce(placed), repeats)
    if cyclic.rank == 0:
        groups = {
            "tp_cyclic": cyclic.peers("tp").tolist(),
            "tp_placed": placed.peers("tp").tolist(),
        }
        print(json.dumps({"cyclic": times[0], "placed": times[1], **groups}))
    meshkit.shutdown()


def time_all_reduce(mesh: meshkit.Mesh) -> float:
    """Return the seconds of one all-reduce over every tp group at once, on the slowest rank."""
    group, data = mesh.group("tp"), torch.ones(ITEMS)
    mesh.barrier()
    began = time.perf_counter()
    dist.all_reduce(data, group=group)
    seconds = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    if not bool((data == mesh.size("tp")).all()):
        raise RuntimeError("the sum over tp is wrong")
    return float(seconds)


if __name__ == "__main__":
    run_rank(int(sys.argv[1]))
