"""The store of a job: its address, its loss, and values that no rank wrote."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import meshkit
from meshkit.launch import store as store_module
from meshkit.launch.generation import LEASE, NEWEST, enter_attempt, take_rank
from meshkit.launch.judges import all_same
from meshkit.launch.round import ARRIVED, CONFLICT, DECISION, FIRST, Round
from meshkit.launch.store import (
    Store,
    address,
    error_from_json,
    error_to_json,
    lost_error,
    open_store,
)
from meshkit.launch.times import TIMES, Deadline
from meshkit.launch.world import World, free_port
from tests.promises import BUSY

WORLD = World(1, 2, 1, None, None, None, None, None, "hand-written")


@pytest.mark.parametrize(
    ("init_method", "expected"),
    [
        ("tcp://h:5", ("h", 5)),
        ("tcp://h", ("h", None)),
        ("tcp://h:x", (None, None)),
        ("tcp://h:70000", (None, None)),
        ("carrier://h:5", (None, None)),
        ("env://", ("a", 7)),
        (None, ("a", 7)),
    ],
)
def test_the_address_comes_from_init_method_or_the_launcher(
    init_method: str | None, expected: tuple[str | None, int | None]
) -> None:
    assert (
        address(replace(WORLD, master_addr="a", master_port=7, init_method=init_method)) == expected
    )


def test_a_wait_ends_with_the_key_or_at_the_deadline() -> None:
    store = Store(dist.HashStore(), WORLD, "part")
    assert store.wait("a", Deadline.after(0.05)) is None
    store.set("a", "b")
    assert store.wait("a", Deadline.after(0)) == b"b"
    assert store.root.check(["part/a"])


def test_a_name_whose_first_address_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's client would look up the name again, and wait at the first address."""
    root = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    kind = socket.AF_INET, socket.SOCK_STREAM, 0, ""
    rows = [(*kind, (host, root.port)) for host in ("192.0.2.1", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
    monkeypatch.setattr("meshkit.launch.names.MAX_PROBE", 0.5)
    world = replace(WORLD, master_addr="two.invalid", master_port=root.port)
    store = open_store(world, Deadline.after(10))
    assert (store.host, store.port) == ("127.0.0.1", root.port)


def test_a_wait_holds_no_client() -> None:
    """Another thread of the rank uses the same client meanwhile."""
    root = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = Store(root, WORLD, "part")
    waiting = threading.Thread(target=store.wait, args=("a", Deadline.after(20)))
    waiting.start()
    time.sleep(0.2)
    began = time.monotonic()
    store.set("a", "b")
    waiting.join(10)
    assert time.monotonic() - began < 5 + BUSY


def test_a_lost_store_is_an_error_with_its_address() -> None:
    def lose() -> None:
        raise dist.DistNetworkError("Connection reset by peer")

    world = replace(WORLD, master_addr="a", master_port=7)
    store = Store(dist.HashStore(), world)
    with pytest.raises(meshkit.RankTimeoutError) as caught:
        store.within(1, lose)
    assert isinstance(caught.value.__cause__, dist.DistNetworkError)
    assert caught.value.missing_ranks == (0,)
    assert caught.value.evidence == ("It was at a:7; the process that hosts it has ended.",)
    assert store.try_within(1, lose) is None
    with pytest.raises(meshkit.RankTimeoutError, match="is stopped, or the network"):
        store.within(0.1, lambda: time.sleep(1))
    error = lost_error(replace(WORLD, init_method="file:///f"), silent=True)
    assert error.evidence == ("It is file:///f, which does not answer.",)
    assert error.missing_ranks == ()


def test_an_error_as_json_keeps_its_class_and_its_data() -> None:
    error = meshkit.CollectiveError("x.", "y", fix="z.", missing_ranks=(3,), behind=(1, 2))
    again = error_from_json(json.loads(json.dumps(error_to_json(error))))
    assert type(again) is meshkit.CollectiveError
    assert (str(again), again.missing_ranks, again.behind) == (str(error), (3,), (1, 2))


GARBAGE = [
    b"\xff\xfe\x00garbage",
    b"[]",
    b"null",
    b'{"process": 5, "request": [], "seconds": 3}',
    b'["x", "y", "z", 5, 6]',
    b'[[5, "x", 1, 2, 3], {"start": 1}, "NaN"]',
    b"[" * 100_000,
    b"9" * 10_000,
]


KEYS = [LEASE.format(0), NEWEST, *(f"r/{key}" for key in (FIRST, CONFLICT, DECISION, ARRIVED))]


@pytest.mark.parametrize("value", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("key", KEYS)
def test_a_rank_that_joins_or_is_in_a_round_names_the_key(key: str, value: bytes) -> None:
    store, began = Store(dist.HashStore(), replace(WORLD, rank=0)), time.monotonic()
    store.root.set(key, value)  # type: ignore[arg-type]

    def take_part() -> None:
        take_rank(store)
        round = Round(store, "r", 0, range(2))
        round.arrive({"a": "b"}, same=True)
        round.decide(all_same("ranks disagree."), Deadline.after(0.1))

    with pytest.raises(meshkit.LaunchError, match="has a value that no rank wrote") as caught:
        take_part()
    assert repr(key.removeprefix("r/")) in caught.value.summary
    assert len(str(caught.value)) < 1000
    assert time.monotonic() - began < 0.3 + TIMES.store + BUSY


def test_a_forged_decision_becomes_an_error_of_ours_and_nothing_else() -> None:
    forged = {"error": "__import__('os').system('x')", "summary": {"a": 1}, "evidence": [1, [2]]}
    root = dist.HashStore()
    root.set(f"r/{DECISION}", json.dumps({"error": forged, "value": None, "over": False}))
    decision = Round(Store(root, WORLD), "r", 0, range(2)).follow(Deadline.after(1))
    assert decision is not None
    assert type(decision.error) is meshkit.MeshkitError


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

    monkeypatch.setattr(store_module, "find_address", fail, raising=True)
    for method, setting in ((None, "MASTER_ADDR=<host"), ("tcp://node9:2", 'init_method="tcp://<')):
        world = replace(WORLD, master_addr="node9", master_port=2, init_method=method)
        with pytest.raises(meshkit.RankTimeoutError) as caught:
            open_store(world, in_a_second())
        assert caught.value.missing_ranks == ()
        assert caught.value.evidence[0].startswith("node9 has no address on this host: Name or")
        assert setting in caught.value.fix_text


def test_an_address_of_the_rank_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script has exported MASTER_ADDR=$(hostname) on every node."""
    world = replace(WORLD, master_addr="127.0.0.1", master_port=free_port())
    monkeypatch.setattr(store_module, "is_this_host", lambda host: True, raising=True)
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


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    """Yield a world whose file no call can look at any more, as on a server of NFS that is gone."""
    path, over = tmp_path / "store", threading.Event()
    calls: dict[str, Any] = {name: getattr(os, name) for name in ("stat", "open", "access")}

    def hang(name: str, *args: Any, **options: Any) -> Any:
        if str(args[0]) == str(path) and has_begun.is_set():
            over.wait(60)
        return calls[name](*args, **options)

    has_begun = threading.Event()
    for name in calls:
        monkeypatch.setattr(os, name, partial(hang, name))
    world = replace(WORLD, init_method=f"file://{path}")
    store = Store(open_store(world, in_a_second()), world)
    store.within(1, lambda: store.set("a", "b"))
    has_begun.set()
    yield world
    over.set()


def test_a_file_system_that_hangs_holds_no_operation(hanging: World, tmp_path: Path) -> None:
    store = Store(dist.FileStore(str(tmp_path / "store"), 2), hanging)
    began = time.monotonic()
    with pytest.raises(meshkit.RankTimeoutError, match="lost the store of the job") as caught:
        store.within(0.5, lambda: store.set("a", "c"))
    assert time.monotonic() - began < 0.5 + TIMES.lookup + BUSY
    assert "which does not answer" in caught.value.evidence[0]
    assert store.try_within(0.1, lambda: store.get("a")) is None


def test_a_file_system_that_hangs_holds_no_rank_that_joins(hanging: World) -> None:
    began = time.monotonic()
    with pytest.raises(meshkit.RankTimeoutError, match="lost the store of the job"):
        enter_attempt(hanging, in_a_second())
    assert time.monotonic() - began < 1 + TIMES.store + TIMES.lookup + BUSY
    began = time.monotonic()
    error = lost_error(hanging)
    assert "which does not answer" in error.evidence[0]
    assert time.monotonic() - began < TIMES.store + BUSY
