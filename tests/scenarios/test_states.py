"""Training with losses and admissions equals one process, for each kind of state."""

from __future__ import annotations

import pytest

from meshkit.launch.torch_meshes import can_slice
from tests.scenarios.states import KINDS, Case, find_differences, play_case, run_cases, train_alone

QUICK = [Case("uneven shards", 2), Case("admission of a shard", 3)]
QUICK += [Case("tp column row norm", 4)] * can_slice()
# every way in which a state can be cut, lost and given back, once
SLOW = ("ddp", "hsdp", "spares", "a step behind", "a shard a step behind", "admission")
SLOW += ("tp column norm", "tp row")


def test_three_kinds_of_state_equal_one_process() -> None:
    assert dict(run_cases(QUICK)) == {case: [] for case in QUICK}


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(SLOW, marks=pytest.mark.slow, id="others"),
        pytest.param(tuple(KINDS), marks=pytest.mark.nightly, id="all"),
    ],
)
def test_each_kind_of_state_equals_one_process(kinds: tuple[str, ...]) -> None:
    cases = [Case(kind, 10) for kind in kinds]
    found = {case: lines for case, lines in run_cases(cases) if lines is not None}
    assert found == {case: [] for case in cases}


def test_a_difference_of_a_millionth_is_found() -> None:
    case = Case("ddp", 1)
    played, (losses, weights) = play_case(case), train_alone(KINDS["ddp"])
    assert played.fired == case.fault[0]
    assert find_differences(case, played, (losses, weights)) == []
    moved = [losses[0] + 1e-6, *losses[1:]]
    assert "differs from one process" in str(find_differences(case, played, (moved, weights)))
