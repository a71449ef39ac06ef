"""Where a launcher lets ranks meet, in its own words, where it gives no address.

All ranks of a job read the same words, so they derive the same host and port.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from .hostlist import first_host, host_names
from .variables import Env, Names, present, refuse

MOST = 100_000  # hosts that are listed
PORT = 29500  # where nothing tells two jobs on a host apart
LOWEST, HOW_MANY = 12000, 20000  # below the ports that Linux hands out by itself


@dataclass(frozen=True)
class Address:
    """A host and a port, each with the variable it came from."""

    host: str
    port: int
    host_source: str
    port_source: str


class Place(Protocol):
    """A way to find an address in an environment."""

    def find(self, launcher: str, env: Env) -> Address | None:
        """The address, or None where this environment does not tell it this way."""


@dataclass(frozen=True)
class NodeList:
    """The first host of a node list of Slurm, which runs the first rank; the port by the job."""

    hosts: Names
    job: Names

    def names(self, env: Env) -> list[str]:
        """All hosts of the list; none where there is no list, or none that can be read."""
        name = present(self.hosts, env)
        try:
            return list(islice(host_names(env[name]), MOST)) if name else []
        except ValueError:
            return []

    def find(self, launcher: str, env: Env) -> Address | None:
        """The address of the first node.

        Raises:
            LaunchError: where the list is malformed.
        """
        name = present(self.hosts, env)
        # The list is sorted: a host file may have put rank 0 anywhere on it.
        if name is None or env.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
            return None
        try:
            return _of_job(first_host(env[name]), name, self.job, env)
        except ValueError as error:
            fault = f"{name}={env[name]!r} is no list of nodes ({error})"
            fix = f"unset {name}, or export MASTER_ADDR=<host of rank 0> MASTER_PORT={PORT}."
            refuse(launcher, {name: env[name]}, fault, fix=fix)


@dataclass(frozen=True)
class RankFile:
    """LSF's file of hosts, a line a slot. A first host that has one line only is the batch host."""

    file: Names
    job: Names

    def find(self, launcher: str, env: Env) -> Address | None:
        """The address of the first host that runs ranks; None where the file cannot be read."""
        name = present(self.file, env)
        try:
            lines = Path(env[name]).read_text().split() if name else []
        except (OSError, ValueError):  # not on this host, or no text
            return None
        hosts = list(dict.fromkeys(lines))
        if len(hosts) > 1 and lines.count(hosts[0]) == 1:
            del hosts[0]
        return _of_job(hosts[0], name, self.job, env) if hosts and name else None


@dataclass(frozen=True)
class Head:
    """A variable that names the first node, perhaps with a port that is not for us."""

    node: str
    port: int

    def find(self, launcher: str, env: Env) -> Address | None:
        """The address of that node."""
        said = env.get(self.node, "").strip()
        with_port = re.fullmatch(r"(\[.*\]|[^:]*):\d*", said)  # a bare IPv6 address has none
        host = with_port[1].strip("[]") if with_port else said
        return Address(host, self.port, self.node, f"default of {launcher}") if host else None


def _of_job(host: str, source: str, job: Names, env: Env) -> Address:
    """A host with a port that differs between jobs and steps as far as may be."""
    said = [name for name in job if re.fullmatch(r"[0-9]{1,18}", env.get(name, ""))]
    if not said:
        return Address(host, PORT, source, "default")
    ids = [int(env[name]) for name in said]
    spread = sum(number * 31**place for place, number in enumerate(reversed(ids)))
    return Address(host, LOWEST + spread % HOW_MANY, source, said[0])
