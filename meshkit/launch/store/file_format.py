"""Check that a file is a store of torch, before torch opens it.

Any other file, or one that a full disk or a kill has truncated, makes torch's FileStore read
forever while it holds Python's lock, so no deadline would help. A FileStore appends keys and
values, each as a length of four bytes and then its bytes.
"""

from __future__ import annotations

import os
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

# Seconds between two reads of a file that seems truncated, a tenth of a second in all. A write of
# torch takes microseconds, and when a hundred ranks start together one of them always writes.
PAUSES = (0.0, *(0.001 * 2**attempt for attempt in range(7)))


def is_store(path: Path) -> bool:
    """Return whether torch can open a file as a store. An empty or a missing file is a store.

    Local. A file that seems truncated is read again from there on, as another process may be in the
    middle of a write. torch's lock is not taken: a store that Python's collector destroys meanwhile
    would wait for it while it holds Python's lock.

    Cost: one pass over the lengths in the file.
    """
    end = 0
    with suppress(OSError):
        for pause in PAUSES:
            time.sleep(pause)
            end, has_more = _skip_records(path, end)
            if not has_more:
                return True
        return False
    return True


def _skip_records(path: Path, begin: int) -> tuple[int, bool]:
    """Return the end of the last whole key and value, and whether more bytes follow it.

    Only the lengths are read, as a file that is no store may be large.
    """
    with path.open("rb") as file:
        size, last = os.fstat(file.fileno()).st_size, begin
        while (end := _end_of_part(file, _end_of_part(file, last, size), size)) <= size:
            last = end
    return last, last < size


def _end_of_part(file: BinaryIO, begin: int, size: int) -> int:
    """Return the end of a key or value; more than the size if it is truncated."""
    if begin + 4 > size:
        return size + 1
    file.seek(begin)
    head = file.read(4)
    return begin + 4 + int(struct.unpack("=I", head)[0]) if len(head) == 4 else size + 1
