"""A good run prints nothing on stderr, whatever rank ends first, and however it ends."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import meshkit
from meshkit.launch.world import free_port
from tests.preloaded_python import TORCHRUN, run_python

RANKS = 3

# argv: when each rank ends, in seconds, and how
PROGRAM = """
import sys, time
import torch
import torch.distributed as dist
import meshkit

meshkit.init()
mesh = meshkit.build_mesh(dp=-1)
wait, ways = float(sys.argv[1].split(",")[dist.get_rank()]), sys.argv[2].split()
if "barrier" in ways:
    mesh.barrier()
with mesh.guard(timeout=60):
    dist.all_reduce(torch.ones(1))
    if "guarded" in ways:
        time.sleep(wait)
if "guarded" not in ways:
    time.sleep(wait)
if "close" in ways:
    mesh.close()
if "shutdown" in ways:
    meshkit.shutdown()
if "destroy" in ways:
    dist.destroy_process_group()
"""

FIRST, LAST, TOGETHER = "0,0.7,1.4", "1.4,0,0.7", "0,0,0"
WAYS = ["close shutdown", "close", "shutdown", "", "destroy", "guarded", "guarded close"]
CASES = [(order, way) for way in WAYS for order in (FIRST, LAST, TOGETHER)]
OFTEN = [(FIRST, "close shutdown"), (FIRST, "guarded close"), (FIRST, ""), (LAST, "close shutdown")]


@pytest.mark.parametrize(
    ("order", "ways"),
    [pytest.param(*case, marks=[] if case in OFTEN else [pytest.mark.slow]) for case in CASES],
)
def test_ranks_that_end_in_any_order_print_nothing(order: str, ways: str) -> None:
    """Rank 0 hosts the store, which ends with it."""
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}

    def run_rank(rank: int) -> tuple[int, str, str]:
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS)}
        environ = {**os.environ, **place, **own, "WORLD_SIZE": str(RANKS)}
        done = run_python(PROGRAM, order, ways, environ=environ)
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(RANKS) as ranks:
        assert [*ranks.map(run_rank, range(RANKS))] == [(0, "", "")] * RANKS


@pytest.mark.slow
@pytest.mark.parametrize("order", [FIRST, LAST])
def test_ranks_of_torchrun_that_end_in_any_order_print_nothing(order: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ["--standalone", "--nproc-per-node", str(RANKS), str(program)]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}  # else torchrun prints that it sets it
    done = run_python(TORCHRUN, *options, order, "close shutdown", environ=environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def end_at(order: str, address: str) -> None:
    """End a spawned rank; rank 0 hosts a store of TCP."""
    meshkit.init(init_method=address)
    with meshkit.build_mesh(dp=-1) as mesh:
        mesh.barrier()
        time.sleep(float(order.split(",")[mesh.rank]))


@pytest.mark.parametrize("order", [FIRST, LAST])
def test_spawned_ranks_that_end_in_any_order_print_nothing(
    order: str, capfd: pytest.CaptureFixture[str]
) -> None:
    meshkit.spawn(end_at, RANKS, (order, f"tcp://127.0.0.1:{free_port()}"), timeout=60)
    assert capfd.readouterr() == ("", "")
