"""The job on four hosts: build, place, lose a link for 5 s, lose it for ever, recover."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import meshkit

WAIT = {"arrival_timeout": 15}  # how long a rank that is cut off looks for the others


def meet(folder: str, name: str, rank: int) -> None:
    """Wait until the test lets the ranks go on."""
    Path(folder, f"{rank}.{name}").touch()
    while not Path(folder, name).exists():
        time.sleep(0.02)


def total(mesh: meshkit.Mesh) -> float:
    """Return how many ranks add up."""
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=mesh.group())
    return float(tensor)


def run(folder: str, place: bool, tp: int, **identity: Any) -> None:
    """Run the job on one rank, and write its record."""
    world = meshkit.init(arrival_timeout=90, timeout=60, **identity)
    rank = world.rank
    mesh = meshkit.build_mesh(dp=4, tp=tp, place=place, crossing={"tp": "error"}, **WAIT)
    record: dict[str, Any] = {"tp": mesh.peers("tp").tolist(), "first": total(mesh)}
    record |= {"launcher": world.launcher, "interface": os.environ["GLOO_SOCKET_IFNAME"]}
    meet(folder, "short", rank)
    began = time.monotonic()
    with mesh.guard(timeout=30):
        record["short"] = total(mesh)
    record["waited"] = time.monotonic() - began
    meet(folder, "long", rank)
    began = time.monotonic()
    try:
        with mesh.guard(timeout=4):
            total(mesh)
    except meshkit.CollectiveError as error:
        record["reported"] = time.monotonic() - began
        # a rank of another host that has left a guard before is behind, and maybe not lost
        record["named"] = sorted({*error.missing_ranks, *error.behind})
        record["text"] = str(error)
        try:
            mesh = mesh.recover(arrival_timeout=8)
            record |= {"lost": [*mesh.recovery.lost_ranks], "sizes": dict(mesh.layout.sizes)}
            record["after"] = total(mesh)
        except meshkit.MeshkitError as alone:
            record["alone"] = type(alone).__name__
    part = Path(folder, f"{rank}.part")
    part.write_text(json.dumps(record))
    part.rename(part.with_suffix(".json"))
    meet(folder, "end", rank)  # rank 0 hosts the store
    os._exit(0)


def run_two_by_hand(folder: str, host: int, url: str) -> None:
    """Fork two ranks of a host, which are dealt round-robin over the hosts, and wait for them."""
    meshkit.build_mesh  # noqa: B018  # imported here, not by every rank
    for local in range(2):
        if os.fork() == 0:
            identity = {"rank": host + 4 * local, "world_size": 8, "local_rank": local}
            run(folder, True, 2, init_method=url, **identity)
    for _ in range(2):
        os.wait()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run_two_by_hand(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:  # a launcher has dealt the ranks
        tp = int(os.environ.get("WORLD_SIZE") or os.environ["SLURM_NTASKS"]) // 4
        run(sys.argv[1], tp > 1, tp)
