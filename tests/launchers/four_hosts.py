"""Four hosts on one machine, joined by a switch whose ports a test can cut.

Each host knows its own name by a loopback address, as Debian writes it. The name ``store`` has two
addresses: packets to the first one vanish, the second one is that of the first host.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.hosts import Host
from tests.launchers.checks import require_programs

SWITCH = """
ip netns add $1
ip -n $1 link add switch type bridge
ip -n $1 link set switch up
"""
JOIN = """
ip netns add $2
ip link add $2 netns $2 type veth peer name $3 netns $1
ip -n $1 link set $3 master switch
ip -n $1 link set $3 up
ip -n $2 addr add $4/24 dev $2
ip -n $2 link set $2 up
ip -n $2 link set lo up
if [ $3 = p0 ]; then
    ip -n $2 addr add 10.80.0.1/32 dev $2
else
    ip -n $2 route add 10.80.0.1 via 10.78.0.1
    ip -n $2 route add 10.79.0.9 dev $2
    ip -n $2 neigh add 10.79.0.9 lladdr 02:00:00:00:00:99 dev $2 nud permanent
fi
"""
STORE = "10.79.0.9 store\n10.80.0.1 store\n"


@dataclass(frozen=True)
class Network:
    """Hosts and the switch between them."""

    hosts: list[Host]
    switch: str  # the namespace of the switch, whose ports are p0, p1, ...

    def set_link(self, host: int, state: str) -> None:
        """Set the link of a host ``"up"`` or ``"down"``, at the switch."""
        command = ["ip", "-n", self.switch, "link", "set", f"p{host}", state]
        subprocess.run(command, check=True)


@contextmanager
def four_hosts(folder: Path, name: str = "node") -> Iterator[Network]:
    """Yield hosts node1 to node4; skip the test if the machine forbids network namespaces."""
    require_programs("iproute2", "ip")
    require_programs("util-linux", "unshare", "nsenter")
    switch, numbers = f"mk{os.getpid()}s", range(1, 5)
    spaces = [f"mk{os.getpid()}{number}" for number in numbers]
    addresses = {f"{name}{number}": f"10.78.0.{number}" for number in numbers}
    hosts = []
    for (own, address), space in zip(addresses.items(), spaces, strict=True):
        hosts.append(Host(own, address, space, folder / f"hosts.{own}"))
        lines = "".join(f"{at} {name}\n" for name, at in {**addresses, own: "127.0.1.1"}.items())
        hosts[-1].hosts_file.write_text(f"127.0.0.1 localhost\n{lines}{STORE}")
    steps = [["sh", "-ec", SWITCH, "sh", switch]]
    for number, host in enumerate(hosts):
        arguments = switch, host.namespace, f"p{number}", host.address
        steps += [["sh", "-ec", JOIN, "sh", *arguments], host.command("true")]
    try:
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no network namespaces: {done.stderr.strip()}")
        yield Network(hosts, switch)
    finally:
        for space in (*spaces, switch):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)
