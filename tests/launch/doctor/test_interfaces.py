"""The checks of host names and of the interfaces of gloo and NCCL."""

from __future__ import annotations

import socket
import time

import pytest

from meshkit import detect
from meshkit.launch.doctor import interfaces
from meshkit.launch.doctor.finding import Finding
from meshkit.launch.doctor.interfaces import Lookup
from tests.launch.doctor.findings import INTERFACES, TWO_NODES, by_name, fake_resolver


def test_a_host_name_with_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_resolver(monkeypatch, "10.0.0.3", "10.0.0.3", "10.0.0.4")
    lookup = interfaces.look_up_addresses("box")
    assert lookup.values == ("10.0.0.3", "10.0.0.4")
    finding = interfaces.check_lookup("host name", "box", Lookup(lookup.values, "", 0.001))
    assert finding == Finding("host name", True, "box is 10.0.0.3, 10.0.0.4 (0.00 s)")


def test_a_host_name_without_an_address_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_resolver(monkeypatch)
    findings = by_name(interfaces.check_interfaces(None, {}))
    assert "reverse name" not in findings
    assert not findings["host name"].ok
    start = "box has no address: [Errno -2] Name or service not known ("
    assert findings["host name"].found.startswith(start)
    advice = "echo '<address> box' >> /etc/hosts, or repair the DNS of this node."
    assert findings["host name"].advice == advice


def test_a_slow_reverse_lookup_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_resolver(monkeypatch, "10.0.0.3")
    monkeypatch.setattr(socket, "getnameinfo", lambda *_: time.sleep(30) or ("", ""))
    began = time.monotonic()
    finding = by_name(interfaces.check_interfaces(None, {}, deadline=1.2))["reverse name"]
    assert 1.2 <= time.monotonic() - began < 10
    assert finding.ok is False
    assert finding.found.startswith("10.0.0.3: no answer within 1.2 s (1.")
    assert finding.advice == (
        "echo '10.0.0.3 box' >> /etc/hosts on every node: torch's store waits for it."
    )


def test_a_lookup_that_succeeds_late_fails() -> None:
    late = Lookup(("10.0.0.3",), "", 5.01)
    finding = interfaces.check_lookup("host name", "box", late)
    assert finding == Finding(
        "host name",
        False,
        "box is 10.0.0.3 (5.01 s)",
        "echo '10.0.0.3 box' >> /etc/hosts, or repair the DNS of this node.",
    )


@pytest.mark.parametrize("ranks", ["4", "5"])  # on nodes of 2, or on nodes that differ
def test_a_loopback_address_fails_on_several_nodes(ranks: str) -> None:
    lookup, world = Lookup(("127.0.1.1",), "", 0.0), detect({**TWO_NODES, "WORLD_SIZE": ranks})
    finding = interfaces.check_host_name("box", lookup, world, {})
    assert finding == Finding(
        "host name",
        False,
        "box is 127.0.1.1 (0.00 s)\nno other node can reach that address",
        "export GLOO_SOCKET_IFNAME=<interface>, or correct the line of box in /etc/hosts.",
    )
    assert interfaces.check_host_name("box", lookup, world, {"GLOO_SOCKET_IFNAME": "eth0"}).ok
    assert interfaces.check_host_name("box", lookup, detect({}), {}).ok
    assert interfaces.check_host_name("box", lookup, None, {}).ok
    assert interfaces.check_host_name("box", Lookup(("10.0.0.3",), "", 0.0), world, {}).ok


def test_the_master_host_is_looked_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_resolver(monkeypatch, "10.0.0.3")
    findings = by_name(interfaces.check_interfaces(detect(TWO_NODES), {}))
    assert findings["master host"].found.startswith("localhost is 10.0.0.3 (")
    fake_resolver(monkeypatch, "10.0.0.3", host="localhost")
    assert "master host" not in by_name(interfaces.check_interfaces(detect(TWO_NODES), {}))


def test_the_variables_name_interfaces_that_exist() -> None:
    names = [*INTERFACES]
    for backend, value in [
        ("gloo", "eth0,ib0"),
        ("nccl", "ib,eth"),
        ("nccl", "=eth0:1"),
        ("nccl", "^lo,docker"),
    ]:
        variable = f"{backend.upper()}_SOCKET_IFNAME"
        finding = interfaces.check_variable(backend, {variable: value}, names)
        assert finding == Finding(f"{backend} interface", True, f"{variable}={value}")
    for backend, value in [("gloo", "eth7"), ("gloo", "eth"), ("nccl", "=eth"), ("nccl", "wlan")]:
        variable = f"{backend.upper()}_SOCKET_IFNAME"
        assert interfaces.check_variable(backend, {variable: value}, names) == Finding(
            f"{backend} interface",
            False,
            f"{variable}={value}, but this machine has no {value.lstrip('=')}",
            f"export {variable}=<one of lo, eth0, ib0, eth1>",
        )
