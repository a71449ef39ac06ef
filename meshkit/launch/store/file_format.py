"""Whether a file is a store of torch's, before torch opens it.

A file that is none, or that was cut short by a full disk or a kill, keeps torch reading without
end, and with Python's lock held: no deadline would help. A FileStore appends keys and values, each
as a length in four bytes and then its bytes.
"""

from __future__ import annotations

import os
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

# A file that seems cut short is looked at again, from there on: a tenth of a second in all. A write
# of torch's takes microseconds, and of a hundred ranks that start together one is always writing.
PAUSES = (0.0, *(0.001 * 2**look for look in range(7)))


def is_store(path: Path) -> bool:
    """Whether torch can open a file as a store; an empty one it can, and one that is not there.

    Local; one pass over the file, and what follows it for one that seems to be none: another
    process may be in the middle of a write. Torch's lock is not taken: a store that Python's
    collector destroys meanwhile would wait for it, with Python's own lock held.
    """
    whole = 0
    with suppress(OSError):
        for pause in PAUSES:
            time.sleep(pause)
            whole, more = _whole(path, whole)
            if not more:
                return True
        return False
    return True


def _whole(path: Path, begin: int) -> tuple[int, bool]:
    """Where the last whole key and value ends, from such a place on; whether more follows it.

    Only lengths are read: what is no store may be of any size.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        place = begin
        while (end := _end(file, _end(file, place, size), size)) <= size:
            place = end
    return place, place < size


def _end(file: BinaryIO, place: int, size: int) -> int:
    """Where the part that begins at a place ends; beyond the size where it is cut short."""
    if place + 4 > size:
        return size + 1
    file.seek(place)
    head = file.read(4)
    return place + 4 + int(struct.unpack("=I", head)[0]) if len(head) == 4 else size + 1
