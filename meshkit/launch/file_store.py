"""Guard the file of torch's FileStore against a full disk, and against its removal by other ranks.

torch appends each write to the file, as four parts: length and bytes of the key, then length and
bytes of the value. A key that is written twice stands there twice, and the last value counts::

    | 9 | refcount/ | 1 | 1 | 4 | seed | 2 | 42 | 9 | refcount/ | 1 | 2 | ...

Two dangers follow:

1. A full disk. The file then ends inside a key or value. Each rank that reads such a file reads for
   ever and holds Python's lock, also in the destructor of the store. :func:`reserve_room` therefore
   reserves blocks before the first use, and :func:`check_file` looks at the file before each round
   and while ranks wait.
2. A removal at the wrong moment. ``refcount/`` is the number of users of the file. The last user
   sets the number to 0 and then removes the file. A rank that opens the file between these two
   waits in a file that no other rank finds::

       last user    number 0 ................ remove
       this rank              open, number 1          waits alone

   The order of the numbers in the file shows that, so :func:`open_file` opens the next file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..errors import LaunchError, RankTimeoutError
from .times import Deadline

KEEP_SIZE = 1  # of fallocate in Linux: reserve blocks behind the end of the file
BASE_BYTES, BYTES_PER_RANK = 2**18, 2**14  # of the keys of a start and of some meshes
MOST_BYTES = 2**26
LEAST_BYTES = 2**14  # free bytes below which no rank writes any more
REMOVAL_TIME = 1.0  # seconds in which the last user removes the file, on a busy machine
LOOK = 0.01  # seconds between two looks at the file
# Seconds without a new key after which a file that ends inside a key counts as truncated. A write
# of torch takes microseconds, but a busy machine may stop a writer for half a second. A client of
# NFS may show an old size for as long.
STILL = 3.0
# torch writes a key and a value each as its length in four bytes, and then its bytes.
CLOSED = struct.pack("=I", 8) + b"cleanup/"  # the key of the number of users that have left
USERS = struct.pack("=I", 9) + b"refcount/"  # the key of the number of users
NO_USER = USERS + struct.pack("=I", 1) + b"0"

_sizes: dict[str, int] = {}  # path to the largest size that this process has seen


def reserve_room(path: str, world_size: int) -> None:
    """Reserve the bytes that a job needs in the file of its store; the size stays. Local."""
    size = min(MOST_BYTES, BASE_BYTES + BYTES_PER_RANK * world_size)
    _sizes.pop(path, None)
    with suppress(PermissionError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            number = _fallocate(descriptor, size)
        finally:
            os.close(descriptor)
        if number == errno.ENOSPC or (number and _free_bytes(path) < size):
            raise _no_room_error(path)


def open_file(path: str, users: int, world_size: int, seconds: float) -> dist.FileStore:
    """Return a FileStore for so many users, in a file that no other process is removing."""
    end = time.monotonic() + seconds
    while True:
        with open(path, "a+b") as file:  # while it is open, no new file has its inode
            store = dist.FileStore(path, users)
            status = os.fstat(file.fileno())
            content = os.pread(file.fileno(), status.st_size, 0)
            if status.st_nlink and NO_USER not in content:
                return store
            before, _, after = content.rpartition(NO_USER)
            if USERS not in after:  # the file was gone before torch opened it, and made a new one
                return store
            if not _is_removed(file.fileno(), before, world_size) or time.monotonic() > end:
                return store
        _never_destroy(store)  # its destructor would count down in the next file


def _is_removed(descriptor: int, before: bytes, world_size: int) -> bool:
    """Return whether a file is gone whose content ``before`` ends with its last user."""
    closed, begin = 0, before.rfind(CLOSED) + len(CLOSED)
    if CLOSED in before:
        length = int(struct.unpack_from("=I", before, begin)[0])
        closed = int(before[begin + 4 : begin + 4 + length])
    end = time.monotonic() + (REMOVAL_TIME if closed >= world_size else 0)
    while (exists := os.fstat(descriptor).st_nlink > 0) and time.monotonic() < end:
        time.sleep(LOOK)
    return not exists


def is_store(path: Path) -> bool:
    """Return whether torch can open a file as a store. An empty or a missing file is a store.

    A file that seems truncated is read again, as some rank may be writing. Without torch's lock: a
    store that Python's collector destroys meanwhile would wait for it, and hold Python's.
    """
    with suppress(OSError):
        end, has_more = _skip_records(path, 0)
        limit = Deadline.after(STILL)
        while has_more:
            if not limit.sleep(LOOK):
                return False
            last, (end, has_more) = end, _skip_records(path, end)
            limit = Deadline.after(STILL) if end > last else limit
    return True


def _skip_records(path: Path, begin: int) -> tuple[int, bool]:
    """Return the end of the last whole key and value, and whether more bytes follow it."""
    with path.open("rb") as file:  # only the lengths are read: a file that is no store may be large
        size, parts = os.fstat(file.fileno()).st_size, 0
        last = end = begin
        while end + 4 <= size:
            file.seek(end)
            head = file.read(4)
            end += 4 + int(struct.unpack("=I", head)[0]) if len(head) == 4 else size
            parts += 1
            if end <= size and parts % 2 == 0:
                last = end
    return last, last < size


def _fallocate(descriptor: int, size: int) -> int:
    """Return 0, or the number of the error."""
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return errno.EOPNOTSUPP
    offset = ctypes.c_int64
    failed = function(descriptor, KEEP_SIZE, offset(0), offset(size))
    return ctypes.get_errno() if failed else 0


def check_file(store: dist.Store) -> None:
    """Raise if the file of a FileStore was deleted or truncated, or has no room left. Local."""
    base: Any = store
    while hasattr(base, "underlying_store"):
        base = base.underlying_store
    path = getattr(base, "path", None)
    if isinstance(path, str) and (error := file_error(path)) is not None:
        _never_destroy(store)  # its destructor would read for ever
        raise error


def _never_destroy(store: dist.Store) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(store))


def file_error(path: str) -> RankTimeoutError | LaunchError | None:
    """Return the error of a file that no rank can use any more; None if all is well."""
    known = _sizes.get(path, 0)  # read first: the file may grow, and another thread may see it
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return _lost_error(path, "was deleted") if path in _sizes else None
    except OSError:
        return None
    size, reserved = status.st_size, 512 * status.st_blocks
    if size < known and not _grows_again(path, known):
        return _lost_error(path, f"was truncated from {known} to {size} bytes")
    _sizes[path] = max(size, known)
    is_full = reserved < size + LEAST_BYTES and _free_bytes(path) < LEAST_BYTES
    return _no_room_error(path) if is_full else None


def _grows_again(path: str, known: int) -> bool:
    """Return whether a file has its known size again in 3 s: its size only lagged behind."""
    limit = Deadline.after(STILL)
    with suppress(OSError):
        while limit.sleep(LOOK):
            with open(path, "rb") as file:  # which lets a client of NFS ask its server
                if os.fstat(file.fileno()).st_size >= known:
                    return True
    return False


def _no_room_error(path: str) -> LaunchError:
    """Return the error of a full disk under a store."""
    return LaunchError(
        f"no space left in {os.path.dirname(path)}, where the store of the job is.",
        f"It is the file {path}; {_free_bytes(path)} bytes are free.",
        fix='free some space there, or init_method="file:///shared/new-file" on another disk.',
    )


def _lost_error(path: str, reason: str) -> RankTimeoutError:
    return RankTimeoutError(
        f"the file of the job's store {reason}: {path}.",
        fix="find out who changes that file; then start the job again, with a new file.",
    )


def _free_bytes(path: str) -> int:
    room = os.statvfs(os.path.dirname(path))
    return room.f_bavail * room.f_frsize


def read_values(path: Path) -> dict[str, str]:
    """Return the keys of a FileStore with their values, without becoming one of its users. Local.

    torch writes a deleted key with ``-`` before it, and any other with ``/``.
    """
    content, values, end = path.read_bytes(), dict[str, str](), 0
    parts: list[str] = []
    while end + 4 <= len(content):
        length = int(struct.unpack_from("=I", content, end)[0])
        parts.append(content[end + 4 : end + 4 + length].decode(errors="replace"))
        end += 4 + length
    for key, value in zip(parts[::2], parts[1::2], strict=False):
        if key.startswith("-"):
            values.pop(key.removeprefix("-/"), None)
        else:
            values[key.removeprefix("/")] = value
    return {key: value for key, value in values.items() if "/default_group/" not in key}
