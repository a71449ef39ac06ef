"""Host name lookups and network interfaces, each with a time limit. No torch."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..launchers.endpoint import LOOPBACK
from ..times import DeadlineExceededError, run_with_deadline

DEADLINE = 6.0  # seconds for one lookup; resolvers usually try a server for 5
SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface
IPV6_TABLE = Path("/proc/net/if_inet6")  # address, index, prefix, scope, flags, name

Interfaces = Mapping[str, Collection[str]]  # name to addresses


@dataclass(frozen=True)
class Lookup:
    """The result of a lookup."""

    values: tuple[str, ...]  # addresses or names, in the resolver's order; empty if it failed
    error: str  # reason of the failure; empty if it succeeded
    seconds: float


def lookup(query: Callable[[], Sequence[str]], deadline: float = DEADLINE) -> Lookup:
    """Run a query that may block and return its result, or an error after the deadline."""
    start = time.monotonic()
    values: Sequence[str] = ()
    error = ""
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

    return lookup(query, deadline)


def look_up_name(address: str, deadline: float = DEADLINE) -> Lookup:
    """Look up the name of an address; the result is the address itself if it has no name."""
    return lookup(lambda: [socket.getnameinfo((address, 0), 0)[0]], deadline)


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback, which no other machine can reach."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def is_local(address: str) -> bool:
    """Return whether an address belongs to this machine: a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def list_interfaces() -> dict[str, tuple[str, ...]]:
    """Return the network interfaces in the system's order, each with its addresses on Linux."""
    names = [name for _, name in socket.if_nameindex()]
    ipv6 = _ipv6_addresses()
    return {name: (*_ipv4_address(name), *ipv6.get(name, ())) for name in names}


def interface_of(address: str, interfaces: Interfaces) -> str | None:
    """Return the interface that has an address, or None."""
    if is_loopback(address) and LOOPBACK in interfaces:
        return LOOPBACK
    return next((name for name, addresses in interfaces.items() if address in addresses), None)


def match_interfaces(pattern: str, names: Collection[str]) -> list[str]:
    """Return the interfaces that a value of NCCL_SOCKET_IFNAME selects."""
    inverted = pattern.startswith("^")
    listed = pattern.removeprefix("^")
    exact = listed.startswith("=")
    parts = [part.partition(":")[0] for part in listed.removeprefix("=").split(",") if part]

    def selected(name: str) -> bool:
        hits = (name == part if exact else name.startswith(part) for part in parts)
        return any(hits) != inverted

    return [name for name in names if selected(name)]


def default_nccl_interfaces(interfaces: Interfaces) -> list[str]:
    """Return the interfaces that NCCL uses if NCCL_SOCKET_IFNAME is not set.

    NCCL prefers InfiniBand, then any interface but container bridges and the loopback, then
    these. Interfaces without an address are skipped. (Source: ``ncclFindInterfaces`` in NCCL's
    ``src/misc/socket.cc``.)
    """
    names = [name for name, addresses in interfaces.items() if addresses]
    order = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")
    return next(filter(None, (match_interfaces(pattern, names) for pattern in order)), [])


def _ipv4_address(name: str) -> tuple[str, ...]:
    """Return the first IPv4 address of an interface from the kernel; empty if it has none."""
    if sys.platform != "linux":
        return ()
    import fcntl

    request = struct.pack("256s", name.encode()[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
    except OSError:  # no address
        return ()
    return (socket.inet_ntoa(reply[20:24]),)


def _ipv6_addresses() -> dict[str, tuple[str, ...]]:
    """Return interface name to IPv6 addresses, from Linux's table."""
    try:
        rows = [line.split() for line in IPV6_TABLE.read_text().splitlines()]
    except OSError:
        return {}
    addresses: dict[str, tuple[str, ...]] = {}
    for number, *_, name in rows:
        address = str(ipaddress.IPv6Address(bytes.fromhex(number)))
        addresses[name] = (*addresses.get(name, ()), address)
    return addresses
