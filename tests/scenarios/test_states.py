"""Training with losses and admissions equals one process, for each kind of state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.scenarios import states
from tests.scenarios.states import KINDS, Case, run_case

QUICK = [Case("ddp", 1), Case("uneven shards", 2), Case("admission of a shard", 3)]


def run_all(cases: list[Case]) -> dict[Case, list[str]]:
    """Return the differences of the runs whose fault has fired."""
    with ThreadPoolExecutor(2) as pool:
        lines = dict(zip(cases, pool.map(run_case, cases), strict=True))
    return {case: found for case, found in lines.items() if found is not None}


def test_three_kinds_of_state_equal_one_process() -> None:
    assert run_all(QUICK) == {case: [] for case in QUICK}


@pytest.mark.slow
def test_every_kind_of_state_equals_one_process() -> None:
    cases = [Case(kind, seed) for kind in KINDS for seed in (10, 11)]
    assert run_all(cases) == {case: [] for case in cases}


def test_a_difference_of_a_millionth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = states.train_alone(KINDS["ddp"])
    moved = [alone[0][0] + 1e-6, *alone[0][1:]], alone[1]
    monkeypatch.setattr(states, "train_alone", lambda kind: moved)
    assert "differs from one process" in str(run_case(Case("ddp", 1)))
