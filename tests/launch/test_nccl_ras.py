"""NCCL's service for states, played by a server that speaks the protocol of its source."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from meshkit.launch.nccl_ras import Communicator, ask_ras, lags, parse_status
from tests.promises import BUSY


def rank(place: int, pid: int, **counts: int) -> dict[str, Any]:
    """Return a rank as jsonWriteRankData of NCCL writes it."""
    names = "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce"
    return {
        "rank": place,
        "host": "127.0.0.1",
        "pid": pid,
        "cuda_dev": place,
        "nvml_dev": place,
        "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
        "collective_counts": {name: counts.get(name, 0) for name in names},
    }


def status(*communicators: tuple[int, list[Any], list[Any]]) -> dict[str, Any]:
    """Return an answer to VERBOSE STATUS."""
    return {
        "nccl_version": "2.28.9",
        "communicators_count": len(communicators),
        "communicators": [
            {"hash": "0x1", "size": size, "ranks": ranks, "missing_ranks": missing}
            for size, ranks, missing in communicators
        ],
        "ras": {"collection_time_sec": 0.001, "timeouts_count": 0},
    }


STATUS = status(
    (2, [rank(0, 70, AllReduce=5, Broadcast=2), rank(1, 71, AllReduce=4, Broadcast=2)], []),
    (2, [rank(0, 70, AllReduce=1)], [{"rank": 1, "host": "unknown", "pid": -1}]),
)


@contextmanager
def server(answer: bytes, *, silent: bool = False, old: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the environment of a server, and what it was asked."""
    asked: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as lines:
            for line in lines:
                asked.append(line.decode().strip())
                words = asked[-1].lower()
                if silent:
                    continue
                if words == "verbose status":
                    half = len(answer) // 2
                    for part in (answer[:half], answer[half:]):
                        lines.write(part)
                        lines.flush()
                        time.sleep(0.05)
                    return
                if words.startswith("client protocol "):
                    lines.write(b"SERVER PROTOCOL 2\n")
                else:
                    lines.write(b"ERROR: Unknown command\n" if old else b"OK\n")
                lines.flush()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    port = listener.getsockname()[1]
    try:
        yield {"NCCL_RAS_ADDR": f"127.0.0.1:{port}", "asked": asked}
    finally:
        listener.close()
        thread.join(5)


def test_the_service_tells_the_collectives_of_each_rank() -> None:
    with server(json.dumps(STATUS, indent=2).encode()) as environ:
        communicators = ask_ras(2, environ)
    lines = ["CLIENT PROTOCOL 2", "TIMEOUT 2", "SET FORMAT json", "VERBOSE STATUS"]
    assert environ["asked"] == lines
    assert communicators == [
        Communicator(2, {0: 70, 1: 71}, {0: 7, 1: 6}),
        Communicator(2, {0: 70}, {0: 1}),
    ]


@pytest.mark.parametrize("answer", [b"", b"no JSON", b"{}", b'{"communicators": [{"size": 1}]}'])
def test_an_answer_that_is_none_is_unknown(answer: bytes) -> None:
    with server(answer) as environ:
        assert ask_ras(2, environ) == []


def test_a_service_that_knows_no_json_is_not_asked_more() -> None:
    with server(b"", old=True) as environ:
        assert ask_ras(2, environ) == []
    assert environ["asked"][-1] == "TIMEOUT 2"


def test_a_service_that_does_not_answer_or_does_not_exist_costs_the_deadline_at_most() -> None:
    began = time.monotonic()
    with server(b"", silent=True) as environ:
        assert ask_ras(0.5, environ) == []
    assert 0.4 <= time.monotonic() - began < 0.5 + BUSY
    assert ask_ras(0.5, environ) == []  # nobody listens any more
    assert ask_ras(0.5, {"NCCL_RAS_ADDR": "no port"}) == []


def test_a_group_is_known_by_its_processes_in_their_order() -> None:
    known = parse_status(STATUS)
    assert lags(known, [70, 71], 0) == {1: 1}
    assert lags(known, [70, 71], 1) == {0: -1}
    assert lags(known, [71, 70], 0) == {}  # another order
    assert lags(known, [70, None], 0) == {}
    assert lags(known, [70, 71, 72], 0) == {}
    assert lags([*known, known[0]], [70, 71], 0) == {}  # which of the two is unknown
