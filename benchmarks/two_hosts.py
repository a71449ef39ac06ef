"""Two hosts on one machine: network namespaces with an address and a host name each."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# In the namespaces of one host: its name, its names for others, then the command.
ENTER = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


class NoHostsError(RuntimeError):
    """This machine forbids network namespaces, or has not the programs that make them."""


@dataclass(frozen=True)
class Host:
    """A network namespace; ``command`` runs in it, under its own host name."""

    name: str
    address: str
    namespace: str
    hosts: Path

    def command(self, *argv: str) -> list[str]:
        """The command, in this host."""
        inside = ["nsenter", f"--net=/run/netns/{self.namespace}", "unshare", "--mount", "--uts"]
        return [*inside, "sh", "-c", ENTER, "sh", self.name, str(self.hosts), *argv]


@contextmanager
def two_hosts(folder: Path, *names: str, rate: str | None = None) -> Iterator[list[Host]]:
    """Two hosts that reach each other and nothing else.

    Args:
        folder: where their file of names is kept.
        *names: their names.
        rate: how fast each sends, as ``tc`` writes it: ``"200mbit"``. None means as fast as it can.

    Raises:
        NoHostsError: where the machine forbids them.
    """
    file = folder / "hosts"
    addresses = [f"10.77.0.{place}" for place in (1, 2)]
    lines = [f"{address} {name}\n" for address, name in zip(addresses, names, strict=True)]
    file.write_text("127.0.0.1 localhost\n" + "".join(lines))
    spaces = [f"mk{os.getpid()}{letter}" for letter in "ab"]
    hosts = [Host(n, a, s, file) for n, a, s in zip(names, addresses, spaces, strict=True)]
    try:
        _connect(hosts, rate)
        yield hosts
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)


def _connect(hosts: list[Host], rate: str | None) -> None:
    wires = [host.namespace for host in hosts]  # each end of the wire is called as its host
    steps = [["ip", "netns", "add", host.namespace] for host in hosts]
    # made inside: an interface that comes and goes would be seen by others on this machine
    steps.append(["ip", "-n", wires[0], "link", "add", wires[0], "type", "veth"])
    steps[-1] += ["peer", "name", wires[1], "netns", wires[1]]
    for host in hosts:
        inside = ["ip", "-n", host.namespace]
        steps.append([*inside, "address", "add", f"{host.address}/24", "dev", host.namespace])
        steps.append([*inside, "link", "set", host.namespace, "up"])
        steps.append([*inside, "link", "set", "lo", "up"])
    if rate is not None:
        shape = ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "400ms"]
        steps += [["tc", "-n", wire, "qdisc", "add", "dev", wire, *shape] for wire in wires]
    steps += [host.command("true") for host in hosts]
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise NoHostsError(f"not on this machine: {error.filename}") from error
        if done.returncode:
            raise NoHostsError(f"no network namespaces: {' '.join(step)}: {done.stderr.strip()}")
