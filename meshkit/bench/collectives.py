"""The measured collectives: the torch call, the input of each rank, and the expected output.

The input numbers differ between ranks and between positions in the array. A part that went to the
wrong rank, came from outside the group or lies at the wrong position is a wrong element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ..live.move.operations import ALL_GATHER, REDUCE_SCATTER
from ..live.status import wait
from .results.collectives import OPERATIONS

EXACT = 2**24  # float32 has every whole number up to here
UNSET = -1.0  # a number that no rank puts in
# Numbers of distinct ranks and positions; primes, so that no power of two hides a shift.
DISTINCT = ((31, 251), (31, 31), (7, 17), (3, 5))


def num_distinct(group_size: int) -> tuple[int, int]:
    """Return the numbers of distinct ranks and positions: the most of which a sum is exact. Pure.

    The largest input is one less than their product, so every sum, also of a part of the members,
    is below 2^24. Above 1,198,372 members a sum may be larger.
    """
    exact = (
        (ranks, positions)
        for ranks, positions in DISTINCT
        if group_size * (ranks * positions - 1) < EXACT
    )
    return next(exact, DISTINCT[-1])


def input_pattern(rank: int, group_size: int, items: int, start: int = 0) -> Tensor:
    """Return the input of a rank: (items,) whole numbers that differ between ranks and positions.

    In a group of up to 2,156 ranks, the numbers repeat every 31 ranks and every 251 positions. In
    larger groups they repeat sooner, so that a sum is exact in float32.
    """
    ranks, positions = num_distinct(group_size)
    return (positions * (rank % ranks) + torch.arange(start, start + items) % positions).float()


def expected_all_reduce(members: Sequence[int], group_rank: int, items: int) -> Tensor:
    """Return the output of all_reduce on a rank of the group: (items,), the sum over members."""
    ranks, positions = num_distinct(len(members))
    total = sum(rank % ranks for rank in members)  # in one step: members may be thousands
    return (positions * total + len(members) * (torch.arange(items) % positions)).float()


def expected_all_gather(members: Sequence[int], group_rank: int, items: int) -> Tensor:
    """Return the output of all_gather: (items,), an equal part from each member."""
    size = len(members)
    return torch.cat([input_pattern(rank, size, items // size) for rank in members])


def expected_reduce_scatter(members: Sequence[int], group_rank: int, items: int) -> Tensor:
    """Return the output of reduce_scatter: (items / n,), one part of the sum."""
    return expected_all_reduce(members, group_rank, items).chunk(len(members))[group_rank]


def expected_all_to_all(members: Sequence[int], group_rank: int, items: int) -> Tensor:
    """Return the output of all_to_all: (items,), from each member the part for this group rank."""
    size, part = len(members), items // len(members)
    return torch.cat([input_pattern(rank, size, part, group_rank * part) for rank in members])


def expected_broadcast(members: Sequence[int], group_rank: int, items: int) -> Tensor:
    """Return the output of broadcast: (items,), the input of the first member."""
    return input_pattern(members[0], len(members), items)


def expected_send_recv(members: Sequence[int], group_rank: int, items: int) -> Tensor:
    """Return the output of send_recv: (items,), the input of the member before this one."""
    return input_pattern(members[group_rank - 1], len(members), items)


Works = Sequence[dist.Work | None]
Begin = Callable[[Tensor, Tensor, dist.ProcessGroup, bool], Works]


def _all_reduce(out: Tensor, source: Tensor, group: dist.ProcessGroup, async_op: bool) -> Works:
    return [dist.all_reduce(out, group=group, async_op=async_op)]


def _all_gather(out: Tensor, source: Tensor, group: dist.ProcessGroup, async_op: bool) -> Works:
    return [ALL_GATHER(out, source, group=group, async_op=async_op)]


def _reduce_scatter(out: Tensor, source: Tensor, group: dist.ProcessGroup, async_op: bool) -> Works:
    return [REDUCE_SCATTER(out, source, group=group, async_op=async_op)]


def _all_to_all(out: Tensor, source: Tensor, group: dist.ProcessGroup, async_op: bool) -> Works:
    return [dist.all_to_all_single(out, source, group=group, async_op=async_op)]


def _broadcast(out: Tensor, source: Tensor, group: dist.ProcessGroup, async_op: bool) -> Works:
    root = dist.get_global_rank(group, 0)
    return [dist.broadcast(out, root, group=group, async_op=async_op)]


def _send_recv(out: Tensor, source: Tensor, group: dist.ProcessGroup, async_op: bool) -> Works:
    """Send to the next member and receive from the one before, in a ring."""
    size, group_rank = group.size(), group.rank()
    if size == 1:  # torch sends nothing to itself
        out.copy_(source)
        return []
    after, before = (dist.get_global_rank(group, (group_rank + i) % size) for i in (1, -1))
    send = dist.P2POp(dist.isend, source, after, group)
    return dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, out, before, group)])


@dataclass(frozen=True)
class Collective:
    """The torch call of a collective, and its expected output."""

    begin: Begin  # (output, source, group, async_op) to works; waits itself without ``async_op``
    expected: Callable[[Sequence[int], int, int], Tensor]  # (members, group rank, items)


COLLECTIVES = {
    "all_reduce": Collective(_all_reduce, expected_all_reduce),
    "all_gather": Collective(_all_gather, expected_all_gather),
    "reduce_scatter": Collective(_reduce_scatter, expected_reduce_scatter),
    "all_to_all": Collective(_all_to_all, expected_all_to_all),
    "broadcast": Collective(_broadcast, expected_broadcast),
    "send_recv": Collective(_send_recv, expected_send_recv),
}


@dataclass(frozen=True)
class PreparedCall:
    """A collective on one group with its tensors, which can be called repeatedly."""

    op: str
    members: Sequence[int]  # ranks of the group, in its order
    items: int  # of the total array
    group: dist.ProcessGroup
    source: Tensor  # input of this rank
    out: Tensor  # output of this rank

    def begin(self, async_op: bool = True) -> Works:
        """Begin the call. Without ``async_op``, wait for it if the call itself can."""
        return COLLECTIVES[self.op].begin(self.out, self.source, self.group, async_op)

    def num_wrong(self, rank: int) -> int:
        """Return the number of wrong elements of this rank after one :func:`checked_call`."""
        group_rank = list(self.members).index(rank)
        expected = COLLECTIVES[self.op].expected(self.members, group_rank, self.items)
        return int((self.out.cpu() != expected).sum())


def timed_call(
    op: str, members: Sequence[int], items: int, group: dist.ProcessGroup, device: torch.device
) -> PreparedCall:
    """Return a call for timing, on zeros, since all_reduce sums its own result again. Local."""
    operation, size = OPERATIONS[op], len(members)
    source = torch.zeros(operation.source_items(items, size), device=device)
    out = torch.zeros(operation.output_items(items, size), device=device)
    return PreparedCall(op, members, items, group, source, out)


def checked_call(
    op: str, members: Sequence[int], items: int, group: dist.ProcessGroup, device: torch.device
) -> PreparedCall:
    """Return a call whose output can be checked, to be called once. Local."""
    operation, size, rank = OPERATIONS[op], len(members), dist.get_rank()
    source = input_pattern(rank, size, operation.source_items(items, size))
    unset = torch.full((operation.output_items(items, size),), UNSET)
    out = (source if operation.in_place else unset).to(device, copy=True)
    return PreparedCall(op, members, items, group, source.to(device), out)


def run_calls(calls: Sequence[PreparedCall]) -> None:
    """Begin all calls, then wait for all. Collective over their groups.

    A single call waits by itself, as in training. A guard reports either as ``all_reduce over dp``
    or as ``wait over dp``.
    """
    async_op = len(calls) > 1
    for group, work in [(call.group, work) for call in calls for work in call.begin(async_op)]:
        wait(work, group)


def unsupported_reason(error: RuntimeError) -> str:
    """Return the first line of an error that says that the backend has no such operation."""
    line = str(error).partition("\n")[0]
    if isinstance(error, NotImplementedError) or "support" in line or "implement" in line:
        return line
    raise error
