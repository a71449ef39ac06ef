"""How much memory this machine has for its ranks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LIMITS = (  # of a container: control groups of version 2 and 1
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def memory(limits: Iterable[str] = LIMITS) -> int | None:
    """Bytes of this machine, or of its container where that has fewer. Local.

    Args:
        limits: files with a number of bytes, or with a word where there is no limit.

    Returns:
        None where the system does not tell.
    """
    found = []
    with suppress(OSError, ValueError, AttributeError):  # no such name here
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in limits:
        with suppress(OSError, ValueError):
            found.append(int(Path(file).read_text()))
    return min((bytes_ for bytes_ in found if bytes_ > 0), default=None)
