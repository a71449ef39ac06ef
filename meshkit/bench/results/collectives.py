"""The table of measured collectives, their bandwidths, and the array sizes of a sweep.

The conventions are those of nccl-tests, ``doc/PERFORMANCE.md`` of github.com/NVIDIA/nccl-tests. S
is the size of the total array in bytes, t the time, n the number of ranks. The array has (items,)
elements and is cut in n equal parts on n ranks. GB are decimal::

    algbw = S / t                       bandwidth that the caller sees
    busbw = algbw * factor              bandwidth of a link, comparable between numbers of ranks
    factor: all_reduce 2(n-1)/n; all_gather, reduce_scatter, all_to_all (n-1)/n
            broadcast, send_recv 1
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.call import quotes_call
from ...core.errors import SpecError

ITEM_BYTES = 4  # of a float32
MAX_BYTES = 2**40  # of the largest array


@dataclass(frozen=True)
class Operation:
    """Properties of one collective."""

    ring_passes: int = 0  # of the array round a ring, (n - 1) / n of its bytes each; 0: no ring
    reduces: bool = False  # whether it sums over the ranks
    rooted: bool = False  # whether one rank sends to all others
    in_place: bool = False  # whether the output starts as the source, and no other source is read
    source_is_part: bool = False  # whether the source is one part, rather than the whole array
    output_is_part: bool = False  # whether the output is one part
    counts_part: bool = False  # whether the ``count`` of nccl-tests is that of one part

    def source_items(self, items: int, num_ranks: int) -> int:
        """Return the number of items in the source of one rank."""
        return items // num_ranks if self.source_is_part else items

    def output_items(self, items: int, num_ranks: int) -> int:
        """Return the number of items in the output of one rank."""
        return items // num_ranks if self.output_is_part else items

    def count(self, items: int, num_ranks: int) -> int:
        """Return the ``count`` of nccl-tests."""
        return items // num_ranks if self.counts_part else items


OPERATIONS = {
    "all_reduce": Operation(ring_passes=2, reduces=True, in_place=True),
    "all_gather": Operation(ring_passes=1, source_is_part=True, counts_part=True),
    "reduce_scatter": Operation(ring_passes=1, reduces=True, output_is_part=True, counts_part=True),
    "all_to_all": Operation(ring_passes=1, counts_part=True),
    "broadcast": Operation(rooted=True, in_place=True),
    "send_recv": Operation(),
}


def busbw_factor(operation: str, num_ranks: int) -> float:
    """Return the factor from algbw to busbw. Pure."""
    ring_passes = OPERATIONS[operation].ring_passes
    return ring_passes * (num_ranks - 1) / num_ranks if ring_passes else float(num_ranks > 1)


def gigabytes_per_second(num_bytes: int, seconds: float) -> float:
    """Return decimal GB/s: 10^9 bytes in a second are 1."""
    return num_bytes / seconds / 1e9


@quotes_call("sweep_sizes")
def sweep_sizes(least: int, most: int, factor: int) -> tuple[int, ...]:
    """Return the sizes from ``least`` in steps of a factor, up to ``most`` or just below. Pure."""
    if not 1 <= least <= most <= MAX_BYTES or factor < 2:
        summary = f"there are no sizes from {least} to {most} bytes by a factor of {factor}."
        rule = f"The least is 1 or more, the most {MAX_BYTES} or less, and the factor 2 or more."
        raise SpecError(summary, rule, fix="for example sweep_sizes(1024, 65536, 4).")
    series = []
    while least <= most:
        series.append(least)
        least *= factor
    return tuple(series)


def divisible_size(num_bytes: int, num_ranks: int) -> int:
    """Return the size rounded down to a whole number of items per rank, 1 item or more."""
    step = ITEM_BYTES * num_ranks
    return max(num_bytes // step, 1) * step
