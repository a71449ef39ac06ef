"""The file of a FileStore: is there room for it, and is it whole?

torch writes a key in several parts. If the disk is full after the first part, the file ends in the
middle of a key, and every rank that reads it reads for ever, with Python's lock held. The
destructor reads too. Room is therefore reserved before the first use, and the file is looked at
before each round and while ranks wait.
"""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...core.errors import LaunchError, RankTimeoutError

if TYPE_CHECKING:
    import torch.distributed as dist

KEEP_SIZE = 1  # of fallocate in Linux: reserve blocks behind the end of the file
BASE_BYTES, BYTES_PER_RANK = 2**18, 2**14  # of the keys of a start and of some meshes
MOST_BYTES = 2**26
LEAST_BYTES = 2**14  # free bytes below which no rank writes any more

_sizes: dict[str, int] = {}  # path to the largest size that this process has seen


def reserve_room(path: str, world_size: int) -> None:
    """Reserve the bytes that a job needs in the file of its store; the size stays. Local.

    On a file system that reserves nothing, the free bytes are checked.
    """
    size = min(MOST_BYTES, BASE_BYTES + BYTES_PER_RANK * world_size)
    _sizes.pop(path, None)
    with suppress(PermissionError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            number = _fallocate(descriptor, size)
        finally:
            os.close(descriptor)
        if number == errno.ENOSPC or (number and _free_bytes(path) < size):
            raise no_room_error(path)


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
    """Raise if the file of a FileStore was deleted or truncated, or has no room left. Local.

    Cost: two system calls in a FileStore.
    """
    base: Any = store
    while hasattr(base, "underlying_store"):
        base = base.underlying_store
    path = getattr(base, "path", None)
    if isinstance(path, str):
        error = file_error(path)
        if error is not None:
            ctypes.pythonapi.Py_IncRef(
                ctypes.py_object(store)
            )  # its destructor would read for ever
            raise error


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
    if size < known:
        return _lost_error(path, f"was truncated from {known} to {size} bytes")
    _sizes[path] = size
    is_full = reserved < size + LEAST_BYTES and _free_bytes(path) < LEAST_BYTES
    return no_room_error(path) if is_full else None


def no_room_error(path: str) -> LaunchError:
    """Return the error of a full disk under a store."""
    return LaunchError(
        f"no space left on {_device(path)}, where the store of the job is.",
        f"It is the file {path}; {_free_bytes(path)} bytes are free.",
        fix='free some space there, or init_method="file:///shared/new-file" on another disk.',
    )


def _lost_error(path: str, reason: str) -> RankTimeoutError:
    return RankTimeoutError(
        f"the file of the job's store {reason}: {path}.",
        fix="find out who changes that file; then start the job again, with a new file.",
    )


def _free_bytes(path: str) -> int:
    """Return the bytes that this user can still write on the device of a file."""
    room = os.statvfs(os.path.dirname(path))
    return room.f_bavail * room.f_frsize


def _device(path: str) -> str:
    """Return the device of a file and where it is mounted, from the table of mounts."""
    best, number = "", os.stat(os.path.dirname(path)).st_dev
    with suppress(OSError), open("/proc/self/mountinfo") as lines:
        for line in lines:
            fields, _, tail = line.partition(" - ")
            major_minor, mount = fields.split()[2], fields.split()[4]
            if major_minor == f"{os.major(number)}:{os.minor(number)}":
                best = f"device {tail.split()[1]} at {mount}"
    return best or f"the device of {os.path.dirname(path)}"
