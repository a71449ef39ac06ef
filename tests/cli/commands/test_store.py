"""``meshkit store``: ranks join at it, lose rank 0, and go on."""

from __future__ import annotations

import ast
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.cli.main import main
from meshkit.testing.faults import Strike, play

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Host a store in a process of its own, which ends at SIGTERM with exit code 0."""
    command = [sys.executable, "-m", "meshkit", "store", "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["address"]
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=30) == 0
        finally:
            server.kill()


def lose_rank_0(strike: Strike, method: str) -> Any:
    """Join at a store, lose rank 0, and go on."""
    meshkit.init(init_method=method, arrival_timeout=30)
    mesh = meshkit.build_mesh(dp=-1)
    try:
        with mesh.guard(timeout=3):
            if mesh.rank == 0:
                strike.kill()
            dist.all_reduce(torch.ones(1), group=mesh.group())
    except meshkit.CollectiveError:
        mesh = mesh.recover()
    total = torch.ones(1)
    dist.all_reduce(total, group=mesh.group())
    return mesh.rank, float(total)


@pytest.mark.parametrize("job", ["first", "second"])
def test_two_jobs_survive_rank_0_at_one_store(address: str, job: str) -> None:
    port = address.rpartition(":")[2]
    played = play(lose_rank_0, 3, (f"store://127.0.0.1:{port}/{job}",), timeout=60)
    assert played.fired == 0
    assert {rank: ast.literal_eval(played.outcomes[rank].text) for rank in (1, 2)} == {
        1: (1, 2.0),
        2: (0, 2.0),
    }


def test_a_taken_port_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert main(["store", "--port", str(port)]) == 1
    assert f"port {port} of this host cannot be used" in capsys.readouterr().err


def test_an_invalid_port_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "--port", "70000"]) == 2
    assert "'70000' is not a port from 0 to 65535" in capsys.readouterr().err


def test_a_store_that_is_not_there_is_named() -> None:
    with pytest.raises(meshkit.SpawnError, match="python -m meshkit store --port 1, on that host"):
        meshkit.spawn(join_nowhere, 2, timeout=60)


def join_nowhere() -> None:
    meshkit.init(init_method="store://127.0.0.1:1/job", arrival_timeout=1)
