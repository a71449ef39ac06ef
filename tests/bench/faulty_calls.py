"""Faults of the collectives that ``meshkit bench`` calls, on the rank that plants them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshkit.bench import calls
from meshkit.bench.calls import PreparedCall


def return_wrong_elements(patch: pytest.MonkeyPatch, op: str, number: int) -> None:
    """Make so many elements of each result of an operation wrong."""
    num_wrong = PreparedCall.num_wrong

    def count_after_spoiling(self: PreparedCall, rank: int) -> int:
        if self.op == op:
            self.out[:number] += 1
        return num_wrong(self, rank)

    patch.setattr(PreparedCall, "num_wrong", count_after_spoiling)


def before_each_call(patch: pytest.MonkeyPatch, op: str, act: Callable[[], Any]) -> None:
    """Run a function before each call of an operation."""
    begin = calls.begin_collective

    def act_and_begin(name: str, *given: Any) -> calls.Works:
        if name == op:
            act()
        return begin(name, *given)

    patch.setattr(calls, "begin_collective", act_and_begin)


def raise_not_supported(patch: pytest.MonkeyPatch, op: str) -> None:
    """Make an operation raise as in a backend that does not have it."""

    def refuse() -> None:
        raise RuntimeError(f"Backend gloo does not support {op}\nmore of c10d")

    before_each_call(patch, op, refuse)
