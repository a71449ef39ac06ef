"""The address of rank 0, derived from a launcher's variables when MASTER_ADDR is not set.

All ranks of a job read the same variables, so they derive the same host and port.
"""

from __future__ import annotations

import re
import sys
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from .variables import Env, Names, first_set, raise_invalid

MAX_HOSTS = 100_000  # of a list
PORT = 29500  # if nothing distinguishes two jobs on a host
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"  # the network interface
FIRST_PORT, NUM_PORTS = 12000, 20000  # below the range that Linux assigns by itself


class Endpoint(NamedTuple):
    """A host and a port, each with the variable it came from."""

    host: str
    port: int
    host_source: str
    port_source: str


class EndpointSource(Protocol):
    """A way to derive an endpoint from an environment."""

    def find(self, launcher: str, env: Env) -> Endpoint | None:
        """Return the endpoint, or None if the environment lacks the variables."""


class NodeList(NamedTuple):
    """The first host of a Slurm node list, which runs rank 0, with a port derived from the job."""

    hosts: Names
    job: Names

    def host_names(self, env: Env) -> list[str]:
        """Return all hosts of the list; empty if the list is missing or malformed."""
        from .hostlist import host_names

        name = first_set(self.hosts, env)
        try:
            return list(islice(host_names(env[name]), MAX_HOSTS)) if name else []
        except ValueError:
            return []

    def find(self, launcher: str, env: Env) -> Endpoint | None:
        """Return the endpoint on the first node."""
        name = first_set(self.hosts, env)
        # The list is sorted, but with this distribution a host file may put rank 0 on any host.
        if name is None or env.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
            return None
        from .hostlist import first_host

        try:
            return _with_job_port(first_host(env[name]), name, self.job, env)
        except ValueError as error:
            fault = f"{name}={env[name]!r} is not a list of nodes ({error})"
            fix = f"unset {name}, or export MASTER_ADDR=<host of rank 0> MASTER_PORT={PORT}."
            raise_invalid(launcher, {name: env[name]}, fault, fix=fix)


class RankFile(NamedTuple):
    """LSF's file of hosts, one line per slot. A first host with a single line is the batch host."""

    file: Names
    job: Names

    def find(self, launcher: str, env: Env) -> Endpoint | None:
        """Return the endpoint on the first host with ranks; None if the file is unreadable."""
        name = first_set(self.file, env)
        try:
            lines = Path(env[name]).read_text().split() if name else []
        except (OSError, ValueError):  # missing on this host, or not text
            return None
        hosts = list(dict.fromkeys(lines))
        if len(hosts) > 1 and lines.count(hosts[0]) == 1:
            del hosts[0]
        return _with_job_port(hosts[0], name, self.job, env) if hosts and name else None


class HeadNode(NamedTuple):
    """A variable that names the first node. A port in it belongs to another service."""

    node: str
    port: int

    def find(self, launcher: str, env: Env) -> Endpoint | None:
        """Return the endpoint on that node."""
        text = env.get(self.node, "").strip()
        with_port = re.fullmatch(r"(\[.*\]|[^:]*):\d*", text)  # a bare IPv6 address has no port
        host = with_port[1].strip("[]") if with_port else text
        return Endpoint(host, self.port, self.node, f"default of {launcher}") if host else None


def _with_job_port(host: str, source: str, job: Names, env: Env) -> Endpoint:
    """Return the endpoint on a host, with a port that differs between most jobs and steps."""
    names = [name for name in job if re.fullmatch(r"[0-9]{1,18}", env.get(name, ""))]
    if not names:
        return Endpoint(host, PORT, source, "default")
    ids = [int(env[name]) for name in names]
    spread = sum(number * 31**power for power, number in enumerate(reversed(ids)))
    return Endpoint(host, FIRST_PORT + spread % NUM_PORTS, source, names[0])
