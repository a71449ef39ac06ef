"""Findings by name, and the names, addresses and interfaces of a machine that does not exist."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pytest

from meshkit.launch.doctor.finding import Finding

TWO_NODES = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
INTERFACES = ("lo", "eth0", "ib0", "eth1")


def by_name(findings: Sequence[Finding]) -> dict[str, Finding]:
    """Return findings by their names, which must be unique."""
    names = [finding.name for finding in findings]
    assert len(names) == len(set(names))
    return dict(zip(names, findings, strict=True))


def fake_resolver(monkeypatch: pytest.MonkeyPatch, *addresses: str, host: str = "box") -> None:
    """Let every host name have these addresses; without any, its lookup fails."""

    def forward(name: str, *_: object, **__: object) -> list[Any]:
        if not addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(2, 1, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(socket, "getaddrinfo", forward)
    monkeypatch.setattr(socket, "getnameinfo", lambda address, _: (f"name-of-{address[0]}", "0"))
