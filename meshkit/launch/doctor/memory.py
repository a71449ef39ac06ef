"""The memory that a machine has for its ranks."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LIMITS = (  # memory limit of a container: cgroup version 2, then 1
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def memory(limits: Iterable[str] = LIMITS) -> int | None:
    """Return the bytes of this machine, or of its container if that has fewer. Local."""
    sizes = []
    with suppress(OSError, ValueError, AttributeError):  # not on this platform
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in limits:
        with suppress(OSError, ValueError):
            sizes.append(int(Path(file).read_text()))
    return min((bytes_ for bytes_ in sizes if bytes_ > 0), default=None)
