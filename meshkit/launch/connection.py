"""The connection of this process to the host of a store, as the kernel knows it.

torch prints a stack trace if it writes to a store whose host has left. Ranks of a good run end in
any order, so an operation looks first whether the host has closed its end. The kernel knows that
without a message.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress
from typing import Any

DESCRIPTORS = "/proc/self/fd"  # on Linux
LOOK = socket.MSG_PEEK | socket.MSG_DONTWAIT  # takes no byte, and waits for none


class Connection:
    """The first connection of this process to the port of a TCPStore, if it has one."""

    def __init__(self, root: Any) -> None:  # noqa: ANN401  # a store of any class
        while hasattr(root, "underlying_store"):
            root = root.underlying_store
        self.port = int(getattr(root, "port", 0))
        self.descriptor = -1

    def has_ended(self) -> bool:
        """Return whether the host has closed the connection; False if unknown. Local."""
        if not self.port:
            return False
        state = _look(self.descriptor, self.port, is_known=True)
        if state is None:
            self.descriptor = self._find()
            state = _look(self.descriptor, self.port)
        return bool(state)

    def _find(self) -> int:
        """Return the descriptor of the connection, or -1."""
        with suppress(OSError):
            for number in sorted(map(int, os.listdir(DESCRIPTORS))):
                if _look(number, self.port) is not None:
                    return number
        return -1


def _look(descriptor: int, port: int, *, is_known: bool = False) -> bool | None:
    """Return whether the other end of a connection to a port is closed; None for anything else.

    A connection that was reset has no address any more: then it must be known.
    """
    try:
        if descriptor < 0 or not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            if connection.getpeername()[1] != port:
                return None
            return connection.recv(1, LOOK) == b""
    except BlockingIOError:  # it is open, and there is nothing to read
        return False
    except OSError as error:
        is_reset = error.errno == errno.ECONNRESET or (is_known and error.errno == errno.ENOTCONN)
        return True if is_reset else None
