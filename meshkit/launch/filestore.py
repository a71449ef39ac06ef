"""Whether a file is a store of torch's, before torch opens it.

A file that is none, or that was cut short by a full disk or a kill, keeps torch reading without
end, and with Python's lock held: no deadline would help. A FileStore appends keys and values, each
as a length in four bytes and then its bytes.
"""

from __future__ import annotations

import struct
import time
from contextlib import suppress
from pathlib import Path

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
    """Where the last whole key and value ends, from such a place on; whether more follows it."""
    with path.open("rb") as file:
        file.seek(begin)
        data = file.read()
    place = 0
    while (end := _end(data, _end(data, place))) <= len(data):
        place = end
    return begin + place, place < len(data)


def _end(data: bytes, place: int) -> int:
    """Where the part that begins at a place ends; beyond the data where it is cut short."""
    if place + 4 > len(data):
        return len(data) + 1
    return place + 4 + int(struct.unpack_from("=I", data, place)[0])
