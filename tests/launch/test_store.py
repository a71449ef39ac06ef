"""The store of a job: its address, its loss, and values that no rank wrote."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import meshkit
import meshkit.launch.store as store_module
from meshkit.launch.generation import LEASE, NEWEST, enter_attempt, take_rank
from meshkit.launch.judges import all_same
from meshkit.launch.open_store import open_store
from meshkit.launch.round import ARRIVED, CONFLICT, DECISION, FIRST, Round
from meshkit.launch.store import Store, address, error_from_json, error_to_json, lost_error
from meshkit.launch.times import TIMES, Deadline
from meshkit.launch.world import World
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
    monkeypatch.setattr("meshkit.launch.name_lookup.MAX_PROBE", 0.5)
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


def test_only_work_that_waits_for_no_rank_has_longer_if_names_are_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank that waits for others as long as a store may take has no longer."""
    waits = list[tuple[float, bool]]()

    def note(seconds: float, work: object, extend: object) -> None:
        waits.append((seconds, extend is not None))

    monkeypatch.setattr(store_module, "run_with_deadline", note)
    store = Store(dist.HashStore(), WORLD)
    store.run(store.keys)
    store.try_run(store.keys)
    store.within(TIMES.store, store.keys)
    assert waits == [(TIMES.store, True)] * 2 + [(TIMES.store, False)]


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
    root.set(f"r/{DECISION}", json.dumps({"error": forged, "value": None, "is_replaced": False}))
    decision = Round(Store(root, WORLD), "r", 0, range(2)).follow(Deadline.after(1))
    assert decision is not None
    assert type(decision.error) is meshkit.MeshkitError


def in_a_second() -> Deadline:
    """Return the deadline of these tests."""
    return Deadline.after(1)


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
