"""The connection of this process to the host of a store, as the kernel knows it.

torch prints a stack trace if it writes to a store whose host has left. Ranks of a good run end in
any order, so an operation looks first whether the host has closed its end. The kernel knows that
without a message. It is asked without a socket of Python, which would set the default timeout of
sockets on torch's connection.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import sys
from contextlib import suppress
from typing import Any

DESCRIPTORS = "/proc/self/fd"  # on Linux
MAX_ADDRESS = 128  # bytes of a socket address: its family, the port if it is of IP, and the host
UNKNOWN = -1, 0  # a descriptor, and the inode of its socket


class Connection:
    """The first connection of this process to the port of a TCPStore, if it has one."""

    def __init__(self, root: Any) -> None:  # noqa: ANN401  # a store of any class
        while hasattr(root, "underlying_store"):
            root = root.underlying_store
        self.port = int(getattr(root, "port", 0))
        self._known: tuple[int, int] | None = None

    def has_ended(self) -> bool:
        """Return whether the host has closed the connection; False if unknown. Local."""
        if not self.port or sys.platform != "linux":
            return False
        if self._known is None:
            self._known = self._find()
        descriptor, inode = self._known
        return _inode(descriptor) == inode and _has_ended(descriptor)  # else it is another one

    def _find(self) -> tuple[int, int]:
        """Return the descriptor of the connection, which has not ended, and its inode."""
        with suppress(OSError):
            for descriptor in sorted(map(int, os.listdir(DESCRIPTORS))):
                inode = _inode(descriptor)
                if inode and _peer_port(descriptor) == self.port and not _has_ended(descriptor):
                    return descriptor, inode
        return UNKNOWN


def _inode(descriptor: int) -> int | None:
    """Return the inode of a descriptor; None if it is not open."""
    with suppress(OSError):
        return os.fstat(descriptor).st_ino
    return None


def _has_ended(descriptor: int) -> bool:
    """Return whether the other end of a connection is closed. Takes no byte, and does not wait."""
    poll, ended = select.poll(), select.POLLRDHUP | select.POLLHUP | select.POLLERR
    poll.register(descriptor, ended)
    return any(event & ended for _, event in poll.poll(0))


def _peer_port(descriptor: int) -> int | None:
    """Return the port to which a socket of IP is connected; None for anything else."""
    peer, size = ctypes.create_string_buffer(MAX_ADDRESS), ctypes.c_uint(MAX_ADDRESS)
    if ctypes.CDLL(None).getpeername(descriptor, peer, ctypes.byref(size)):
        return None
    is_ip = int.from_bytes(peer.raw[:2], sys.byteorder) in (socket.AF_INET, socket.AF_INET6)
    return int.from_bytes(peer.raw[2:4], "big") if is_ip else None
