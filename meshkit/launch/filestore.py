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

LOOKS, PAUSE = 10, 0.01  # how often a file that seems cut short is looked at, seconds between


def is_store(path: Path) -> bool:
    """Whether torch can open a file as a store; an empty one it can, and one that is not there.

    Local; one pass over the file, and some more for one that seems to be none: another process may
    be in the middle of a write. Torch's lock is not taken: a store that Python's collector destroys
    meanwhile would wait for it, with Python's own lock held.
    """
    with suppress(OSError):
        for _ in range(LOOKS - 1):
            if _is_whole(path):
                return True
            time.sleep(PAUSE)
        return _is_whole(path)
    return True


def _is_whole(path: Path) -> bool:
    """Whether the file consists of whole keys and values."""
    parts = 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while (place := file.tell()) < size:
            head = file.read(4)
            if len(head) < 4 or place + 4 + (length := struct.unpack("=I", head)[0]) > size:
                return False
            file.seek(length, os.SEEK_CUR)
            parts += 1
    return parts % 2 == 0
