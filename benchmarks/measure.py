"""Check and time one collective on two groups of the same ranks: meshkit's, and torch's own."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

import meshkit
from meshkit.bench.calls import checkable, lacking, prepared, run
from meshkit.bench.measure import settle
from meshkit.core.bandwidth import ITEM

from .table import Row, lacking_row, measured

CALLS = 5  # timed in a row, so that the skew with which ranks leave a barrier weighs less
WARM_UP = 1  # repetitions that are not counted


@dataclass(frozen=True)
class Pair:
    """Two groups of the same ranks over one axis: meshkit's, and the one torch made.

    ``members`` are what the torch group was made of, computed without meshkit.
    """

    axis: str
    members: list[int]
    mesh: dist.ProcessGroup
    raw: dist.ProcessGroup


@dataclass(frozen=True)
class Case:
    """What a row is about: an operation over an axis, and the bytes of the total array."""

    op: str
    pair: Pair
    size: int

    @property
    def shape(self) -> tuple[str, list[int], int]:
        """The operation, the ranks that share the total array, and how many items that has."""
        return self.op, self.pair.members, self.size // ITEM

    @property
    def groups(self) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Meshkit's group, and torch's own."""
        return self.pair.mesh, self.pair.raw

    @property
    def head(self) -> tuple[str, str, int, int]:
        """What a row starts with."""
        return self.op, self.pair.axis, len(self.pair.members), self.size


@dataclass(frozen=True)
class Bench:
    """What every case needs: the live mesh, where tensors lie, and where ranks wait for each other.

    ``gate`` is a group of all ranks on which nothing is measured: right after a barrier on a group
    a call on that same group is slower on gloo.
    """

    mesh: meshkit.Mesh
    device: torch.device
    gate: dist.ProcessGroup

    @property
    def device_ids(self) -> list[int] | None:
        """The device that a barrier must use, where the backend needs one."""
        return None if self.device.index is None else [self.device.index]

    def rows(self, cases: Sequence[Case], repeats: int) -> list[Row]:
        """Check every case, then time those that the backend has. Collective."""
        found = [self.check(case) for case in cases]
        timed = [case for case, wrong in zip(cases, found, strict=True) if isinstance(wrong, int)]
        times = iter(self.times(timed, repeats))
        return [
            lacking_row(*case.head, said)
            if isinstance(said, str)
            else measured(*case.head, next(times), said)
            for case, said in zip(cases, found, strict=True)
        ]

    def check(self, case: Case) -> int | str:
        """How many elements are wrong on all ranks and both groups; or what the backend lacks."""
        try:
            wrong = sum(self.wrong(case, group) for group in case.groups)
        except RuntimeError as error:
            return lacking(error)
        return total(wrong, self.device)

    def wrong(self, case: Case, group: dist.ProcessGroup) -> int:
        """How many elements this rank gets wrong in one call on a group."""
        call = checkable(*case.shape, group, self.device)
        run([call])
        return call.wrong(self.mesh.rank)

    def times(self, cases: Sequence[Case], repeats: int) -> list[list[list[float]]]:
        """Seconds of one call on the slowest rank: (cases, 2, repeats), meshkit's, torch's own."""
        times = torch.zeros(len(cases), 2, WARM_UP + repeats, dtype=torch.float64)
        for repeat in range(WARM_UP + repeats):
            order = (0, 1) if repeat % 2 == 0 else (1, 0)
            for case, row in zip(cases, times, strict=True):
                for which in order:
                    row[which, repeat] = self.seconds(case, case.groups[which])
        kept = times[:, :, WARM_UP:]
        return [slowest(row, c.pair.raw, self.device) for c, row in zip(cases, kept, strict=True)]

    def seconds(self, case: Case, group: dist.ProcessGroup) -> float:
        """Seconds of one call on this rank, from several in a row after a barrier of all ranks."""
        call = [prepared(*case.shape, group, self.device)]
        run(call)  # touches the memory
        dist.barrier(self.gate, device_ids=self.device_ids)
        settle(self.device)
        began = time.perf_counter()
        for _ in range(CALLS):
            run(call)
        settle(self.device)
        return (time.perf_counter() - began) / CALLS


def total(count: int, device: torch.device) -> int:
    """The sum of a count over all ranks of the world. Collective."""
    summed = torch.tensor([count], device=device)
    dist.all_reduce(summed)
    return int(summed)


def slowest(times: Tensor, group: dist.ProcessGroup, device: torch.device) -> list[list[float]]:
    """Elementwise the largest of the ranks' times, (2, repeats). Collective over the group."""
    largest = times.to(device, copy=True)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return largest.cpu().tolist()
