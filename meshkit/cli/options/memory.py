"""A check that the ranks of a command, and their arrays, fit into the memory of this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from ...core.errors import SpecError
from ...core.text import count_noun
from .bench import format_size, read_sizes

MIN_ARRAYS = 2  # arrays of the whole size that a rank needs at least, while it compares
# Bytes of a rank beyond the shared ones, without an array. A choice: 10 MiB were measured once a
# mesh of 4 ranks existed (forkserver, gloo), 20 MiB later, and the rest is for torch's threads.
RANK_BYTES = 2**25
SPARE = 4  # times the minimum that a fix leaves free
LIMITS = (  # memory limit of a container: cgroup version 2, then 1
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def check_ranks(ranks: int, sizes: Mapping[str, int]) -> None:
    """Refuse ranks started here that this machine cannot hold."""
    check_memory("1", ranks, n=ranks, sizes=sizes)


def check_memory(text: str, ranks: int, *, n: int | None, sizes: Mapping[str, int]) -> None:
    """Refuse ranks that this machine cannot hold, by themselves or with their arrays."""
    arrays, available = read_sizes(text), memory()
    needed = ranks * (MIN_ARRAYS * arrays[-1] + RANK_BYTES)
    if available is None or needed <= available:
        return
    left = available - ranks * RANK_BYTES
    if left < SPARE * MIN_ARRAYS * ranks:
        raise SpecError(
            f"{count_noun(ranks, 'rank')} do not fit into the memory of this machine.",
            f"Each needs about {RANK_BYTES} bytes without an array; {available} are available.",
            fix=_fewer_ranks(available // (SPARE * RANK_BYTES), n, sizes),
        )
    most = 2 ** int(math.log2(left // (SPARE * MIN_ARRAYS * ranks)))
    range_ = f"{format_size(arrays[0])}:" * (arrays[0] < most) + format_size(most)
    raise SpecError(
        f"arrays of {format_size(arrays[-1])} do not fit into the memory of this machine.",
        f"{count_noun(ranks, 'rank')}, each with at least {MIN_ARRAYS} arrays and {RANK_BYTES} "
        f"other bytes, need {needed} bytes; {available} are available.",
        fix=f"--sizes {range_}.",
    )


def _fewer_ranks(most: int, n: int | None, sizes: Mapping[str, int]) -> str:
    """Return the fix: fewer ranks, or a smaller mesh if its sizes do not allow that."""
    known = math.prod(size for size in sizes.values() if size != -1)
    is_free = not sizes or -1 in sizes.values()
    if n is not None and is_free and max(most, 2) >= known:
        return f"-n {max(most, 2) // known * known}."
    return f"a mesh of at most {count_noun(max(most, 1), 'rank')} on this machine."


def memory(limits: Iterable[str] = LIMITS) -> int | None:
    """Return the bytes of this machine, or of its container if that has fewer. Local."""
    sizes = []
    with suppress(OSError, ValueError, AttributeError):  # not on this platform
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in limits:
        with suppress(OSError, ValueError):
            sizes.append(int(Path(file).read_text()))
    return min((bytes_ for bytes_ in sizes if bytes_ > 0), default=None)
