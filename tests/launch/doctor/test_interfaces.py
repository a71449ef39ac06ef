"""The checks of host names and of the interfaces of gloo and NCCL."""

from __future__ import annotations

import socket
import time

import pytest

from meshkit import detect
from meshkit.launch.doctor import interfaces, network
from meshkit.launch.doctor.finding import Finding
from meshkit.launch.doctor.network import Lookup
from tests.launch.doctor.findings import INTERFACES, TWO_NODES, by_name, fake_resolver


def test_a_host_name_with_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_resolver(monkeypatch, "10.0.0.3", "10.0.0.3", "10.0.0.4")
    lookup = network.look_up_addresses("box")
    assert lookup.values == ("10.0.0.3", "10.0.0.4")
    finding = interfaces.check_lookup("host name", "box", Lookup(lookup.values, "", 0.001))
    assert finding == Finding("host name", True, "box is 10.0.0.3, 10.0.0.4 (0.00 s)")


def test_a_host_name_without_an_address_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_resolver(monkeypatch)
    findings = by_name(interfaces.check_interfaces(None, {}, nccl=False))
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
    finding = by_name(interfaces.check_interfaces(None, {}, nccl=False, deadline=1.2))[
        "reverse name"
    ]
    assert 1.2 <= time.monotonic() - began < 10
    assert finding.ok is False
    assert finding.found.startswith("10.0.0.3: no answer within 1.2 s (1.")
    assert finding.advice == (
        "echo '10.0.0.3 box' >> /etc/hosts on every node: torch's store waits for it."
    )


def test_a_lookup_that_succeeds_late_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Lookup(("10.0.0.3",), "", 5.01)
    finding = interfaces.check_lookup("host name", "box", late)
    assert finding == Finding(
        "host name",
        False,
        "box is 10.0.0.3 (5.01 s)",
        "echo '10.0.0.3 box' >> /etc/hosts, or repair the DNS of this node.",
    )
    monkeypatch.setattr(interfaces, "look_up_name", lambda *_: Lookup(("box",), "", 5.01))
    assert interfaces.check_reverse_name("box", "10.0.0.3").found == "10.0.0.3 is box (5.01 s)"
    assert not interfaces.check_reverse_name("box", "10.0.0.3").ok


def test_an_address_without_a_name_passes_if_the_lookup_was_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "getnameinfo", lambda address, _: (address[0], "0"))
    finding = interfaces.check_reverse_name("box", "10.0.0.3")
    assert finding.ok
    assert finding.found.startswith("10.0.0.3 has no name (0.")


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
    findings = by_name(interfaces.check_interfaces(detect(TWO_NODES), {}, nccl=False))
    assert findings["master host"].found.startswith("localhost is 10.0.0.3 (")
    fake_resolver(monkeypatch, "10.0.0.3", host="localhost")
    assert "master host" not in by_name(
        interfaces.check_interfaces(detect(TWO_NODES), {}, nccl=False)
    )


def test_gloo_uses_the_interface_of_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "is_local", lambda address: address != "192.0.2.1")
    finding = interfaces.check_gloo_interface({}, INTERFACES, ["192.0.2.1", "10.0.0.3"])
    text = "eth0 (10.0.0.3, an address of the host name)"
    assert finding == Finding("gloo interface", True, text)
    finding = interfaces.check_gloo_interface(
        {}, INTERFACES, ["10.0.0.9"]
    )  # a second address of some interface
    text = "unknown interface of this machine (10.0.0.9, an address of the host name)"
    assert finding == Finding("gloo interface", True, text)


def test_a_host_name_with_the_address_of_another_machine_fails() -> None:
    for addresses in ([], ["192.0.2.1"]):
        assert interfaces.check_gloo_interface({}, INTERFACES, addresses) == Finding(
            "gloo interface",
            False,
            "the loopback, because the host name has no address of this machine",
            "export GLOO_SOCKET_IFNAME=<one of lo, eth0, ib0, eth1>",
        )


def test_gloo_socket_ifname() -> None:
    finding = interfaces.check_gloo_interface({"GLOO_SOCKET_IFNAME": "eth0,ib0"}, INTERFACES, [])
    assert finding == Finding("gloo interface", True, "GLOO_SOCKET_IFNAME=eth0,ib0")
    assert interfaces.check_gloo_interface(
        {"GLOO_SOCKET_IFNAME": "eth0,eth7"}, INTERFACES, []
    ) == Finding(
        "gloo interface",
        False,
        "GLOO_SOCKET_IFNAME=eth0,eth7, but this machine has no eth7",
        "export GLOO_SOCKET_IFNAME=<one of lo, eth0, ib0, eth1>",
    )


def test_nccl_socket_ifname() -> None:
    finding = interfaces.check_nccl_interface({"NCCL_SOCKET_IFNAME": "^lo,ib"}, INTERFACES)
    text = "NCCL_SOCKET_IFNAME=^lo,ib selects eth0, eth1"
    assert finding == Finding("nccl interface", True, text)
    assert interfaces.check_nccl_interface({"NCCL_SOCKET_IFNAME": "=eth7"}, INTERFACES) == Finding(
        "nccl interface",
        False,
        "NCCL_SOCKET_IFNAME==eth7, but this machine has no =eth7",
        "export NCCL_SOCKET_IFNAME=<one of lo, eth0, ib0, eth1>",
    )


def test_nccl_is_checked_if_it_is_built_in_or_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_resolver(monkeypatch, "127.0.0.1")
    monkeypatch.setattr(interfaces, "list_interfaces", lambda: INTERFACES)
    assert "nccl interface" not in by_name(interfaces.check_interfaces(None, {}, nccl=False))
    own = by_name(interfaces.check_interfaces(None, {}, nccl=True))["nccl interface"]
    assert own == Finding("nccl interface", True, "ib0 (NCCL's own choice)")
    env = {"NCCL_SOCKET_IFNAME": "eth0"}
    assert by_name(interfaces.check_interfaces(None, env, nccl=False))["nccl interface"].ok
