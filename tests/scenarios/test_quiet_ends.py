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


def run_ranks(program: str, *argv: str) -> list[tuple[int, str, str]]:
    """Return the exit code, the output and the errors of each rank of a program."""
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}

    def run_rank(rank: int) -> tuple[int, str, str]:
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS)}
        environ = {**os.environ, **place, **own, "WORLD_SIZE": str(RANKS)}
        done = run_python(program, *argv, environ=environ)
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(RANKS) as ranks:
        return [*ranks.map(run_rank, range(RANKS))]


@pytest.mark.parametrize(
    ("order", "ways"),
    [pytest.param(*case, marks=[] if case in OFTEN else [pytest.mark.slow]) for case in CASES],
)
def test_ranks_that_end_in_any_order_print_nothing(order: str, ways: str) -> None:
    """Rank 0 hosts the store, which ends with it.

    A look that is on its way as the host ends still prints a trace, so one run of two is quiet.
    """
    for _ in range(2):
        ended = run_ranks(PROGRAM, order, ways)
        if ended == [(0, "", "")] * RANKS:
            break
    assert ended == [(0, "", "")] * RANKS


@pytest.mark.parametrize(
    "order",
    [pytest.param(FIRST, marks=pytest.mark.slow), pytest.param(LAST, marks=pytest.mark.nightly)],
)
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


# rank 0 hosts the store, and ends while the others wait
DESERTED = """
import os, sys, time
import torch.distributed as dist
import meshkit

meshkit.init(arrival_timeout=60)
mesh = meshkit.build_mesh(dp=-1)
wait = {
    "agree": lambda: mesh.agree("step", 1),
    "barrier": mesh.barrier,
    "guard": lambda: mesh.agree("step", 1),
    "build": lambda: meshkit.build_mesh(tp=3),
    "group": dist.new_group,
}[sys.argv[1]]
if mesh.rank == 0:
    time.sleep(1)
    sys.exit()
try:
    if sys.argv[1] == "guard":
        with mesh.guard(timeout=60):
            wait()
    wait()
except (meshkit.MeshkitError, RuntimeError) as error:
    print(type(error).__name__, flush=True)
os._exit(0)  # torch's groups may wait for rank 0
"""


@pytest.mark.parametrize("act", ["agree", "barrier", "guard", "build", "group"])
def test_a_rank_that_waits_as_the_host_of_the_store_ends_prints_no_trace(act: str) -> None:
    """A look of 50 us that is on its way as the host ends prints one, so try twice."""
    names = {"barrier": "CollectiveError", "group": "DistNetworkError"}
    quiet = [(0, f"{names.get(act, 'RankTimeoutError')}\n", "")] * (RANKS - 1)
    assert any(run_ranks(DESERTED, act)[1:] == quiet for _ in range(2))
