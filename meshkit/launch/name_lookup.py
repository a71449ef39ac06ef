"""The address of a store, the lookups of names that it makes, and how long these take here.

The process that hosts a store looks up the name of each client for its log, in the one thread that
serves all clients. It listens on IPv6 for both families, so that it looks up 127.0.0.1 as
``::ffff:127.0.0.1``, which ``/etc/hosts`` seldom holds. A name server that does not answer then
stalls the store for 5 or 10 s for each client.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from ipaddress import ip_address

from .times import Deadline, DeadlineExceededError, run_with_deadline
from .world import LOOPBACK_HOST

ANY_PORT = 9  # of a socket that sends nothing
NUMERIC = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV  # look up no name
PROBE_INTERVAL = 0.2  # seconds between two attempts to reach a host that does not answer yet
MAX_PROBE = 3.0  # seconds for one attempt: an address that drops packets must not hide the next one


def find_address(host: str, port: int, deadline: Deadline) -> str:
    """Return the address of a host; if it has several, the first one that takes a connection.

    torch's client tries one address of a name only. Each connection costs a lookup of a name at the
    host of the store, so a host with one address is not tried here.

    Raises:
        OSError: at the deadline, if the name has no address, or no address answers.
        UnicodeError: if no resolver accepts the name.
    """
    pause = PROBE_INTERVAL / 16
    while True:
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            names = [socket.getnameinfo(row[4], NUMERIC)[0] for row in rows]  # with its scope
            is_here = all(ip_address(name.partition("%")[0]).is_loopback for name in names)
            if is_here or len({*names}) == 1:  # a store listens on every loopback address
                return min(names, key=lambda name: ":" in name)
            timeout = min(max(deadline.left, PROBE_INTERVAL), MAX_PROBE)
            with socket.create_connection((host, port), timeout=timeout) as connection:
                return socket.getnameinfo(connection.getpeername(), NUMERIC)[0]
        except OSError as error:
            is_literal = isinstance(error, socket.gaierror) and ":" in host
            if is_literal or not deadline.sleep(pause):  # an address with an unknown interface
                raise
            pause = min(2 * pause, PROBE_INTERVAL)


def address_at_store(address: str) -> str:
    """Return an address of a client as the host of the store looks it up.

    Example:
        >>> address_at_store("10.0.0.3"), address_at_store("fd00::3")
        ('::ffff:10.0.0.3', 'fd00::3')
    """
    return address if ":" in address else f"::ffff:{address}"


def look_up_name(address: str) -> str:
    """Return the name of an address, as the host of the store looks it up. May block."""
    return socket.getnameinfo((address_at_store(address), 0), 0)[0]


def own_address(host: str) -> str:
    """Return the address by which this process reaches a host; the loopback's if unknown. Local."""
    with suppress(OSError, UnicodeError):
        rows = socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)
        for family, kind, _, _, peer in rows:
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(peer)  # sends nothing
                return str(probe.getsockname()[0])
    return LOOPBACK_HOST


def is_this_host(host: str) -> bool:
    """Return whether a host is this one, by an address beside the loopback. May block."""
    address = own_address(host)
    with suppress(OSError, UnicodeError):
        rows = socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)
        return any(row[4][0] == address for row in rows) and not ip_address(address).is_loopback
    return False


def describe_lookup(host: str, limit: float) -> tuple[bool, str]:
    """Return whether a lookup as the store makes it is slow here, and how long it took. Local."""
    address, began = LOOPBACK_HOST, time.monotonic()

    def look_up() -> None:
        nonlocal address
        address = own_address(host)
        with suppress(OSError):  # it has no name, and the answer came in time
            look_up_name(address)

    is_slow = False
    try:
        run_with_deadline(limit, look_up)
    except DeadlineExceededError:
        is_slow = True
    taken = f"more than {limit:g} s" if is_slow else f"{time.monotonic() - began:.2f} s"
    text = f"The host of a store looks up the name of each client: {address_at_store(address)}"
    return is_slow, f"{text} takes {taken} here."
