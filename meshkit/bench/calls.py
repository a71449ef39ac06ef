"""The collectives of a benchmark: their inputs, correct outputs, calls and times on one rank.

The input numbers differ between ranks and between positions in the array: a part that went to the
wrong rank, came from outside the group or lies at the wrong position is a wrong element.

On the cpu the host's clock measures the calls; on CUDA events on the stream do, so that neither the
launch nor the host's own work counts. Calls are launched one by one, as in nccl-tests without its
option ``-G``. On other accelerators the host's clock measures each call together with a
synchronization. Neither CUDA nor other accelerators have ever been run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..groups.status import wait
from ..redistribute.operations import ALL_GATHER, REDUCE_SCATTER
from .results import OPERATIONS

EXACT = 2**24  # float32 has every whole number up to here
UNSET = -1.0  # a number that no rank puts in
# Numbers of distinct ranks and positions; primes, so that no power of two hides a shift.
DISTINCT = ((31, 251), (31, 31), (7, 17), (3, 5))

Works = Sequence[dist.Work | None]


def num_distinct(group_size: int) -> tuple[int, int]:
    """Return the numbers of distinct ranks and positions: the most of which a sum is exact."""
    exact = (pair for pair in DISTINCT if group_size * (math.prod(pair) - 1) < EXACT)
    return next(exact, DISTINCT[-1])


def input_pattern(rank: int, group_size: int, items: int, start: int = 0) -> Tensor:
    """Return the input of a rank: (items,) numbers that differ between ranks and positions."""
    ranks, positions = num_distinct(group_size)
    return (positions * (rank % ranks) + torch.arange(start, start + items) % positions).float()


def expected_output(op: str, members: Sequence[int], group_rank: int, items: int) -> Tensor:
    """Return the correct output on one member, for an array of ``items`` in all."""
    size, part = len(members), items // len(members)
    if op in ("all_reduce", "reduce_scatter"):
        ranks, positions = num_distinct(size)
        total = sum(rank % ranks for rank in members)
        sums = (positions * total + size * (torch.arange(items) % positions)).float()
        return sums if op == "all_reduce" else sums.chunk(size)[group_rank]
    if op == "all_gather":
        return torch.cat([input_pattern(rank, size, part) for rank in members])
    if op == "all_to_all":
        return torch.cat([input_pattern(rank, size, part, group_rank * part) for rank in members])
    root = members[0 if op == "broadcast" else group_rank - 1]  # send_recv: the member before
    return input_pattern(root, size, items)


def begin_collective(
    op: str, out: Tensor, source: Tensor, group: dist.ProcessGroup, async_op: bool
) -> Works:
    """Begin a collective. Without ``async_op``, wait for it if the call itself can."""
    options: dict[str, Any] = {"group": group, "async_op": async_op}
    if op == "all_reduce":
        return [dist.all_reduce(out, **options)]
    if op == "broadcast":
        return [dist.broadcast(out, dist.get_global_rank(group, 0), **options)]
    if op != "send_recv":
        calls = {
            "all_gather": ALL_GATHER,
            "reduce_scatter": REDUCE_SCATTER,
            "all_to_all": dist.all_to_all_single,
        }
        return [calls[op](out, source, **options)]
    size, group_rank = group.size(), group.rank()  # in a ring
    if size == 1:  # torch sends nothing to itself
        out.copy_(source)
        return []
    after, before = (dist.get_global_rank(group, (group_rank + i) % size) for i in (1, -1))
    send = dist.P2POp(dist.isend, source, after, group)
    return dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, out, before, group)])


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
        return begin_collective(self.op, self.out, self.source, self.group, async_op)

    def num_wrong(self, rank: int) -> int:
        """Return the number of wrong elements of this rank after one :func:`checked_call`."""
        group_rank = list(self.members).index(rank)
        expected = expected_output(self.op, self.members, group_rank, self.items)
        return int((self.out.cpu() != expected).sum())


def prepare_call(
    op: str,
    members: Sequence[int],
    items: int,
    group: dist.ProcessGroup,
    device: torch.device,
    *,
    checked: bool,
) -> PreparedCall:
    """Return a call for timing, or one to be called once whose output is then checked. Local."""
    operation, size = OPERATIONS[op], len(members)
    num_source = items // size if operation.source_is_part else items
    num_out = items // size if operation.output_is_part else items
    source, out = torch.zeros(num_source), torch.zeros(num_out)
    if checked:
        source = input_pattern(dist.get_rank(), size, num_source)
        out = source if operation.in_place else torch.full((num_out,), UNSET)
    out = out.to(device, copy=True)
    return PreparedCall(op, members, items, group, source.to(device), out)


def run_calls(calls: Sequence[PreparedCall]) -> None:
    """Begin all calls, then wait for all. Collective over their groups."""
    async_op = len(calls) > 1
    for group, work in [(call.group, work) for call in calls for work in call.begin(async_op)]:
        wait(work, group)


def time_calls(
    call: Callable[[], None], warm_up: int, calls: int, device: torch.device
) -> list[float]:
    """Return the seconds of each call on this rank, made at once after the warm-up calls."""
    for _ in range(warm_up):
        call()
    synchronize(device)
    if device.type != "cuda":
        seconds = []
        for _ in range(calls):
            began = time.perf_counter()
            call()
            synchronize(device)
            seconds.append(time.perf_counter() - began)
        return seconds
    events = [torch.Event(device, enable_timing=True) for _ in range(calls + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    synchronize(device)
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


def synchronize(device: torch.device) -> None:
    """Wait for queued work of an accelerator; a cpu queues nothing."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
