"""Whether a file is a store of torch's, before torch opens it.

A file that is none, or that was cut short by a full disk or a kill, keeps torch reading without
end, and with Python's lock held: no deadline would help. A FileStore appends keys and values, each
as a length in four bytes and then its bytes.
"""

from __future__ import annotations

import os
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def is_store(path: Path) -> bool:
    """Whether torch can open a file as a store; an empty one it can, and one that is not there.

    Local; one pass over the file. A file that another process is writing to is taken as it is.
    """
    with suppress(OSError), path.open("rb") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)  # torch's own lock
        return _is_whole(file, os.fstat(file.fileno()).st_size)
    return True


def _is_whole(file: BinaryIO, size: int) -> bool:
    """Whether the file consists of whole keys and values."""
    parts = 0
    while (place := file.tell()) < size:
        head = file.read(4)
        if len(head) < 4 or place + 4 + (length := struct.unpack("=I", head)[0]) > size:
            return False
        file.seek(length, os.SEEK_CUR)
        parts += 1
    return parts % 2 == 0
