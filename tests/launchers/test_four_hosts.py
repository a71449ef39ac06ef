"""Four network namespaces as hosts: placement, guard, recover, and a host without its link."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.launchers.checks import clean_environ
from tests.launchers.four_hosts import Network, four_hosts
from tests.launchers.test_cut import wait_for
from tests.promises import BUSY

JOB = str(Path(__file__).with_name("four_hosts_job.py"))


@contextmanager
def running(network: Network, commands: Sequence[Sequence[str]]) -> Iterator[None]:
    """Run a command on each host, as a machine of its own, and end them by their ids."""
    processes = []
    try:
        for host, command in zip(network.hosts, commands, strict=True):
            more = {"MESHKIT_MACHINE": host.name, "GLOO_SOCKET_IFNAME": host.namespace}
            environ = clean_environ(**more)
            argv = host.command(*command)
            processes.append(subprocess.Popen(argv, env=environ, start_new_session=True))
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def play_links(network: Network, folder: Path, ranks: int) -> dict[int, dict[str, Any]]:
    """Cut the link of the last host for 5 s, then for ever; return the records of all ranks."""
    wait_for([folder / f"{rank}.short" for rank in range(ranks)], 150)
    network.set_link(3, "down")
    (folder / "short").touch()
    time.sleep(5)
    network.set_link(3, "up")
    wait_for([folder / f"{rank}.long" for rank in range(ranks)], 60)
    network.set_link(3, "down")
    (folder / "long").touch()
    wait_for([folder / f"{rank}.json" for rank in range(ranks)], 90)
    (folder / "end").touch()
    return {rank: json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)}


def check(records: dict[int, dict[str, Any]], lost: list[int], tp: int) -> None:
    """Check that a short loss of the link only delays, and that a long one is a loss."""
    size = len(records)
    for rank, record in records.items():
        assert (record["first"], record["short"]) == (size, size), (rank, record)
        assert 3 < record["waited"] < 30, (rank, record)
        if rank in lost:
            assert "alone" in record, (rank, record)
            continue
        assert record["named"] == lost, record["text"]
        assert record["reported"] < 4 + 4 + BUSY, (rank, record)
        assert record["lost"] == lost, (rank, record)
        assert (record["sizes"]["dp"], record["after"]) == (3, 3 * tp), (rank, record)


@pytest.mark.slow
def test_ranks_by_hand_are_placed_and_survive_a_host(tmp_path: Path) -> None:
    """Ranks 0 to 3 and 4 to 7 are dealt over the hosts, so only ``place=True`` keeps tp inside."""
    with four_hosts(tmp_path) as network:
        url = f"tcp://{network.hosts[0].address}:29777"
        commands = [
            [sys.executable, JOB, str(tmp_path), "by hand", str(number), url] for number in range(4)
        ]
        with running(network, commands):
            records = play_links(network, tmp_path, 8)
    assert [sorted(record["tp"]) for record in records.values()] == [
        [rank % 4, rank % 4 + 4] for rank in range(8)
    ]
    check(records, [3, 7], 2)
