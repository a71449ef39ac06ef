"""A slow name server: torch's store looks up the name of each client, and answers nobody then."""

from __future__ import annotations

import shutil
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from meshkit.launch import name_lookup
from meshkit.launch.store import lost_error
from meshkit.launch.times import TIMES, Deadline
from meshkit.launch.world import World, free_port
from tests.launch.slow_names import build_library, lookups, start_ranks
from tests.launch.test_default_group import address_of
from tests.promises import BUSY

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
RANKS = 3
SLOW = 7.0  # seconds of a lookup; a resolver tries a server for 5


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("names"))


def seconds(text: str) -> float:
    """Return the seconds that a rank printed."""
    return float(text.rpartition("after ")[2].removesuffix(" s\n"))


@needs_gcc
def test_the_host_of_the_store_looks_up_each_rank_once(library: Path) -> None:
    """The host is its own client, too. A guard or a group of torch opens no further one."""
    printed = start_ranks(library, RANKS, 60)
    assert all("joined" in text.splitlines() for text in printed), printed
    assert lookups(library, 0) == RANKS + 1


@needs_gcc
@pytest.mark.parametrize(
    "lookup",
    [
        "3",
        pytest.param("all", marks=pytest.mark.slow),
        *(pytest.param(n, marks=pytest.mark.nightly) for n in ("1", "2", "4")),
    ],
)
def test_ranks_wait_for_a_slow_lookup(lookup: str, library: Path) -> None:
    slow = {"SLOW_SECONDS": str(SLOW), "SLOW_LOOKUP": lookup}
    if lookup == "all":
        del slow["SLOW_LOOKUP"]
    printed = start_ranks(library, RANKS, 60, slow=slow)
    assert all("joined" in text.splitlines() for text in printed), printed
    stall = (RANKS + 1 if lookup == "all" else 1) * SLOW
    assert max(map(seconds, printed)) > SLOW - 1, "the lookup was not slow"
    assert max(map(seconds, printed)) < stall + 4 + BUSY


@needs_gcc
def test_a_slow_lookup_of_a_newcomer_ends_no_rank(library: Path) -> None:
    """The store answers nobody meanwhile, also no operation that waits for no rank."""
    slow = {"SLOW_SECONDS": str(SLOW)}
    printed = start_ranks(
        library,
        RANKS,
        60,
        slow={**slow, "SLOW_FROM": str(RANKS + 2)},
        slow_elsewhere={**slow, "SLOW_FROM": "2"},
        loses=True,
    )
    assert all("joined" in text.splitlines() for text in printed), printed
    assert max(map(seconds, printed)) > SLOW - 1, "the lookup was not slow"


@needs_gcc
def test_ranks_that_wait_less_long_than_a_lookup_all_end_alike(library: Path) -> None:
    printed = start_ranks(library, RANKS, 3, slow={"SLOW_SECONDS": "20"})
    assert [text.partition(":")[0] for text in printed] == ["RankTimeoutError"] * RANKS
    assert max(map(seconds, printed)) < 3 + 5 + BUSY
    assert "in this process" in printed[0]
    assert "is stopped" not in printed[0]
    assert "name of each client" in printed[0]


def test_a_name_with_one_address_or_with_those_of_the_loopback_is_not_probed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(*addresses: str) -> str:
        rows = [
            (0, 0, 0, "", (address, 5, 0, 0)[: 4 if ":" in address else 2]) for address in addresses
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: rows)
        return name_lookup.find_address("box", 5, Deadline.after(1))

    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("it connects"))
    assert resolve("10.0.0.3", "10.0.0.3") == "10.0.0.3"
    assert resolve("fd00::3") == "fd00::3"
    assert resolve("::1", "127.0.0.1") == "127.0.0.1"


def test_a_name_that_has_an_address_later(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([socket.gaierror(-2, "unknown"), [(0, 0, 0, "", ("10.0.0.3", 5))]])

    def resolve(*_: object, **__: object) -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert name_lookup.find_address("box", 5, Deadline.after(10 + BUSY)) == "10.0.0.3"


def test_the_error_of_a_silent_store_tells_a_slow_name_server_from_a_stopped_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = {"master_addr": "127.0.0.1", "master_port": free_port()}
    world = replace(World(1, 2, 1, None, None, None, None, None, "hand-written"), **place)
    monkeypatch.setattr(socket, "getnameinfo", lambda *_: ("box", "0"))
    stopped = lost_error(world, silent=True)
    assert "the process that hosts it is stopped, or the network to it is cut" in str(stopped)
    assert "::ffff:127.0.0.1 takes 0." in str(stopped)
    assert "log of rank 0" in stopped.fix_text

    monkeypatch.setattr(socket, "getnameinfo", lambda *_: time.sleep(30))
    began = time.monotonic()
    slow = lost_error(world, silent=True)
    assert time.monotonic() - began < TIMES.lookup + 1 + BUSY
    assert "the process that hosts it waits for a name server, or is stopped" in str(slow)
    assert "::ffff:127.0.0.1 takes more than 1 s here" in str(slow)
    assert "RES_OPTIONS=attempts:0" in slow.fix_text
    own = lost_error(replace(world, rank=0), silent=True)
    assert "in this process, and does not answer it" in str(own)
    assert "stopped" not in str(own)
    assert own.missing_ranks == ()


def test_a_host_is_this_one_by_an_address_beside_the_loopback() -> None:
    interfaces = [name for _, name in socket.if_nameindex() if name != "lo"]
    others = filter(None, map(address_of, interfaces))
    assert all(map(name_lookup.is_this_host, others))
    assert not any(
        map(name_lookup.is_this_host, ("127.0.0.1", "localhost", "10.255.255.1", "a..b"))
    )
