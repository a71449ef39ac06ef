"""Launcher variables read as numbers and text, and the address of rank 0 derived from them.

All ranks of a job read the same variables, so they derive the same host and port if MASTER_ADDR is
not set. Each error names the variable.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple, NoReturn

from ..errors import LaunchError
from .slurm import first_host, host_names

Env = Mapping[str, str]
Names = tuple[str, ...]  # the variables that may hold one field; the first one set is used

MAX_HOSTS = 100_000  # of a list
PORT = 29500  # if nothing distinguishes two jobs on a host
FIRST_PORT, NUM_PORTS = 12000, 20000  # below the range that Linux assigns by itself
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"  # the network interface


def is_digits(text: str) -> bool:
    """Return whether a text is a number of 1 to 18 ASCII digits."""
    return re.fullmatch("[0-9]{1,18}", text) is not None


def as_number(value: object) -> object:
    """Return the int that a variable states, to compare it; another value as it is.

    Example:
        >>> as_number(" 01"), as_number("1x"), as_number(None)
        (1, '1x', None)
    """
    is_number = isinstance(value, str) and is_digits(value.strip())
    return int(str(value)) if is_number else value


def first_set(names: Names, env: Env) -> str | None:
    """Return the first of the names that is set, or None."""
    return next((name for name in names if name in env), None)


def first_value(names: Names, env: Env) -> str | None:
    """Return the value of the first of the names that is set, or None."""
    return env.get(first_set(names, env) or "")


COUNTS = ("world_size", "local_world_size", "num_nodes", "master_port")  # at least 1, indices 0
MEANING = {  # what an error asks for in place of the value of a field
    "rank": "<the rank of this process>, another one on each",
    "world_size": "<the number of ranks>, the same on all",
    "local_rank": "<the index of this rank on its node>, or unset it",
    "local_world_size": "<the number of ranks on this node>, or unset it",
    "node_rank": "<the index of this node>, or unset it",
    "num_nodes": "<the number of nodes>, or unset it",
    "master_port": f"{PORT}, the same on all ranks",
}


def read_int(launcher: str, names: Names, env: Env, field: str) -> tuple[int, str]:
    """Return the variable of a field as an int, and its name."""
    name = first_set(names, env)
    text = None if name is None else env[name]
    value = int(text) if text is not None and is_digits(text.strip()) else -1
    least, most = int(field in COUNTS), 65535 if field == "master_port" else None
    if value >= least and (most is None or value <= most):
        return value, name or ""
    span = f"{least} or more" if most is None else f"{least} to {most}"
    fault = f"{' or '.join(names)} is not set" if text is None else f"{name}={text!r} is not {span}"
    raise_invalid(
        launcher,
        dict.fromkeys(names) if name is None else {name: text},
        fault,
        fix=f"export {name or names[0]}={MEANING[field]}.",
    )


def read_text(launcher: str, names: Names, env: Env) -> tuple[str, str] | None:
    """Return a variable without surrounding blanks, and its name; None if it is not set."""
    name = first_set(names, env)
    if name is None:
        return None
    if not env[name].strip():
        fix = f"export {name}=<value>, or unset {name}."
        raise_invalid(launcher, {name: env[name]}, f"{name} is empty", fix=fix)
    return env[name].strip(), name


def raise_invalid(
    launcher: str, variables: Mapping[str, str | None], fault: str, *, fix: str
) -> NoReturn:
    """Raise the error of a recognised launcher whose variables are invalid."""
    line = f"the launcher {launcher} was recognised, but {fault}."
    raise LaunchError(line, fix=fix, variables=dict(variables))


def raise_conflict(
    launcher: str, env: Env, first: str, second: str, fault: str, *, fix: str = ""
) -> NoReturn:
    """Raise the error of two variables that contradict each other."""
    values = {name: env.get(name) for name in (first, second)}
    short = [name.removeprefix("argument ") for name in values]
    passed = [name for name in short if name not in values]
    advice = f"{'pass' if passed else 'export'} {' and '.join(short)} so that they agree."
    if len(passed) == 1:
        advice = f"another {passed[0]}, or pass rank= and world_size= both, so that they agree."
    raise LaunchError(
        f"{first}={values[first]} {fault}={values[second]}.",
        f"Both were read for the launcher {launcher}.",
        fix=fix or advice,
        variables=values,
    )


class Endpoint(NamedTuple):
    """A host and a port, each with the variable it came from."""

    host: str
    port: int
    host_source: str
    port_source: str


class NodeList(NamedTuple):
    """The first host of a Slurm node list, which runs rank 0, with a port derived from the job."""

    hosts: Names
    job: Names

    def host_names(self, env: Env) -> list[str]:
        """Return all hosts of the list; empty if the list is missing or malformed."""
        try:
            return list(islice(host_names(first_value(self.hosts, env) or ""), MAX_HOSTS))
        except ValueError:
            return []

    def find(self, launcher: str, env: Env) -> Endpoint | None:
        """Return the endpoint on the first node, or None without a list."""
        name = first_set(self.hosts, env)
        # The list is sorted, but with this distribution a host file may put rank 0 on any host.
        if name is None or env.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
            return None
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
        """Return the endpoint on that node, or None if the variable names none."""
        text = env.get(self.node, "").strip()
        with_port = re.fullmatch(r"(\[.*\]|[^:]*):\d*", text)  # a bare IPv6 address has no port
        host = with_port[1].strip("[]") if with_port else text
        return Endpoint(host, self.port, self.node, f"default of {launcher}") if host else None


EndpointSource = NodeList | RankFile | HeadNode


def _with_job_port(host: str, source: str, job: Names, env: Env) -> Endpoint:
    """Return the endpoint on a host, with a port that differs between most jobs and steps."""
    names = [name for name in job if is_digits(env.get(name, "").strip())]
    if not names:
        return Endpoint(host, PORT, source, "default")
    spread = 0
    for name in names:
        spread = 31 * spread + int(env[name])
    return Endpoint(host, FIRST_PORT + spread % NUM_PORTS, source, names[0])
