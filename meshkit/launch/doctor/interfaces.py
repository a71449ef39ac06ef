"""Checks for jobs of several machines: host names that resolve, interfaces that exist."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..launchers.variables import Env
from ..launchers.world import World
from ..times import DeadlineExceededError, run_with_deadline
from .finding import Finding

DEADLINE = 6.0  # seconds for one lookup; resolvers usually try a server for 5
SLOW = 1.0  # seconds; a longer lookup delays every connection noticeably


@dataclass(frozen=True)
class Lookup:
    """The result of a lookup."""

    values: tuple[str, ...]  # addresses or names, in the resolver's order; empty if it failed
    error: str  # reason of the failure; empty if it succeeded
    seconds: float


def check_interfaces(world: World | None, env: Env, deadline: float = DEADLINE) -> list[Finding]:
    """Check the names of this host and of the master, and the variables of gloo and NCCL."""
    host = socket.gethostname()
    addresses = look_up_addresses(host, deadline)
    findings = [check_host_name(host, addresses, world, env)]
    if addresses.values:
        findings.append(check_reverse_name(host, addresses.values[0], deadline))
    master = world.master_addr if world is not None else None
    if master and master != host:
        findings.append(check_lookup("master host", master, look_up_addresses(master, deadline)))
    names = [name for _, name in socket.if_nameindex()]
    return [*findings, *(check_variable(name, env, names) for name in ("gloo", "nccl"))]


def look_up(query: Callable[[], Sequence[str]], deadline: float = DEADLINE) -> Lookup:
    """Run a query that may block and return its result, or an error after the deadline."""
    start, error = time.monotonic(), ""
    values: Sequence[str] = ()
    try:
        values = run_with_deadline(deadline, query)
    except DeadlineExceededError:
        error = f"no answer within {deadline:g} s"
    except (OSError, UnicodeError) as failure:
        error = str(failure)
    return Lookup(tuple(values), error, time.monotonic() - start)


def look_up_addresses(host: str, deadline: float = DEADLINE) -> Lookup:
    """Look up the addresses of a host name, each once."""

    def query() -> list[str]:
        entries = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in entries))

    return look_up(query, deadline)


def check_host_name(host: str, lookup: Lookup, world: World | None, env: Env) -> Finding:
    """Check that this machine's name has an address that other nodes can reach."""
    finding = check_lookup("host name", host, lookup)
    address = lookup.values[0].partition("%")[0] if lookup.values else "0.0.0.0"
    one_node = world is None or world.local_world_size in (None, world.world_size)
    is_reachable = not ipaddress.ip_address(address).is_loopback or env.get("GLOO_SOCKET_IFNAME")
    if one_node or is_reachable:
        return finding
    text = f"{finding.found}\nno other node can reach that address"
    advice = f"export GLOO_SOCKET_IFNAME=<interface>, or correct the line of {host} in /etc/hosts."
    return Finding("host name", False, text, advice)


def check_lookup(name: str, host: str, lookup: Lookup) -> Finding:
    """Check that a host name has addresses and that its lookup was fast."""
    state = f"is {', '.join(lookup.values)}" if lookup.values else f"has no address: {lookup.error}"
    ok = bool(lookup.values) and lookup.seconds <= SLOW
    address = lookup.values[0] if lookup.values else "<address>"
    advice = f"echo '{address} {host}' >> /etc/hosts, or repair the DNS of this node."
    return Finding(name, ok, f"{host} {state} ({lookup.seconds:.2f} s)", "" if ok else advice)


def check_reverse_name(host: str, address: str, deadline: float = DEADLINE) -> Finding:
    """Check that the reverse lookup of an address is fast, whether or not it finds a name.

    torch's TCPStore looks up the name of each client that connects, and waits for the result.
    """
    lookup = look_up(lambda: [socket.getnameinfo((address, 0), 0)[0]], deadline)
    text = f"{address} is {lookup.values[0]}" if lookup.values else f"{address}: {lookup.error}"
    ok = lookup.seconds <= SLOW
    advice = f"echo '{address} {host}' >> /etc/hosts on every node: torch's store waits for it."
    found = f"{text} ({lookup.seconds:.2f} s)"
    return Finding("reverse name", ok, found, "" if ok else advice)


def check_variable(backend: str, env: Env, available: Sequence[str]) -> Finding:
    """Check that the interfaces in GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME exist.

    NCCL also takes the beginning of a name, ``=name``, ``name:port``, and with ``^`` what it must
    not use.
    """
    variable = f"{backend.upper()}_SOCKET_IFNAME"
    value = env.get(variable, "")
    if not value:
        text = f"{variable} is not set; this machine has {', '.join(available)}"
        return Finding(f"{backend} interface", True, text)
    parts = [part.lstrip("=").partition(":")[0] for part in value.split(",")]
    by_start = backend == "nccl" and "=" not in value
    known = [name[: len(part)] if by_start else name for part in parts for name in available]
    missing = [] if value.startswith("^") else [part for part in parts if part not in known]
    text = f"{variable}={value}"
    if missing:
        text += f", but this machine has no {', '.join(missing)}"
        advice = f"export {variable}=<one of {', '.join(available)}>"
        return Finding(f"{backend} interface", False, text, advice)
    return Finding(f"{backend} interface", True, text)
