"""The job of the launcher tests: python program.py FOLDER dp=4 sp=2 tp=1.

Every rank runs an all-reduce of one-hot vectors over every group of the mesh, and writes a record
to FOLDER/<rank>.json.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from itertools import combinations
from pathlib import Path

import torch
import torch.distributed as dist

import meshkit
from meshkit.launch.world import EXPORTED


def main(folder: str, *sizes: str) -> None:
    """Build the mesh and reduce over each of its groups."""
    before = {*os.environ}
    axes = {name: int(size) for name, _, size in (text.partition("=") for text in sizes)}
    world = meshkit.init(arrival_timeout=60, seed="shared")
    with meshkit.build_mesh(axes) as mesh:
        keys = [key for n in (1, 2) for key in combinations(axes, n)]
        built = [key for key in keys if set(key) <= {"dp", "sp"} or len(key) == 1]
        sums = {" ".join(key): ranks_reached(mesh.group(*key), mesh.rank) for key in built}
        sums[""] = ranks_reached(mesh.group(), mesh.rank)
        record = {
            "launcher": world.launcher,
            "world": [world.rank, world.world_size, world.local_rank, world.local_world_size],
            "node": [world.node_rank, world.num_nodes],
            "address": [world.master_addr, world.master_port, world.sources.get("master_addr")],
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "backend": world.backend,
            "device": str(world.device),
            "module": os.environ.get("HLS_MODULE_ID"),
            "bridge": getattr(getattr(torch, "hpu", None), "identity", None),
            "environ": {name: os.environ.get(name) for name in EXPORTED.values()},
            "coordinate": mesh.coordinate,
            "drawn": torch.initial_seed(),
            "sums": sums,
            "peers": {key: mesh.peers(*key.split()).tolist() for key in sums},
        }
    Path(folder, f"{world.rank}.json").write_text(json.dumps(record))
    meshkit.shutdown()
    left = [name for name in EXPORTED.values() if name in os.environ and name not in before]
    assert not left, left


def ranks_reached(group: dist.ProcessGroup, rank: int) -> list[int]:
    """Return the ranks that an all-reduce over a group reaches."""
    seen = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    seen[rank] = 1
    dist.all_reduce(seen, group=group)
    return [other for other, times in enumerate(seen.tolist()) for _ in range(times)]


if __name__ == "__main__":
    main(*sys.argv[1:])
