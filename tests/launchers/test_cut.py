"""The network between two hosts is cut, or a worker is stopped: the named ranks, in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.launchers.checks import clean_environ
from tests.launchers.two_hosts import Host, two_hosts
from tests.promises import BUSY

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]

RANK = """
import json, os, sys, time
import torch, torch.distributed as dist
import meshkit

def ready(folder, rank):
    open(f"{folder}/{rank}.ready", "w").write(str(os.getpid()))
    while not os.path.exists(f"{folder}/go"):
        time.sleep(0.02)

def run_job(folder, *phases):
    world = meshkit.init(arrival_timeout=60)
    mesh = meshkit.build_mesh(dp=-1, sp=1, arrival_timeout=3)
    ready(f"{folder}/{phases[0]}", world.rank)
    for phase in phases:
        began, record = time.monotonic(), {"kind": "through"}
        try:
            if phase == "agree":
                mesh.agree("step", 1)
            elif phase == "build":
                meshkit.build_mesh(dp=-1, timeout=600, arrival_timeout=3)
            else:
                with mesh.guard(timeout=3):
                    dist.all_reduce(torch.ones(1), group=mesh.group())
        except meshkit.RankTimeoutError as error:
            kind, missing = type(error).__name__, error.missing_ranks
            record = {"kind": kind, "text": str(error), "missing": missing}
        record["seconds"] = time.monotonic() - began
        json.dump(record, open(f"{folder}/{phase}/{world.rank}.part", "w"))
        os.rename(f"{folder}/{phase}/{world.rank}.part", f"{folder}/{phase}/{world.rank}.json")
    os._exit(0)
"""
UNDER_TORCHRUN = "run_job(*sys.argv[1:])\n"
# Two ranks of each job on this host, forked: torch is imported once for all of them.
ON_A_HOST = """
folder, host, *jobs = sys.argv[1:]
meshkit.build_mesh  # imported here, not by every rank
for number, phase in enumerate(jobs):
    os.environ["MASTER_PORT"] = str(29777 + number)
    for local in range(2):
        os.environ.update(LOCAL_RANK=str(local), RANK=str(2 * int(host) + local))
        if os.fork() == 0:
            run_job(folder, phase)
for _ in range(2 * len(jobs)):
    os.wait()
"""


def script(folder: Path, main: str) -> str:
    path = folder / "job.py"
    path.write_text(RANK + main)
    return str(path)


def wait_for(paths: list[Path], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, [path.name for path in paths if not path.exists()]
        time.sleep(0.02)


def read_records(folder: Path, ranks: list[int], seconds: float) -> dict[int, dict[str, Any]]:
    wait_for([folder / f"{rank}.json" for rank in ranks], seconds)
    return {rank: json.loads((folder / f"{rank}.json").read_text()) for rank in ranks}


def cut(host: Host) -> None:
    """Cut the only network link of a host."""
    subprocess.run(["ip", "-n", host.namespace, "link", "set", host.namespace, "down"], check=True)


CUT = {  # the call in progress, the error, and its seconds
    "agree": ("RankTimeoutError", 3 + 3),
    "build": ("RankTimeoutError", 3 + 3),
    "collective": ("CollectiveError", 3 + 4),
}
Records = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def cut_network(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Records]:
    """Return the records of the ranks of three jobs on two hosts, which go on after the cut."""
    folder = tmp_path_factory.mktemp("cut")
    for phase in CUT:
        (folder / phase).mkdir()
    with two_hosts(folder, "a", "b") as hosts:
        processes = []
        try:
            for number, host in enumerate(hosts):
                more = {"MASTER_ADDR": hosts[0].address, "GLOO_SOCKET_IFNAME": host.namespace}
                argv = [script(folder, ON_A_HOST), str(folder), str(number), *CUT]
                command = host.command(sys.executable, *argv)
                environ = clean_environ(WORLD_SIZE="4", **more)
                processes.append(subprocess.Popen(command, env=environ, start_new_session=True))
            wait_for([folder / phase / f"{rank}.ready" for phase in CUT for rank in range(4)], 90)
            cut(hosts[1])
            for phase in CUT:
                (folder / phase / "go").touch()
            return {phase: read_records(folder / phase, [0, 1, 2, 3], 40) for phase in CUT}
        finally:
            for process in processes:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.mark.parametrize("phase", CUT)
def test_ranks_behind_a_cut_network_are_named(phase: str, cut_network: dict[str, Records]) -> None:
    """Ranks 0 and 1 are on the host of the store; 2 and 3 are cut off from it."""
    (kind, within), records = CUT[phase], cut_network[phase]
    for rank, record in records.items():
        assert record["kind"] == kind, (rank, record)
        assert record["seconds"] < within + BUSY, (rank, record)
    for rank in (0, 1):  # these reach the store and name the others
        assert records[rank]["missing"] == [2, 3], records[rank]
        if phase != "collective":
            assert "Last seen: 2 on host b, pid " in records[rank]["text"]
    for rank in (2, 3):  # these name the host of the store
        assert records[rank]["missing"] == [0], records[rank]


STOPPED = {"agree": ("RankTimeoutError", 3 + 2), "collective": ("CollectiveError", 3 + 4)}


def test_a_stopped_worker_of_torchrun(tmp_path: Path) -> None:
    """The agent, which hosts the store, does not notice: a stopped worker has not failed."""
    for phase in STOPPED:
        (tmp_path / phase).mkdir()
    command = [*TORCHRUN, "--nproc-per-node", "2"]
    command += [script(tmp_path, UNDER_TORCHRUN), str(tmp_path), *STOPPED]
    agent = subprocess.Popen(command, env=clean_environ(), stderr=subprocess.DEVNULL)
    try:
        first = tmp_path / "agree"
        wait_for([first / f"{rank}.ready" for rank in range(2)], 300)
        stopped = int((first / "1.ready").read_text())
        os.kill(stopped, signal.SIGSTOP)
        while Path(f"/proc/{stopped}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.02)
        (first / "go").touch()
        records = {phase: read_records(tmp_path / phase, [0], 40)[0] for phase in STOPPED}
        os.kill(stopped, signal.SIGKILL)
        agent.wait(60)
    finally:
        agent.kill()
        agent.wait()
    for phase, (kind, within) in STOPPED.items():
        record = records[phase]
        assert (record["kind"], record["missing"]) == (kind, [1])
        assert record["seconds"] < within + BUSY
        assert f"pid {stopped}" in record["text"]
        assert phase == "agree" or "it is stopped" in record["text"]
