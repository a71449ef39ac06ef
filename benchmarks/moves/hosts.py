"""Hosts on one switch: network namespaces, each with a link of a given speed in both directions."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.placement import Host, NoHostsError

# Make a namespace $1 with a link to the bridge of the namespace $2. $3 is its number, $4 the speed.
ADD_HOST = """
ip netns add $1
ip -n $1 link add $1 type veth peer name port$3 netns $2
ip -n $1 address add 10.78.0.$3/24 dev $1
ip -n $2 link set port$3 master switch
ip -n $2 link set port$3 up
ip -n $1 link set $1 up
ip -n $1 link set lo up
tc -n $1 qdisc add dev $1 root tbf rate $4 burst 64kb latency 400ms
tc -n $2 qdisc add dev port$3 root tbf rate $4 burst 64kb latency 400ms
"""
ADD_SWITCH = "ip netns add $1; ip -n $1 link add switch type bridge; ip -n $1 link set switch up"
HEADERS = 66  # bytes of Ethernet, IP and TCP in front of the payload of a packet


@contextmanager
def hosts_on_a_switch(folder: Path, count: int, rate: str) -> Iterator[list[Host]]:
    """Make hosts that reach each other and nothing else.

    Raises:
        NoHostsError: if the machine forbids network namespaces.
    """
    spaces = [f"mt{os.getpid()}{letter}" for letter in "sabcdefgh"[: count + 1]]
    file = folder / "hosts"
    hosts = [Host(f"host{n}", f"10.78.0.{n}", spaces[n], file) for n in range(1, count + 1)]
    lines = [f"{host.address} {host.name}\n" for host in hosts]
    file.write_text("127.0.0.1 localhost\n" + "".join(lines))
    steps = [["sh", "-ec", ADD_SWITCH, "sh", spaces[0]]]
    for number, host in enumerate(hosts, 1):
        steps.append(["sh", "-ec", ADD_HOST, "sh", host.namespace, spaces[0], str(number), rate])
        steps.append(host.command("true"))
    try:
        for step in steps:
            process = subprocess.run(step, capture_output=True, text=True)
            if process.returncode:
                raise NoHostsError(f"no network namespaces: {process.stderr.strip()}")
        yield hosts
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)


def read_payload(interface: str) -> tuple[int, int]:
    """Return the bytes that an interface has received and sent so far, without headers."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            numbers = [int(word) for word in counters.split()]
            return numbers[0] - HEADERS * numbers[1], numbers[8] - HEADERS * numbers[9]
    raise RuntimeError(f"there is no interface {interface}")
