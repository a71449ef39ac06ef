"""Cases of moves that are the same in each run, and the tensors that they move."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from meshkit.redistribute.move import Move
from tests.redistribute.interpreter import Array

Case = TypeVar("Case")


def collect(strategy: st.SearchStrategy[Case], count: int) -> list[Case]:
    """Return examples of a strategy, the same in each run."""
    cases: list[Case] = []

    @given(strategy)
    @settings(
        derandomize=True,
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        suppress_health_check=[*HealthCheck],
    )
    def add(case: Case) -> None:
        cases.append(case)

    add()
    return cases


def whole_tensor(move: Move, seed: int = 7) -> Array:
    """Return a global tensor of random numbers."""
    return np.random.default_rng(seed).normal(size=move.sizes)


def mirrored(move: Move) -> Move:
    """Return a move with the types of the gradient."""
    swap = {"+": "*", "*": "+"}
    types = tuple(
        tuple(kind._replace(symbol=swap.get(kind.symbol, kind.symbol)) for kind in pair)
        for pair in move.types
    )
    return replace(move, types=types)  # type: ignore[arg-type]
