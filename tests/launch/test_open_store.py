"""The store of a job: its kind, its address and its deadline."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

import meshkit
from meshkit.launch.launchers.world import World
from meshkit.launch.open_store import open_store
from meshkit.launch.times import Deadline

WORLD = World(1, 2, 1, None, None, None, None, None, "hand-written")


def in_a_second() -> Deadline:
    """Return the deadline of these tests."""
    return Deadline.after(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_one_process_needs_no_network_and_a_file_needs_no_port(tmp_path: Path) -> None:
    alone = replace(WORLD, rank=0, world_size=1, master_addr="nowhere.invalid", master_port=1)
    assert isinstance(open_store(alone, in_a_second()), dist.HashStore)
    shared = replace(WORLD, init_method=f"file://{tmp_path}/store")
    assert isinstance(open_store(shared, in_a_second()), dist.FileStore)


def test_an_unknown_address_is_an_error() -> None:
    with pytest.raises(meshkit.LaunchError) as caught:
        open_store(replace(WORLD, master_addr="a"), in_a_second())
    assert caught.value.variables == {"MASTER_ADDR": "a", "MASTER_PORT": None}
    assert str(caught.value) == (
        "rank 1 of 2 has no address of the job's store.\n"
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
        open_store(world, in_a_second())
    assert 0.7 < time.monotonic() - began < 3
    assert caught.value.missing_ranks == missing
    assert str(caught.value) == (
        f"no store answers rank 1 at 127.0.0.1:{port} within 1 s.\n"
        f"  {host}\n"
        "  Fix: look at the log of rank 0 first; then check that this host can reach that one."
    )


def test_a_retry_has_only_the_time_that_is_left() -> None:
    world = replace(WORLD, master_addr="127.0.0.1", master_port=free_port())
    now = time.monotonic()
    with pytest.raises(meshkit.RankTimeoutError, match="within 60 s"):
        open_store(world, Deadline(timedelta(seconds=60), now + 0.5))
    assert time.monotonic() - now < 10


def test_a_taken_port_is_an_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        host = replace(WORLD, rank=0, master_addr="127.0.0.1", master_port=port)
        with pytest.raises(meshkit.LaunchError) as caught:
            open_store(host, in_a_second())
    first, evidence, fix = str(caught.value).splitlines()
    assert first == f"rank 0 cannot host the store at 127.0.0.1:{port}."
    assert "address already in use" in evidence.lower()
    assert fix == (
        "  Fix: export MASTER_PORT=<a free port> on all ranks, and MASTER_ADDR=<this host>."
    )
    assert caught.value.variables == {"MASTER_PORT": str(port)}


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
def test_an_unusable_file_is_an_error(url: str) -> None:
    began = time.monotonic()
    with pytest.raises(meshkit.LaunchError, match=r"not usable as a store|has no address"):
        open_store(replace(WORLD, init_method=url), in_a_second())
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("url", ["tcp://[::1", "tcp://h:99999", "tcp://", "http://h:1", ""])
def test_an_invalid_url_is_an_error(url: str) -> None:
    with pytest.raises(meshkit.LaunchError, match="has no address of the job"):
        open_store(replace(WORLD, init_method=url), in_a_second())


def test_rank_0_hosts_an_address_of_the_user_under_torchrun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    url = f"tcp://127.0.0.1:{free_port()}"
    world = replace(WORLD, rank=0, launcher="torchrun", init_method=url)
    ours = open_store(world, in_a_second())
    ours.set("a", "b")
    assert open_store(replace(world, rank=1), in_a_second()).get("a") == b"b"


def test_rank_0_hosts_the_store_even_if_the_address_is_of_another_host() -> None:
    """The ranks that cannot reach a wrong address report it, not rank 0 after minutes."""
    world = replace(WORLD, rank=0, master_addr="10.255.255.1", master_port=free_port())
    began = time.monotonic()
    open_store(world, in_a_second()).set("a", "b")
    assert time.monotonic() - began < 1


def test_a_name_that_no_resolver_accepts() -> None:
    world = replace(WORLD, master_addr="a..b", master_port=29500)
    with pytest.raises(meshkit.RankTimeoutError, match=r"no store answers rank 1 at a\.\.b:29500"):
        open_store(world, in_a_second())


def test_one_process_needs_no_address() -> None:
    alone = replace(WORLD, rank=0, world_size=1, init_method="env://")
    open_store(alone, in_a_second()).set("a", "b")


def serve(kind: str, server: socket.socket) -> None:
    """Answer each connection as a service that is no store."""
    with contextlib.suppress(OSError):
        while True:
            client, _ = server.accept()
            held.append(client)
            if kind == "http":
                client.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            if kind in ("http", "closes"):
                client.close()


held: list[socket.socket] = []  # so that the silent service keeps its connections


@pytest.mark.parametrize("kind", ["http", "closes", "silent"])
def test_a_port_of_something_that_is_no_store_is_reported_as_that(kind: str) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        threading.Thread(target=serve, args=(kind, server), daemon=True).start()
        port = server.getsockname()[1]
        client = replace(WORLD, master_addr="127.0.0.1", master_port=port)
        began = time.monotonic()
        with pytest.raises(meshkit.RankTimeoutError) as caught:
            open_store(client, in_a_second())
        assert time.monotonic() - began < 1 + 5
        server.shutdown(socket.SHUT_RDWR)
    while held:  # torch's client would otherwise still wait when Python ends
        held.pop().close()
    text = str(caught.value)
    assert "A process listens there, but it does not answer as a store of torch does." in text
    assert "Fix: export MASTER_PORT=<a free port> on all ranks" in text
