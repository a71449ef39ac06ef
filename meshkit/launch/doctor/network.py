"""What this machine says of its names and network interfaces. No torch; nothing waits for long."""

from __future__ import annotations

import ipaddress
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..spawn.worker import LOOPBACK

DEADLINE = 6.0  # seconds for one lookup; resolvers usually give up on a server after 5
SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface
IPV6_TABLE = Path("/proc/net/if_inet6")  # address, index, prefix, scope, flags, name


@dataclass(frozen=True)
class Answer:
    """What a lookup gave, and how long it took.

    Attributes:
        values: the addresses or names, in the resolver's order; empty where it failed.
        error: why it failed; empty where it did not.
        seconds: how long it took.
    """

    values: tuple[str, ...]
    error: str
    seconds: float


def timed(ask: Callable[[], Sequence[str]], deadline: float = DEADLINE) -> Answer:
    """The answer to a question that may block, or none within the deadline.

    It is asked in a daemon thread, which is left behind where it does not answer.

    Args:
        ask: the question; an OSError or UnicodeError is an answer too.
        deadline: seconds.

    Example:
        >>> timed(lambda: ["10.0.0.3"]).values
        ('10.0.0.3',)
        >>> timed(lambda: [time.sleep(0.2)], deadline=0.01).error
        'no answer within 0.01 s'
    """
    box: queue.SimpleQueue[tuple[tuple[str, ...], str]] = queue.SimpleQueue()

    def work() -> None:
        try:
            box.put((tuple(ask()), ""))
        except (OSError, UnicodeError) as error:
            box.put(((), str(error)))

    began = time.monotonic()
    threading.Thread(target=work, name="meshkit-lookup", daemon=True).start()
    try:
        values, error = box.get(timeout=deadline)
    except queue.Empty:
        values, error = (), f"no answer within {deadline:g} s"
    return Answer(values, error, time.monotonic() - began)


def addresses_of(host: str, deadline: float = DEADLINE) -> Answer:
    """The addresses of a host name, each once.

    Args:
        host: a name, or an address as text.
        deadline: seconds to wait.
    """

    def ask() -> list[str]:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(place[0]) for *_, place in found))

    return timed(ask, deadline)


def name_of(address: str, deadline: float = DEADLINE) -> Answer:
    """The name of an address, by a reverse lookup; the address itself where it has none.

    Args:
        address: IPv4 or IPv6, as text.
        deadline: seconds to wait.
    """
    return timed(lambda: [socket.getnameinfo((address, 0), 0)[0]], deadline)


def is_loopback(address: str) -> bool:
    """Whether no other machine can reach an address.

    Example:
        >>> is_loopback("127.0.1.1"), is_loopback("::1"), is_loopback("10.0.0.3")
        (True, True, False)
    """
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def is_local(address: str) -> bool:
    """Whether an address is this machine's own: whether a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def interfaces() -> dict[str, tuple[str, ...]]:
    """The network interfaces in the system's order, with the addresses that Linux tells of each.

    The first IPv4 address, and those of IPv6; elsewhere than on Linux none are told.
    """
    names = [name for _, name in socket.if_nameindex()]
    six = _ipv6_addresses()
    return {name: (*_ipv4_address(name), *six.get(name, ())) for name in names}


def carrier(address: str, found: Mapping[str, Collection[str]]) -> str | None:
    """The interface that has an address; None where none of them does.

    Args:
        address: IPv4 or IPv6, as text. Every loopback address is on the loopback interface.
        found: interface to its addresses.

    Example:
        >>> carrier("10.0.0.3", {"lo": ["127.0.0.1"], "eth0": ["10.0.0.3"]})
        'eth0'
    """
    if is_loopback(address) and LOOPBACK in found:
        return LOOPBACK
    return next((name for name, addresses in found.items() if address in addresses), None)


def wanted(pattern: str, names: Collection[str]) -> list[str]:
    """The interfaces that a value of NCCL_SOCKET_IFNAME picks.

    Args:
        pattern: names by comma, each perhaps with a port: those that start so; with ``=`` in
            front those that are called so; with ``^`` before that, all others. (NCCL's guide,
            under NCCL_SOCKET_IFNAME.)
        names: the interfaces there are.

    Example:
        >>> names = ["lo", "eth0", "eth1", "docker0"]
        >>> wanted("eth", names), wanted("=eth1", names), wanted("^docker,lo", names)
        (['eth0', 'eth1'], ['eth1'], ['eth0', 'eth1'])
    """
    others = pattern.startswith("^")
    rest = pattern.removeprefix("^")
    exact = rest.startswith("=")
    parts = [part.partition(":")[0] for part in rest.removeprefix("=").split(",") if part]

    def picked(name: str) -> bool:
        hits = (name == part if exact else name.startswith(part) for part in parts)
        return any(hits) != others

    return [name for name in names if picked(name)]


def nccl_choice(found: Mapping[str, Collection[str]]) -> list[str]:
    """The interfaces NCCL takes where NCCL_SOCKET_IFNAME is not set.

    InfiniBand's first, then whatever is neither a container's bridge nor the loopback, then those
    (``ncclFindInterfaces`` in NCCL's ``src/misc/socket.cc``). Only what has an address counts.

    Example:
        >>> nccl_choice({"lo": ["127.0.0.1"], "eth0": ["10.0.0.3"], "eth1": []})
        ['eth0']
    """
    names = [name for name, addresses in found.items() if addresses]
    order = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")
    return next(filter(None, (wanted(pattern, names) for pattern in order)), [])


def _ipv4_address(name: str) -> tuple[str, ...]:
    """The first IPv4 address of an interface, as the kernel has it."""
    if sys.platform != "linux":
        return ()
    import fcntl

    asked = struct.pack("256s", name.encode()[:15])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            told = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, asked)
    except OSError:  # it has none
        return ()
    return (socket.inet_ntoa(told[20:24]),)


def _ipv6_addresses() -> dict[str, tuple[str, ...]]:
    """Interface to its IPv6 addresses, from Linux's own table."""
    try:
        rows = [line.split() for line in IPV6_TABLE.read_text().splitlines()]
    except OSError:
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for row in rows:
        address = str(ipaddress.IPv6Address(bytes.fromhex(row[0])))
        found[row[-1]] = (*found.get(row[-1], ()), address)
    return found
