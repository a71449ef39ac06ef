"""Faults of the collectives that ``meshkit bench`` calls, on the rank that plants them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from meshkit.bench.measure import COLLECTIVES, PreparedCall, Works


def return_wrong_elements(patch: pytest.MonkeyPatch, op: str, number: int) -> None:
    """Make so many elements of each result of an operation wrong."""
    num_wrong = PreparedCall.num_wrong

    def count_after_spoiling(self: PreparedCall, rank: int) -> int:
        if self.op == op:
            self.out[:number] += 1
        return num_wrong(self, rank)

    patch.setattr(PreparedCall, "num_wrong", count_after_spoiling)


def raise_not_supported(patch: pytest.MonkeyPatch, op: str) -> None:
    """Make an operation raise as in a backend that does not have it."""

    def begin(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> Works:
        raise RuntimeError(f"Backend gloo does not support {op}\nmore of c10d")

    patch.setitem(COLLECTIVES, op, replace(COLLECTIVES[op], begin=begin))


def run_out_of_memory(patch: pytest.MonkeyPatch, op: str) -> None:
    """Make an operation allocate more memory than any machine has."""

    def begin(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> Works:
        torch.empty(2**60)
        return []

    patch.setitem(COLLECTIVES, op, replace(COLLECTIVES[op], begin=begin))


def start_late(patch: pytest.MonkeyPatch, op: str, seconds: float) -> None:
    """Make an operation start so many seconds late."""
    begin = COLLECTIVES[op].begin

    def late(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> Works:
        time.sleep(seconds)
        return begin(out, source, group, later)

    patch.setitem(COLLECTIVES, op, replace(COLLECTIVES[op], begin=late))
