"""Hosts on one machine: network namespaces with links of a given speed, and jobs on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Make two namespaces $1 and $2 with one link. Each end of the link has the name of its host, and is
# made inside: other programs on this machine would see an interface come and go.
CONNECT = """
ip netns add $1 && ip netns add $2
ip -n $1 link add $1 type veth peer name $2 netns $2
for i in 1 2; do
    eval host=\\$$i
    ip -n $host address add 10.77.0.$i/24 dev $host
    ip -n $host link set $host up
    ip -n $host link set lo up
    [ -z "$3" ] || tc -n $host qdisc add dev $host root tbf rate $3 burst 64kb latency 400ms
done
"""
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
# In the namespaces of a host: set its host name and its /etc/hosts, then run the command.
ENTER = (
    'hostname "$1" && mount --bind "$2" /etc/hosts && export MESHKIT_MACHINE="$1" && shift 2 && '
    'exec "$@"'
)


class NoHostsError(RuntimeError):
    """This machine forbids network namespaces, or lacks the programs that make them."""


@dataclass(frozen=True)
class Host:
    """A network namespace with an address and a host name; its interface has the same name."""

    name: str
    address: str
    namespace: str
    hosts_file: Path

    def command(self, *argv: str) -> list[str]:
        """Return the command that runs ``argv`` on this host."""
        inside = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--mount", "--uts"]
        return [*inside, "sh", "-c", ENTER, "sh", self.name, str(self.hosts_file), *argv]


@contextmanager
def two_hosts(folder: Path, *names: str, rate: str | None = None) -> Iterator[list[Host]]:
    """Make two hosts that reach each other and nothing else.

    ``rate`` is the speed of the link, as ``tc`` writes it: ``"200mbit"``. None sets no limit.

    Raises:
        NoHostsError: if the machine forbids network namespaces.
    """
    spaces = [f"mk{os.getpid()}{letter}" for letter in "ab"]
    connect = ["sh", "-ec", CONNECT, "sh", *spaces, rate or ""]
    with _hosts(folder, names, spaces, "10.77.0", [connect]) as hosts:
        yield hosts


@contextmanager
def hosts_on_a_switch(folder: Path, count: int, rate: str) -> Iterator[list[Host]]:
    """Make hosts on one switch that reach each other and nothing else.

    Raises:
        NoHostsError: if the machine forbids network namespaces.
    """
    switch, *spaces = [f"mt{os.getpid()}{letter}" for letter in "sabcdefgh"[: count + 1]]
    steps = [["sh", "-ec", ADD_SWITCH, "sh", switch]]
    for number, space in enumerate(spaces, 1):
        steps.append(["sh", "-ec", ADD_HOST, "sh", space, switch, str(number), rate])
    names = [f"host{number}" for number in range(1, count + 1)]
    with _hosts(folder, names, spaces, "10.78.0", steps, switch) as hosts:
        yield hosts


@contextmanager
def _hosts(
    folder: Path,
    names: Sequence[str],
    spaces: Sequence[str],
    network: str,
    steps: Sequence[Sequence[str]],
    *others: str,
) -> Iterator[list[Host]]:
    """Make hosts by commands, and delete their namespaces, and others, at the end."""
    file = folder / "hosts"
    pairs = enumerate(zip(names, spaces, strict=True), 1)
    hosts = [Host(name, f"{network}.{n}", space, file) for n, (name, space) in pairs]
    lines = [f"{host.address} {host.name}\n" for host in hosts]
    file.write_text("127.0.0.1 localhost\n" + "".join(lines))
    try:
        for step in [*steps, *(host.command("true") for host in hosts)]:
            process = subprocess.run(step, capture_output=True, text=True)
            if process.returncode:
                raise NoHostsError(f"no network namespaces: {process.stderr.strip()}")
        yield hosts
    finally:
        for space in (*others, *spaces):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)


def read_payload(interface: str) -> tuple[int, int]:
    """Return the bytes that an interface has received and sent so far, without headers."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            numbers = [int(word) for word in counters.split()]
            return numbers[0] - HEADERS * numbers[1], numbers[8] - HEADERS * numbers[9]
    raise RuntimeError(f"there is no interface {interface}")


# ------------------------------------------------------------------ jobs


def start_rank(
    host: Host, args: Sequence[object], place: Sequence[int], master: tuple[str, int]
) -> subprocess.Popen[str]:
    """Start a rank of a job on its host: ``python -m`` with the arguments; rank 0 prints figures.

    ``place`` is the rank, the number of ranks, and both on its host; ``master`` is the address and
    the port of rank 0.
    """
    names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"
    variables = dict(zip(names, map(str, (*place, *master)), strict=True))
    variables |= {"GLOO_SOCKET_IFNAME": host.namespace, "OMP_NUM_THREADS": "1"}
    command = host.command(sys.executable, "-m", *map(str, args))
    out = subprocess.PIPE if place[0] == 0 else subprocess.DEVNULL
    return subprocess.Popen(command, env=os.environ | variables, stdout=out, text=True)


def read_figures(
    processes: Sequence[subprocess.Popen[str]], first: subprocess.Popen[str], timeout: float
) -> dict[str, Any]:
    """Return the figures that the first rank of a job prints, and end all processes.

    Raises:
        RuntimeError: if the job fails.
    """
    try:
        output, _ = first.communicate(timeout=timeout)
    finally:
        for process in processes:
            process.kill()
            process.wait(10)
    if not output:
        raise RuntimeError("the job on hosts failed; see the errors of its ranks")
    figures: dict[str, Any] = json.loads(output)
    return figures
