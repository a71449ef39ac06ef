"""Opening the store of a job, and the error of each way in which it fails."""

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
from meshkit.launch import open_store as open_store_module
from meshkit.launch.open_store import open_store
from meshkit.launch.times import Deadline
from meshkit.launch.world import World, free_port
from tests.promises import BUSY

WORLD = World(1, 2, 1, None, None, None, None, None, "hand-written")


def in_a_second() -> Deadline:
    """Return the deadline of these tests."""
    return Deadline.after(1)


def test_one_process_needs_no_network_and_a_file_needs_no_port(tmp_path: Path) -> None:
    alone = replace(WORLD, rank=0, world_size=1, master_addr="nowhere.invalid", master_port=1)
    for init_method in (None, "env://"):
        store = open_store(replace(alone, init_method=init_method), in_a_second())
        assert isinstance(store, dist.HashStore)
    shared = replace(WORLD, init_method=f"file://{tmp_path}/store")
    assert isinstance(open_store(shared, in_a_second()), dist.FileStore)


@pytest.mark.parametrize(
    ("launcher", "missing"),
    [("hand-written", (0,)), ("torchrun", ())],  # who hosts the store
)
def test_no_answer_within_the_deadline(
    launcher: str, missing: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    port = free_port()
    world = replace(WORLD, master_addr="127.0.0.1", master_port=port, launcher=launcher)
    began = time.monotonic()
    with pytest.raises(meshkit.RankTimeoutError) as caught:
        open_store(world, in_a_second())
    assert 0.7 < time.monotonic() - began < 3 + BUSY
    assert caught.value.missing_ranks == missing


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
    assert "address already in use" in caught.value.evidence[0].lower()
    assert caught.value.variables == {"MASTER_PORT": str(port)}


FILES = ("///nonexistent/x", "///tmp", "///dev/null", "//host/x", "//", "x")
FILES += ("///proc/x", f"///tmp/{'x' * 300}", "///dev/fd/999/x")
ADDRESSES = ("tcp://[::1", "tcp://h:99999", "tcp://", "http://h:1", "", None)


@pytest.mark.parametrize("url", [*(f"file:{path}" for path in FILES), *ADDRESSES])
def test_an_unusable_file_or_address_is_an_error_at_once(url: str | None) -> None:
    began = time.monotonic()
    world = replace(WORLD, init_method=url, master_addr="a")
    with pytest.raises(
        meshkit.LaunchError, match=r"not usable as a store|has no address"
    ) as caught:
        open_store(world, in_a_second())
    assert time.monotonic() - began < 1 + BUSY
    if url in ADDRESSES:
        assert caught.value.variables == {"MASTER_ADDR": "a", "MASTER_PORT": None}


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
    assert time.monotonic() - began < 1 + BUSY


def test_a_name_that_no_resolver_accepts() -> None:
    world = replace(WORLD, master_addr="a..b", master_port=29500)
    with pytest.raises(meshkit.RankTimeoutError, match=r"no store answers rank 1 at a\.\.b:29500"):
        open_store(world, in_a_second())


def test_a_host_without_an_address_is_the_fault_of_no_other_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else two ranks would point at each other: rank 0 misses rank 1, and that one rank 0."""

    def fail(*_: object) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(open_store_module, "find_address", fail, raising=True)
    for method, setting in ((None, "MASTER_ADDR=<host"), ("tcp://node9:2", 'init_method="tcp://<')):
        world = replace(WORLD, master_addr="node9", master_port=2, init_method=method)
        with pytest.raises(meshkit.RankTimeoutError) as caught:
            open_store(world, in_a_second())
        assert caught.value.missing_ranks == ()
        assert caught.value.evidence[0].startswith("node9 has no address on this host: Name or")
        assert setting in caught.value.fix_text


@pytest.mark.parametrize(("host", "of_node"), [("127.0.0.1", None), ("localhost", 1)])
def test_a_loopback_address_of_ranks_on_several_hosts_is_named(host: str, of_node: int) -> None:
    port = free_port()
    world = replace(WORLD, master_addr=host, master_port=port, local_world_size=of_node)
    with pytest.raises(meshkit.RankTimeoutError) as caught:
        open_store(world, in_a_second())
    assert caught.value.evidence[0] == f"{host} is this host itself, on each host another one."
    assert caught.value.fix_text.startswith("export MASTER_ADDR=<host of rank 0>, the same on all")
    with pytest.raises(meshkit.RankTimeoutError) as caught:
        open_store(replace(world, local_world_size=WORLD.world_size), in_a_second())
    assert caught.value.fix_text.startswith("look at the log of rank 0")


def test_an_address_with_an_unknown_interface_is_refused_at_once() -> None:
    world = replace(WORLD, master_addr="fe80::1%nowhere", master_port=29500)
    began = time.monotonic()
    with pytest.raises(meshkit.RankTimeoutError, match="has no address on this host"):
        open_store(world, Deadline.after(60))
    assert time.monotonic() - began < 5 + BUSY


def test_an_address_of_the_rank_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script has exported MASTER_ADDR=$(hostname) on every node."""
    place = {"master_addr": "127.0.0.1", "master_port": free_port()}
    world = replace(WORLD, **place, local_world_size=WORLD.world_size)
    monkeypatch.setattr(open_store_module, "is_this_host", lambda host: True, raising=True)
    with pytest.raises(meshkit.RankTimeoutError) as caught:
        open_store(world, in_a_second())
    assert caught.value.evidence[0] == "127.0.0.1 is the host of rank 1 itself."
    assert caught.value.fix_text.startswith("export MASTER_ADDR=<host of rank 0>")


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
        assert time.monotonic() - began < 1 + 5 + BUSY
        server.shutdown(socket.SHUT_RDWR)
    while held:  # torch's client would otherwise still wait when Python ends
        held.pop().close()
    assert caught.value.evidence[0].startswith("A process listens there")
    assert "MASTER_PORT" in caught.value.fix_text


# ---------------------------------------------------------------- a file system that hangs
