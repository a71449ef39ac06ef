"""The store where ranks meet: which one, where, and by when."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

import meshkit
from meshkit.core.call import Call
from meshkit.launch.launchers.world import World
from meshkit.launch.store.client import address, open_store

CALL = Call("init")
WORLD = World(1, 2, 1, None, None, None, None, None, "hand-written")
SECOND = timedelta(seconds=1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("world", "found"),
    [
        (replace(WORLD, init_method="tcp://h:5"), ("h", 5)),
        (replace(WORLD, init_method="tcp://h"), ("h", None)),
        (replace(WORLD, init_method="tcp://h:x"), (None, None)),
        (replace(WORLD, init_method="tcp://h:70000"), (None, None)),
        (replace(WORLD, init_method="carrier://h:5"), (None, None)),
        (replace(WORLD, master_addr="a", master_port=7), ("a", 7)),
        (replace(WORLD, master_addr="a", master_port=7, init_method="env://"), ("a", 7)),
        (replace(WORLD, master_addr="a", master_port=7, init_method="tcp://h:5"), ("h", 5)),
        (WORLD, (None, None)),
    ],
)
def test_addresses(world: World, found: tuple[str | None, int | None]) -> None:
    assert address(world) == found


def test_a_process_alone_needs_no_network_and_a_file_needs_no_port(tmp_path: Path) -> None:
    alone = replace(WORLD, rank=0, world_size=1, master_addr="nowhere.invalid", master_port=1)
    assert isinstance(open_store(alone, SECOND), dist.HashStore)
    shared = replace(WORLD, init_method=f"file://{tmp_path}/store")
    assert isinstance(open_store(shared, SECOND), dist.FileStore)


def test_nowhere_to_meet() -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        open_store(replace(WORLD, master_addr="a"), SECOND)
    assert caught.value.variables == {"MASTER_ADDR": "a", "MASTER_PORT": None}
    assert str(caught.value) == (
        "init(): rank 1 of 2 does not know where to meet the others.\n"
        "  init_method=None, MASTER_ADDR=a, MASTER_PORT=None (hand-written).\n"
        "  Fix: one of these, the same on all ranks:\n"
        "    export MASTER_ADDR=<host of rank 0> MASTER_PORT=29500   "
        '(init_method="env://" reads them)\n'
        '    init(init_method="tcp://<host of rank 0>:29500")\n'
        '    init(init_method="file:///shared/new-file")\n'
        "    pip install mpi4py   (under mpirun and mpiexec)"
    )


@pytest.mark.parametrize(
    ("launcher", "host", "missing"),
    [
        ("hand-written", "Rank 0 hosts it.", (0,)),
        ("torchrun", "The torchrun agent of the first node hosts it.", ()),
    ],
)
def test_no_answer_within_the_deadline(
    launcher: str, host: str, missing: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    port = free_port()
    world = replace(WORLD, master_addr="127.0.0.1", master_port=port, launcher=launcher)
    began = time.monotonic()
    with pytest.raises(meshkit.RankTimeoutError) as caught:
        open_store(world, SECOND)
    assert 0.7 < time.monotonic() - began < 3
    assert caught.value.missing_ranks == missing
    assert str(caught.value) == (
        f"init(): no store answers rank 1 at 127.0.0.1:{port} within 1 s.\n"
        f"  {host}\n"
        "  Fix: look at the log of rank 0 first; then check that this host can reach that one."
    )


def test_who_comes_again_has_only_what_is_left_of_the_time() -> None:
    world = replace(WORLD, master_addr="127.0.0.1", master_port=free_port())
    now = time.monotonic()
    with pytest.raises(meshkit.RankTimeoutError, match="within 60 s"):
        open_store(world, timedelta(seconds=60), since=now - 59.5)
    assert time.monotonic() - now < 10


def test_a_port_that_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        host = replace(WORLD, rank=0, master_addr="127.0.0.1", master_port=port)
        with pytest.raises(meshkit.LaunchError) as caught:
            open_store(host, SECOND)
    first, evidence, fix = str(caught.value).splitlines()
    assert first == f"init(): rank 0 cannot host the store at 127.0.0.1:{port}."
    assert "address already in use" in evidence.lower()
    assert fix == (
        "  Fix: export MASTER_PORT=<a free port> on all ranks, and MASTER_ADDR=<this host>."
    )
    assert caught.value.variables == {"MASTER_PORT": str(port)}


def test_keys_of_an_earlier_attempt_are_out_of_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    host = replace(WORLD, rank=0, master_addr="127.0.0.1", master_port=port)
    first = open_store(host, SECOND)
    first.set("key", "of attempt 0")
    monkeypatch.setitem(os.environ, "TORCHELASTIC_RESTART_COUNT", "1")
    second = open_store(host, SECOND)  # the same server: this process hosts it already
    assert first.check(["key"])
    assert not second.check(["key"])


@pytest.mark.parametrize(
    "url",
    [
        "file:///nonexistent/x",
        "file:///tmp",
        "file:///dev/null",
        "file://host/x",
        "file://",
        "file:x",
    ],
)
def test_a_file_that_cannot_be_a_store(url: str) -> None:
    began = time.monotonic()
    with pytest.raises(meshkit.LaunchError, match=r"no store in|does not know where"):
        open_store(replace(WORLD, init_method=url), SECOND)
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("url", ["tcp://[::1", "tcp://h:99999", "tcp://", "http://h:1", ""])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(meshkit.LaunchError, match="does not know where to meet"):
        open_store(replace(WORLD, init_method=url), SECOND)


def test_an_address_of_ones_own_under_torchrun_is_hosted_by_rank_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    url = f"tcp://127.0.0.1:{free_port()}"
    world = replace(WORLD, rank=0, launcher="torchrun", init_method=url)
    ours = open_store(world, SECOND)
    ours.set("a", "b")
    assert open_store(replace(world, rank=1), SECOND).get("a") == b"b"


def test_rank_0_hosts_whatever_the_address_says() -> None:
    """A wrong one is told by the ranks that cannot reach it, not by rank 0 after minutes."""
    world = replace(WORLD, rank=0, master_addr="10.255.255.1", master_port=free_port())
    began = time.monotonic()
    open_store(world, SECOND).set("a", "b")
    assert time.monotonic() - began < 1


def test_a_name_that_no_resolver_takes() -> None:
    world = replace(WORLD, master_addr="a..b", master_port=29500)
    with pytest.raises(meshkit.RankTimeoutError, match=r"no store answers rank 1 at a\.\.b:29500"):
        open_store(world, SECOND)


def test_a_process_alone_needs_no_address() -> None:
    alone = replace(WORLD, rank=0, world_size=1, init_method="env://")
    open_store(alone, SECOND).set("a", "b")
