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

from ..core.operations import OPERATIONS
from ..live.waiting import wait

EXACT = 2**24  # float32 has every whole number up to here
BLANK = -1.0  # what no rank holds
# How many ranks and places are told apart; primes, so that no power of two hides a shift.
APART = ((31, 251), (31, 31), (7, 17), (3, 5))


def apart(members: int) -> tuple[int, int]:
    """How many ranks and places are told apart in a group: the most of which a sum is exact. Pure.

    The largest number is one less than their product, so every sum, also of a part of the members,
    is below 2^24. Beyond 1,198,372 members it need not be.

    Example:
        >>> [apart(members) for members in (2, 2156, 2157, 16384, 65536, 1048576)]
        [(31, 251), (31, 251), (31, 31), (31, 31), (7, 17), (3, 5)]
    """
    exact = (one for one in APART if members * (one[0] * one[1] - 1) < EXACT)
    return next(exact, APART[-1])


def content(rank: int, members: int, items: int, start: int = 0) -> Tensor:
    """What a rank holds: (items,) whole numbers that tell ranks and places apart.

    In a group of up to 2,156 ranks those that are a multiple of 31 apart hold the same, and so do
    places that are one of 251; in larger groups more do, so that a sum is exact in float32.

    Args:
        rank: whose.
        members: how many ranks its group has.
        items: how many.
        start: the place of the first one.
    """
    ranks, places = apart(members)
    return (places * (rank % ranks) + torch.arange(start, start + items) % places).float()


def all_reduced(members: Sequence[int], place: int, items: int) -> Tensor:
    """What the rank at a place in a group gets from all_reduce: (items,), the sum over members."""
    ranks, places = apart(len(members))
    held = sum(rank % ranks for rank in members)  # at once: members may be thousands
    return (places * held + len(members) * (torch.arange(items) % places)).float()


def all_gathered(members: Sequence[int], place: int, items: int) -> Tensor:
    """What it gets from all_gather: (items,), an equal part from each member."""
    ranks = len(members)
    return torch.cat([content(rank, ranks, items // ranks) for rank in members])


def reduce_scattered(members: Sequence[int], place: int, items: int) -> Tensor:
    """What it gets from reduce_scatter: (items / n,), its part of the sum."""
    return all_reduced(members, place, items).chunk(len(members))[place]


def all_exchanged(members: Sequence[int], place: int, items: int) -> Tensor:
    """What it gets from all_to_all: (items,), from each member the part meant for this place."""
    ranks, part = len(members), items // len(members)
    return torch.cat([content(rank, ranks, part, place * part) for rank in members])


def broadcasted(members: Sequence[int], place: int, items: int) -> Tensor:
    """What it gets from broadcast: (items,), what the first member holds."""
    return content(members[0], len(members), items)


def received(members: Sequence[int], place: int, items: int) -> Tensor:
    """What it gets from send_recv: (items,), what the member before it holds."""
    return content(members[place - 1], len(members), items)


Works = Sequence[dist.Work | None]
Begin = Callable[[Tensor, Tensor, dist.ProcessGroup, bool], Works]
Collective = Callable[..., dist.Work | None]

# Named *_single since torch 2.13, which warns of the older names at every call.
_all_gather: Collective = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Collective = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


def _all_reduces(out: Tensor, source: Tensor, group: dist.ProcessGroup, later: bool) -> Works:
    return [dist.all_reduce(out, group=group, async_op=later)]


def _gathers(out: Tensor, source: Tensor, group: dist.ProcessGroup, later: bool) -> Works:
    return [_all_gather(out, source, group=group, async_op=later)]


def _scatters(out: Tensor, source: Tensor, group: dist.ProcessGroup, later: bool) -> Works:
    return [_reduce_scatter(out, source, group=group, async_op=later)]


def _exchanges(out: Tensor, source: Tensor, group: dist.ProcessGroup, later: bool) -> Works:
    return [dist.all_to_all_single(out, source, group=group, async_op=later)]


def _broadcasts(out: Tensor, source: Tensor, group: dist.ProcessGroup, later: bool) -> Works:
    return [dist.broadcast(out, dist.get_global_rank(group, 0), group=group, async_op=later)]


def _passes_on(out: Tensor, source: Tensor, group: dist.ProcessGroup, later: bool) -> Works:
    """Send to the next member and receive from the one before, in a ring."""
    size, here = group.size(), group.rank()
    if size == 1:  # torch sends nothing to itself
        out.copy_(source)
        return []
    after, before = (dist.get_global_rank(group, (here + i) % size) for i in (1, -1))
    sends = dist.P2POp(dist.isend, source, after, group)
    return dist.batch_isend_irecv([sends, dist.P2POp(dist.irecv, out, before, group)])


@dataclass(frozen=True)
class Procedure:
    """How a collective is made, and what must come of it.

    Attributes:
        begin: begins the call, with (output, source, group, later); what it returns can be waited
            for. Unless ``later`` it need not be: the call itself waits, where it can.
        expected: what the output must be, from (members, place in the group, items).
    """

    begin: Begin
    expected: Callable[[Sequence[int], int, int], Tensor]


CALLS = {
    "all_reduce": Procedure(_all_reduces, all_reduced),
    "all_gather": Procedure(_gathers, all_gathered),
    "reduce_scatter": Procedure(_scatters, reduce_scattered),
    "all_to_all": Procedure(_exchanges, all_exchanged),
    "broadcast": Procedure(_broadcasts, broadcasted),
    "send_recv": Procedure(_passes_on, received),
}


@dataclass(frozen=True)
class Prepared:
    """A call that can be made again and again on one group.

    Attributes:
        op: which call.
        members: the ranks of the group, in its order.
        items: of the total array.
        group: where it runs.
        source: what this rank puts in.
        out: what it gets.
    """

    op: str
    members: Sequence[int]
    items: int
    group: dist.ProcessGroup
    source: Tensor
    out: Tensor

    def begin(self, later: bool = True) -> Works:
        """Begin the call; unless ``later``, wait for it where it can be waited for at once."""
        return CALLS[self.op].begin(self.out, self.source, self.group, later)

    def renew(self) -> None:
        """Put back what the output was before the call that :func:`checkable` is made for."""
        self.out.copy_(self.source) if OPERATIONS[self.op].in_place else self.out.fill_(BLANK)

    def wrong(self, rank: int) -> int:
        """How many elements this rank got wrong in a call on what :func:`checkable` made."""
        place = list(self.members).index(rank)
        expected = CALLS[self.op].expected(self.members, place, self.items)
        return int((self.out.cpu() != expected).sum())


def prepared(
    op: str, members: Sequence[int], items: int, group: dist.ProcessGroup, device: torch.device
) -> Prepared:
    """A call to be timed: zeros, as all_reduce adds its own result up again. Local."""
    operation, ranks = OPERATIONS[op], len(members)
    source = torch.zeros(operation.source_items(items, ranks), device=device)
    out = torch.zeros(operation.output_items(items, ranks), device=device)
    return Prepared(op, members, items, group, source, out)


def checkable(
    op: str, members: Sequence[int], items: int, group: dist.ProcessGroup, device: torch.device
) -> Prepared:
    """A call whose result tells ranks and places apart, to be made once. Local."""
    operation, ranks, rank = OPERATIONS[op], len(members), dist.get_rank()
    source = content(rank, ranks, operation.source_items(items, ranks))
    blank = torch.full((operation.output_items(items, ranks),), BLANK)
    out = (source if operation.in_place else blank).to(device, copy=True)
    return Prepared(op, members, items, group, source.to(device), out)


def run(calls: Sequence[Prepared]) -> None:
    """Begin all calls, then wait for all. Collective over their groups.

    A single one is made as in training, and waits by itself. A guard names either: ``all_reduce
    over dp``, or ``wait over dp``.
    """
    later = len(calls) > 1
    for group, work in [(call.group, work) for call in calls for work in call.begin(later)]:
        wait(work, group)


def lacking(error: RuntimeError) -> str:
    """The line in which a backend says that it has no such operation; any other error goes on."""
    line = str(error).partition("\n")[0]
    if isinstance(error, NotImplementedError) or "support" in line or "implement" in line:
        return line
    raise error
