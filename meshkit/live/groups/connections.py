"""Close the connections of a gloo group, so that the other ranks stop waiting for this one.

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

    Args:
        addresses: the address of this rank in each group, as gloo has posted it in a store.

    Cost: two reads of /proc for each descriptor of this process.
    """
    num_groups = 0
    for members in _epoll_sets():
        sockets = [member for member in members if _target(member).startswith("socket:")]
        has_pipe = any(_target(member).startswith("pipe:") for member in members)
        others = len(members) - len(sockets) - has_pipe
        if has_pipe and not others and any(_listens_at(s, addresses) for s in sockets):
            num_groups += 1
            for descriptor in sockets:
                _shut(descriptor)
    return num_groups


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
