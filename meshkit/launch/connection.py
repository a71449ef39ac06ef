"""The connection of this process to the host of a store, as the kernel knows it.

torch prints a stack trace if it writes to a store whose host has left. Ranks of a good run end in
any order, so an operation looks first whether the host has closed its end. The kernel knows that
without a message. It is asked without a socket of Python, which would set the default timeout of
sockets on torch's connection.

An operation that the host has not answered when it ends prints a trace too. So a host that exits
closes its connections while its server still runs, and all its clients see the end before their
next operation. A host that is killed cannot, nor reaches this an operation that is just on its way.

Before version 3.14, Python ends a thread that returns from torch while the interpreter ends. C++
then aborts the process: "terminate called without an active exception". So a process that exits
drops the answer that a store still owes it, and the thread waits until the process is gone.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import select
import socket
import struct
import sys
import time
import weakref
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from .times import Deadline, running

DESCRIPTORS = "/proc/self/fd"  # on Linux
MAX_ADDRESS = 128  # bytes of a socket address: its family, the port if it is of IP, and the host
UNKNOWN = -1, 0  # a descriptor, and the inode of its socket
ANSWERED = 16  # looks, 0.5 ms apart, after which the last question of a client has its answer
LAST_ANSWERS = 0.2  # seconds in which a host that ends answers what its clients have asked
SO_ATTACH_FILTER = 26  # the kernel's number of an option that Python lacks
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)  # a socket filter: return 0, the bytes to keep
LAST_TAKEN = 0.05  # seconds in which a thread takes an answer that is here already
LIBC = ctypes.CDLL(None)


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
                is_own = inode and _port(descriptor, LIBC.getpeername) == self.port
                if inode and is_own and not _has_ended(descriptor):
                    return descriptor, inode
        return UNKNOWN


def _inode(descriptor: int) -> int | None:
    """Return the inode of a descriptor; None if it is not open."""
    with suppress(OSError):
        return os.fstat(descriptor).st_ino
    return None


def _has_ended(descriptor: int) -> bool:
    """Return whether the other end of a connection is closed. Takes no byte, and does not wait."""
    return _sees(descriptor, select.POLLRDHUP | select.POLLHUP | select.POLLERR)


def _sees(descriptor: int, events: int) -> bool:
    """Return whether the kernel reports one of some events of a descriptor. Does not wait."""
    poll = select.poll()
    poll.register(descriptor, events)
    return any(event & events for _, event in poll.poll(0))


def _port(descriptor: int, end: Any) -> int | None:  # noqa: ANN401  # a function of the C library
    """Return the port of one end of a socket of IP; None if it has none, or for anything else."""
    address, size = ctypes.create_string_buffer(MAX_ADDRESS), ctypes.c_uint(MAX_ADDRESS)
    if end(descriptor, address, ctypes.byref(size)):
        return None
    is_ip = int.from_bytes(address.raw[:2], sys.byteorder) in (socket.AF_INET, socket.AF_INET6)
    return int.from_bytes(address.raw[2:4], "big") if is_ip else None


def end_at_exit(store: dist.TCPStore, *, is_host: bool) -> None:
    """Drop late answers of a store, and as its host close all connections, at exit. Local."""
    hosted, port, pid = weakref.ref(store), store.port, os.getpid()

    def end() -> None:
        if os.getpid() != pid:  # a forked child has the same connections
            return
        if running:
            drop_answers(port)
        if is_host and hosted() is not None:
            close_connections(port)

    atexit.register(end)


def drop_answers(port: int) -> None:
    """Let nothing more arrive at the clients of this process to a port of any host. Local."""
    if sys.platform != "linux":
        return
    instruction = ctypes.create_string_buffer(DROP_ALL, len(DROP_ALL))
    program = struct.pack("HP", 1, ctypes.addressof(instruction))  # of one instruction
    for descriptor in map(int, os.listdir(DESCRIPTORS)):
        if _port(descriptor, LIBC.getpeername) == port:
            LIBC.setsockopt(descriptor, socket.SOL_SOCKET, SO_ATTACH_FILTER, program, len(program))
    time.sleep(LAST_TAKEN)


def close_connections(port: int) -> None:
    """Close the connections of all clients to a port of this process, once they are answered."""
    if sys.platform != "linux":
        return
    looks = {  # of each client: how many in a row without a question
        descriptor: 0
        for descriptor in map(int, os.listdir(DESCRIPTORS))
        if _port(descriptor, LIBC.getsockname) == port and _port(descriptor, LIBC.getpeername)
    }
    deadline = Deadline.after(LAST_ANSWERS)
    while looks:
        is_last = not deadline.sleep(0.0005)
        for client in [*looks]:
            looks[client] = 0 if _sees(client, select.POLLIN) else looks[client] + 1
            if looks[client] >= ANSWERED or is_last:
                LIBC.shutdown(client, socket.SHUT_RDWR)
                del looks[client]
