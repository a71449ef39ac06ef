"""Close the connections of gloo groups, in a rank that gives up and in a forked process.

gloo closes them with the last reference to a group, and ``abort`` does nothing. References often
stay: in variables of the user, and in the frames of an error. Each gloo group has an epoll set of
its own: a pipe, one socket that listens, and one socket for each other rank. Linux lists the
members of an epoll set, and each rank posts the address that it listens at in the group's store.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/proc/self/fd")


def close_connections(addresses: Sequence[bytes]) -> int:
    """Close the connections of gloo groups; return how many groups had some. Local.

    Cost: two reads of /proc for each descriptor of this process.
    """
    num_groups = 0
    for sockets in _gloo_sockets():
        if any(_listens_at(member, addresses) for member in sockets):
            num_groups += 1
            for member in sockets:
                _shut(member)
    return num_groups


def drop_connections(port: int | None) -> None:
    """Drop what a forked process has inherited of gloo's connections and of those at a port. Local.

    A connection ends when the last process that has it ends. If a rank is killed, the other ranks
    would wait for its forked child. Each descriptor then refers to /dev/null, as gloo and the store
    may still close its number.

    Cost: three reads of /proc for each descriptor.
    """
    dropped = [member for sockets in _gloo_sockets() for member in sockets]
    with suppress(OSError):
        names = map(int, os.listdir(FOLDER))
        dropped += [n for n in names if _target(n).startswith("socket:") and _has_port(n, port)]
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in dropped:
        with suppress(OSError):
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def _has_port(descriptor: int, port: int | None) -> bool:
    """Return whether one end of a socket has the port."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            ends = [connection.getsockname()[1]]
            with suppress(OSError):
                ends.append(connection.getpeername()[1])
            return port in ends
    return False


def _gloo_sockets() -> Iterator[list[int]]:
    """Yield the sockets of each gloo group: an epoll set of sockets and one pipe."""
    for members in [*_epoll_sets()]:
        sockets = [member for member in members if _target(member).startswith("socket:")]
        has_pipe = any(_target(member).startswith("pipe:") for member in members)
        if has_pipe and len(members) == len(sockets) + 1:
            yield sockets


def _epoll_sets() -> Iterator[list[int]]:
    """Yield the members of each epoll set of this process."""
    with suppress(OSError):
        for name in os.listdir(FOLDER):
            if _target(int(name)) == "anon_inode:[eventpoll]":
                yield _members(int(name))


def _members(descriptor: int) -> list[int]:
    """Return the descriptors in an epoll set; none if it has been closed meanwhile."""
    try:
        text = Path("/proc/self/fdinfo", str(descriptor)).read_text()
    except OSError:
        return []
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith("tfd:")]


def _target(descriptor: int) -> str:
    try:
        return os.readlink(FOLDER / str(descriptor))
    except OSError:
        return ""


def _listens_at(descriptor: int, addresses: Sequence[bytes]) -> bool:
    """Return whether a socket listens at one of the addresses."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as listener:
        if listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            family, port = listener.family, listener.getsockname()[1]
            head = struct.pack("=H", family) + struct.pack("!H", port)  # of a sockaddr
            return any(head in address for address in addresses)
    return False


def _shut(descriptor: int) -> None:
    """End a connection in both directions. gloo closes the descriptor itself."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            connection.shutdown(socket.SHUT_RDWR)
