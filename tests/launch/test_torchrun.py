"""The mesh under the real torchrun, on one node."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
import torch, torch.distributed as dist
import meshkit

with meshkit.build_mesh(dp=2, sp=2) as mesh:
    sums = {}
    for axes in (("dp",), ("sp",), ("dp", "sp")):
        seen = torch.zeros(4, dtype=torch.int64)
        seen[mesh.rank] = 1
        dist.all_reduce(seen, group=mesh.group(*axes))
        sums[" ".join(axes)] = seen.tolist()
    world = meshkit.init()
    told = [world.launcher, world.rank, world.local_world_size, world.num_nodes, mesh.coordinate]
    with open(f"{sys.argv[1]}/{world.rank}.json", "w") as file:
        json.dump([told, sums], file)
meshkit.shutdown()
"""


def test_every_group_by_an_all_reduce(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    done = subprocess.run(
        [*command, str(script), str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for rank in range(4):
        dp, sp = divmod(rank, 2)
        told, sums = json.loads((tmp_path / f"{rank}.json").read_text())
        assert told == ["torchrun", rank, 4, 1, {"dp": dp, "sp": sp}]
        assert sums["dp"] == [int(other % 2 == sp) for other in range(4)]
        assert sums["sp"] == [int(other // 2 == dp) for other in range(4)]
        assert sums["dp sp"] == [1] * 4


RESTARTS = """
import os, sys
import torch, torch.distributed as dist
import meshkit

attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
if attempt == "0" and os.environ["RANK"] == "1":
    sys.exit(3)  # before init: the others have checked in, or will
world = meshkit.init(arrival_timeout=60)
total = torch.ones(1)
dist.all_reduce(total)
open(f"{sys.argv[1]}/{world.rank}.{attempt}.{int(total)}", "w").close()
meshkit.shutdown()
"""


def test_a_restart_does_not_meet_what_the_first_attempt_left(tmp_path: Path) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "out"
    script.write_text(RESTARTS)
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.5", str(script), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["0.1.3", "1.1.3", "2.1.3"]
