"""Four network namespaces as hosts: placement, guard, recover, and a host without its link.

Three jobs share the hosts and the cut: ranks started by hand, whose store has a first address that
does not answer, ranks of torchrun and ranks of srun. No job is told the interface of gloo.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.launchers.checks import clean_environ
from tests.launchers.four_hosts import Network, four_hosts
from tests.launchers.slurm import cluster
from tests.launchers.test_cut import TORCHRUN, wait_for
from tests.promises import BUSY

JOB = str(Path(__file__).with_name("four_hosts_job.py"))
RANKS = {"hand-written": 8, "torchrun": 4, "slurm": 8}  # launcher to ranks
AGENT = ["--nnodes", "4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node1:29400"]
SRUN = ["srun", "-N4", "--ntasks-per-node=2", "--distribution=cyclic", "sh", "-c"]
ON_NODE = 'MESHKIT_MACHINE=$SLURMD_NODENAME exec "$@"'  # not that of the node of srun

Records = dict[int, dict[str, Any]]


@contextmanager
def running(network: Network, commands: Sequence[Sequence[str]]) -> Iterator[None]:
    """Run a command on each host, as a machine of its own, and end them by their ids."""
    processes = []
    try:
        for host, command in zip(network.hosts, commands, strict=False):
            argv, environ = host.command(*command), clean_environ()
            processes.append(subprocess.Popen(argv, env=environ, start_new_session=True))
        yield
        for process in processes:  # the ranks have ended
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def play_links(network: Network, folders: dict[Path, int]) -> dict[Path, Records]:
    """Cut the link of the last host for 5 s, then for ever; return the records of all jobs."""

    def files(kind: str) -> list[Path]:
        return [path / f"{n}.{kind}" for path, ranks in folders.items() for n in range(ranks)]

    def go(name: str) -> None:
        for path in folders:
            (path / name).touch()

    wait_for(files("short"), 150)
    network.set_link(3, "down")
    go("short")
    time.sleep(5)
    network.set_link(3, "up")
    wait_for(files("long"), 60)
    network.set_link(3, "down")
    go("long")
    wait_for(files("json"), 90)
    network.set_link(3, "up")  # srun waits for its tasks
    go("end")
    return {
        path: {n: json.loads((path / f"{n}.json").read_text()) for n in range(ranks)}
        for path, ranks in folders.items()
    }


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Records | str]:
    """Return the records of each launcher's job, or the reason why it could not start."""
    base, stack = tmp_path_factory.mktemp("four"), ExitStack()
    folders = {launcher: base / launcher for launcher in RANKS}
    reasons: dict[str, str] = {}
    with stack:
        network = stack.enter_context(four_hosts(base))
        python = [sys.executable, JOB]
        hand = [
            [*python, str(folders["hand-written"]), str(n), "tcp://store:29777"] for n in range(4)
        ]
        agents = [[*TORCHRUN, *AGENT, JOB, str(folders["torchrun"])]] * 4
        commands = {"hand-written": hand, "torchrun": agents}
        try:
            slurm = stack.enter_context(cluster(base, network.hosts))
            srun = ["env", f"SLURM_CONF={slurm.environ['SLURM_CONF']}", *SRUN, ON_NODE, "sh"]
            commands["slurm"] = [[*srun, *python, str(folders["slurm"])]]
        except pytest.skip.Exception as skipped:
            reasons["slurm"] = str(skipped)
        for launcher, lines in commands.items():
            folders[launcher].mkdir()
            stack.enter_context(running(network, lines))
        played = play_links(network, {folders[name]: RANKS[name] for name in commands})
    return {name: reasons.get(name) or played[folders[name]] for name in RANKS}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", RANKS)
def test_ranks_are_placed_and_survive_a_host(
    launcher: str, records: dict[str, Records | str]
) -> None:
    """A short loss of the link only delays, and a long one is a loss.

    Ranks are dealt over the hosts in turn, so only ``place=True`` keeps tp inside.
    """
    job, size = records[launcher], RANKS[launcher]
    if isinstance(job, str):
        pytest.skip(job)
    lost = [rank for rank in range(size) if rank % 4 == 3]
    for rank, record in job.items():
        assert record["launcher"] == launcher
        assert record["interface"] == f"mk{os.getpid()}{rank % 4 + 1}"
        assert sorted(record["tp"]) == [r for r in range(size) if r % 4 == rank % 4]
        assert (record["first"], record["short"]) == (size, size), (rank, record)
        assert 3 < record["waited"] < 30, (rank, record)
        if rank in lost:
            assert "alone" in record, (rank, record)
            continue
        assert record["named"] == lost, record["text"]
        assert record["reported"] < 4 + 4 + BUSY, (rank, record)
        assert record["lost"] == lost, (rank, record)
        assert (record["sizes"]["dp"], record["after"]) == (3, 3 * size // 4), (rank, record)
