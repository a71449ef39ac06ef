"""The mesh under the real torchrun, on two nodes, and after a restart."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.launchers.checks import check_records, clean_environ, program_command, run_job
from tests.launchers.two_hosts import two_hosts

SIZES = {"dp": 2, "sp": 2, "tp": 1}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


@pytest.mark.slow
def test_two_nodes(tmp_path: Path) -> None:
    """Each node is a network namespace with its own address and host name."""
    folder = tmp_path / "out"
    with two_hosts(tmp_path, "node1", "node2") as hosts:
        command = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
        command += ["--rdzv-endpoint", f"{hosts[0].address}:29400", "--rdzv-id", "two"]
        second = subprocess.Popen(
            hosts[1].command(*command, *program_command(folder, SIZES)), env=clean_environ()
        )
        try:
            records = run_job(hosts[0].command(*command), folder, SIZES)
            assert second.wait(60) == 0
        finally:
            second.kill()
            second.wait()
    check_records(records, SIZES, "torchrun")
    assert [record["node"] for record in records] == [[rank // 2, 2] for rank in range(4)]
    assert [record["host"] for record in records] == [f"node{rank // 2 + 1}" for rank in range(4)]


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


@pytest.mark.slow
def test_a_restart_ignores_the_keys_of_the_first_attempt(tmp_path: Path) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "out"
    script.write_text(RESTARTS)
    folder.mkdir()
    command = [*TORCHRUN, "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.5", str(script), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["0.1.2", "1.1.2"]
