"""Lookups with a deadline, and the interfaces of a machine."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

from meshkit.launch.doctor import network
from tests.launch.doctor.findings import INTERFACES


def test_a_lookup_returns_at_its_deadline() -> None:
    began = time.monotonic()
    lookup = network.lookup(lambda: time.sleep(30) or [], deadline=0.05)
    assert time.monotonic() - began < 5
    assert lookup.error == "no answer within 0.05 s"
    assert lookup.values == ()
    assert lookup.seconds >= 0.05


@pytest.mark.parametrize("error", [socket.gaierror(-2, "unknown"), UnicodeError("too long")])
def test_a_lookup_returns_the_error_of_its_query(error: Exception) -> None:
    def fail() -> list[str]:
        raise error

    lookup = network.lookup(fail)
    assert (lookup.values, lookup.error) == ((), str(error))


def test_a_name_that_is_too_long_has_no_address() -> None:
    assert network.look_up_addresses("x" * 300).values == ()


def test_addresses_and_names_of_this_machine() -> None:
    assert "127.0.0.1" in network.look_up_addresses("127.0.0.1").values
    assert len(network.look_up_name("127.0.0.1").values) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="addresses are read on Linux only")
def test_the_interfaces_of_this_machine() -> None:
    available = network.list_interfaces()
    assert list(available) == [name for _, name in socket.if_nameindex()]
    assert "127.0.0.1" in available["lo"]
    assert network.interface_of("127.0.1.1", available) == "lo"
    assert network.is_local("127.0.0.1")
    assert not network.is_local("192.0.2.1")  # RFC 5737: no machine has it


def test_the_interface_of_an_address() -> None:
    assert network.interface_of("10.0.0.3", {"lo": ["127.0.0.1"], "eth0": ["10.0.0.3"]}) == "eth0"
    assert network.interface_of("10.0.0.4", {"eth0": ["10.0.0.3"]}) is None
    assert [network.is_loopback(name) for name in ("::1", "127.0.1.1", "10.0.0.3")] == [1, 1, 0]


def test_the_ipv6_addresses_of_linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "if_inet6"
    monkeypatch.setattr(network, "IPV6_TABLE", table)
    assert network._ipv6_addresses() == {}
    table.write_text(
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe800000000000000000000000000003 02 40 20 80     eth0\n"
        "20010db8000000000000000000000003 02 40 00 80     eth0\n"
    )
    assert network._ipv6_addresses() == {"lo": ("::1",), "eth0": ("fe80::3", "2001:db8::3")}


def test_a_missing_interface_has_no_address() -> None:
    assert network._ipv4_address("no-such-interface-at-all") == ()


@pytest.mark.parametrize(
    ("pattern", "selected"),
    [
        ("eth", ["eth0", "eth1"]),
        ("eth1,ib", ["ib0", "eth1"]),
        ("eth0:4000,ib0", ["eth0", "ib0"]),
        ("=eth", []),
        ("=eth1,lo", ["lo", "eth1"]),
        ("^lo", ["eth0", "ib0", "eth1"]),
        ("^=eth0,lo", ["ib0", "eth1"]),
        ("^eth,ib,lo", []),
    ],
)
def test_the_interfaces_that_nccl_socket_ifname_selects(pattern: str, selected: list[str]) -> None:
    assert network.match_interfaces(pattern, INTERFACES) == selected


def test_the_interfaces_that_nccl_uses_by_default() -> None:
    assert network.default_nccl_interfaces(INTERFACES) == ["ib0"]
    assert network.default_nccl_interfaces(
        {**INTERFACES, "ib0": (), "docker0": ("172.17.0.1",)}
    ) == ["eth0"]
    assert network.default_nccl_interfaces({"lo": ("127.0.0.1",), "docker0": ("172.17.0.1",)}) == [
        "docker0"
    ]
    assert network.default_nccl_interfaces({"lo": ("127.0.0.1",)}) == ["lo"]
    assert network.default_nccl_interfaces({"eth0": ()}) == []
