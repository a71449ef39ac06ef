"""Environment variables read as numbers and text, with errors that name the variable.

Hostlists and task lists in Slurm's compressed format.

::

    rack[1-2]node[3-4],login1   rack1node3 rack1node4 rack2node3 rack2node4 login1
    n[09-11]                    n09 n10 n11
    n[0-6:2]                    n0 n2 n4 n6
    2(x3),1                     2 2 2 1

The address of rank 0, derived from a launcher's variables when MASTER_ADDR is not set.

All ranks of a job read the same variables, so they derive the same host and port.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

from ..core.errors import LaunchError

Env = Mapping[str, str]
COMPLETED = "MESHKIT_COMPLETED"  # the variables that init has added, see completed.py
Names = tuple[str, ...]  # the variables that may hold one field; the first one set is used


def first_set(names: Names, env: Env) -> str | None:
    """Return the first of the names that is set, or None."""
    return next((name for name in names if name in env), None)


def first_value(names: Names, env: Env) -> str | None:
    """Return the value of the first of the names that is set, or None."""
    return env.get(first_set(names, env) or "")


def read_int(
    launcher: str,
    names: Names,
    env: Env,
    *,
    least: int = 0,
    most: int | None = None,
    optional: bool = False,
) -> tuple[int, str] | None:
    """Return a variable as an int from ``least`` to ``most``, and its name."""
    name = first_set(names, env)
    if name is None and optional:
        return None
    text = None if name is None else env[name]
    digits = text is not None and re.fullmatch(r"\s*[0-9]{1,18}\s*", text)
    value = int(text) if text is not None and digits else -1
    if value >= least and (most is None or value <= most):
        return value, name or ""
    span = f"{least} or more" if most is None else f"{least} to {most}"
    fault = f"{' or '.join(names)} is not set" if text is None else f"{name}={text!r} is not {span}"
    example = least if most is None else 29500
    raise_invalid(
        launcher,
        dict.fromkeys(names) if name is None else {name: text},
        fault,
        fix=f"export {name or names[-1]}={example}, or the right number.",
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


def raise_conflict(launcher: str, env: Env, first: str, second: str, fault: str) -> NoReturn:
    """Raise the error of two variables that contradict each other."""
    values = {name: env.get(name) for name in (first, second)}
    passed = any(name.startswith("argument ") for name in values)
    raise LaunchError(
        f"{first}={values[first]} {fault}={values[second]}.",
        f"Both were read for the launcher {launcher}.",
        fix=f"{'pass' if passed else 'export'} {first} and {second} so that they agree.",
        variables=values,
    )


MAX_NODES = 10**7  # nodes of one part of a list; larger than any machine
_NAME = re.compile(r"(?:[^\[\],]|\[[^\[\]]*\])+")  # up to a comma outside brackets
_BRACKET = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?")
_TASKS = re.compile(r"([0-9]{1,18})(?:\(x([0-9]{1,18})\))?")


def host_names(text: str) -> Iterator[str]:
    """Yield the hosts of a Slurm node list, in order.

    The format is that of ``scontrol show hostnames``. Several brackets in a name vary like nested
    loops, the last one fastest. (With three brackets or more, scontrol uses another order with the
    same first host.) The start of a range sets the number of digits. Steps such as ``n[0-6:2]``
    are supported. Pure.

    Example:
        >>> list(host_names("rack[1-2]node[3-4],login1"))
        ['rack1node3', 'rack1node4', 'rack2node3', 'rack2node4', 'login1']
    """
    for name in _names(text):
        yield from _expanded(name)


def first_host(text: str) -> str:
    """Return the first host of a node list."""
    name = next(_names(text), None)
    if name is None:
        raise ValueError("no hosts")
    return _BRACKET.sub(lambda part: _bounds(part[1].partition(",")[0])[0], name)


def task_counts(text: str) -> list[int]:
    """Return the number of tasks on each node."""
    counts: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        if match is None or not 0 < int(match[2] or 1) <= MAX_NODES:
            raise ValueError(f"not a list of tasks: {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _names(text: str) -> Iterator[str]:
    """Yield the names of a list with their brackets; skip empty names, as scontrol does."""
    start = 0
    while start < len(text):
        match = _NAME.match(text, start)
        end = match.end() if match else start
        if text[end : end + 1] not in ("", ","):
            raise ValueError(f"not a node list: {text!r}")
        if match and match.group().strip():
            yield match.group().strip()
        start = end + 1


def _expanded(name: str) -> Iterator[str]:
    """Expand ``n[1-2]m[3-4]`` to n1m3 n1m4 n2m3 n2m4."""
    parts = _BRACKET.split(name)  # text, range, text, range, ..., text
    ranges = [_numbers(part) for part in parts[1::2]]
    for numbers in product(*ranges):
        middle = "".join(number + text for number, text in zip(numbers, parts[2::2], strict=True))
        yield parts[0] + middle


def _numbers(text: str) -> list[str]:
    """Expand ``"09-11,20"`` to 09 10 11 20."""
    numbers: list[str] = []
    for part in text.split(","):
        first, last, step = _bounds(part)
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1, step)]
    return numbers


def _bounds(part: str) -> tuple[str, str, int]:
    """Return first, last and step of a range."""
    match = _RANGE.fullmatch(part.strip())
    if match is None or match[3] == "0" or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(f"not a range: {part!r}")
    return match[1], match[2] or match[1], int(match[3] or 1)


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
