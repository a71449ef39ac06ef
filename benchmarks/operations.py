"""The collectives that are measured: the call, what each rank puts in, and what must come out.

The numbers tell ranks and places apart, so a part that went to the wrong rank, came from a rank
outside the group or lies at the wrong place is a wrong element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


def content(rank: int, items: int) -> Tensor:
    """What a rank holds: (items,) whole numbers that tell ranks and places apart.

    Both numbers are primes, so that no power of two hides a shift. The largest is 7780: a sum
    over 2,000 ranks is still exact in float32.
    """
    return (251 * (rank % 31) + torch.arange(items) % 251).float()


def all_reduced(members: Sequence[int], place: int, items: int) -> Tensor:
    """What the rank at a place in a group gets from all_reduce: (items,), the sum over members."""
    return sum((content(rank, items) for rank in members), torch.zeros(items))


def all_gathered(members: Sequence[int], place: int, items: int) -> Tensor:
    """What it gets from all_gather: (items,), an equal part from each member."""
    return torch.cat([content(rank, items // len(members)) for rank in members])


def reduce_scattered(members: Sequence[int], place: int, items: int) -> Tensor:
    """What it gets from reduce_scatter: (items / n,), its part of the sum."""
    return all_reduced(members, place, items).chunk(len(members))[place]


def all_exchanged(members: Sequence[int], place: int, items: int) -> Tensor:
    """What it gets from all_to_all: (items,), from each member the part meant for this place."""
    return torch.cat([content(rank, items).chunk(len(members))[place] for rank in members])


Run = Callable[[Tensor, Tensor, dist.ProcessGroup], object]

# Named *_single since torch 2.13, which warns of the older names at every call.
_all_gather: Run = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., object] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


@dataclass(frozen=True)
class Operation:
    """A collective over arrays of (items,), cut in n equal parts on n ranks.

    Attributes:
        run: the call, with (output, source, group).
        expected: what the output must be, from (members, place in the group, items).
        in_place: whether the output starts as the source, and the call reads no other.
        from_part: whether the source is one part, rather than the whole array.
        to_part: whether the output is one part.
    """

    run: Run
    expected: Callable[[Sequence[int], int, int], Tensor]
    in_place: bool = False
    from_part: bool = False
    to_part: bool = False

    def source_items(self, items: int, ranks: int) -> int:
        """How many items a rank puts in."""
        return items // ranks if self.from_part else items

    def output_items(self, items: int, ranks: int) -> int:
        """How many items a rank gets."""
        return items // ranks if self.to_part else items


OPERATIONS = {
    "all_reduce": Operation(
        lambda out, source, group: dist.all_reduce(out, group=group), all_reduced, in_place=True
    ),
    "all_gather": Operation(_all_gather, all_gathered, from_part=True),
    "reduce_scatter": Operation(
        lambda out, source, group: _reduce_scatter(out, source, group=group),
        reduce_scattered,
        to_part=True,
    ),
    "all_to_all": Operation(
        lambda out, source, group: dist.all_to_all_single(out, source, group=group), all_exchanged
    ),
}
