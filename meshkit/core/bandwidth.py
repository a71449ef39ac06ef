"""Bandwidths of collectives in the words of nccl-tests, and the sizes at which they are measured.

From ``doc/PERFORMANCE.md`` of github.com/NVIDIA/nccl-tests. S is the size of the total array in
bytes, t the time, n the number of ranks; GB are decimal::

    algbw = S / t                       what a caller sees
    busbw = algbw * factor              what a wire sees, so comparable between numbers of ranks
    factor: all_reduce 2(n-1)/n; all_gather, reduce_scatter, all_to_all (n-1)/n
            broadcast, send_recv 1
"""

from __future__ import annotations

from .call import Call
from .errors import SpecError, told
from .operations import OPERATIONS

ITEM = 4  # bytes of a float32
MOST = 2**40  # bytes of the largest array


def busbw_factor(operation: str, ranks: int) -> float:
    """What takes algbw to busbw. Pure.

    Args:
        operation: one of ``OPERATIONS``.
        ranks: n, 1 or more; with one rank nothing goes over a wire and the factor is 0.

    Example:
        >>> [busbw_factor(name, 8) for name in ("all_reduce", "all_gather", "send_recv")]
        [1.75, 0.875, 1.0]
    """
    passes = OPERATIONS[operation].passes
    return passes * (ranks - 1) / ranks if passes else float(ranks > 1)


def sweep_sizes(least: int, most: int, factor: int) -> tuple[int, ...]:
    """The sizes from ``least`` in steps of a factor, up to ``most`` or just below. Pure.

    Args:
        least: bytes of the smallest array.
        most: bytes of the largest.
        factor: from one size to the next, 2 or more.

    Raises:
        SpecError: where there is no such size, or no end of them.

    Example:
        >>> sweep_sizes(1024, 20_000, 4)
        (1024, 4096, 16384)
    """
    if not 1 <= least <= most <= MOST or factor < 2:
        call = Call("sweep_sizes", (least, most, factor))
        line = f"{call}: there are no sizes from {least} to {most} bytes by a factor of {factor}."
        rule = f"The least is 1 or more, the most {MOST} or less, and the factor 2 or more."
        raise SpecError(told(line, rule, fix="sweep_sizes(1024, 65536, 4), say."))
    sizes = []
    while least <= most:
        sizes.append(least)
        least *= factor
    return tuple(sizes)


def fitted(size: int, ranks: int) -> int:
    """The size rounded down so that every rank has the same whole number of items, 1 or more.

    Example:
        >>> fitted(1024, 3), fitted(4, 8)
        (1020, 32)
    """
    step = ITEM * ranks
    return max(size // step, 1) * step


def gigabytes_per_second(size: int, seconds: float) -> float:
    """Decimal: 10^9 bytes in a second are 1."""
    return size / seconds / 1e9
