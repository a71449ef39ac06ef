"""Rehearsals find faults at 8,192 ranks, and agree with what gloo does."""

from __future__ import annotations

import random

import pytest

from meshkit.rehearse.report import RehearsalReport
from tests.scenarios.rehearsed_faults import FAULTS, play
from tests.scenarios.rehearsed_programs import Program, Runner, main, numbers_of


def test_a_job_of_8192_ranks_without_a_fault_matches() -> None:
    play("", few=True).raise_if_mismatched()


# one of each kind of report; test_rehearsed_hangs.py has all faults, on the first and last ranks
OF_EACH_KIND = ("another root", "a swapped peer", "a batch that does not divide")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in OF_EACH_KIND else pytest.mark.nightly)
        for name in FAULTS
    ],
)
def test_a_fault_of_8192_ranks_is_named_by_the_corners(name: str) -> None:
    report = play(name)
    assert FAULTS[name].is_named_by(report), report


def test_random_programs_are_judged_as_gloo_does() -> None:
    runner = Runner(4)
    try:
        judged = [runner.judge(Program.draw(random.Random(seed), 4)) for seed in range(6)]
    finally:
        runner.close()
    assert [each.contradiction for each in judged if each.contradiction] == []
    assert {each.matches for each in judged} == {True, False}


def test_a_rehearsal_that_overlooks_a_fault_is_contradicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = (Program.draw(random.Random(seed), 4) for seed in range(100))
    program = next(each for each in drawn if each.fault == "reduction" and each.ops != each.right)
    unequal = Runner(4)
    monkeypatch.setattr(RehearsalReport, "ok", True, raising=True)
    monkeypatch.setattr(unequal, "run", lambda *_: numbers_of(program.sizes, program.right))
    assert "matched, and the run ended" in unequal.judge(program).contradiction


@pytest.mark.nightly
def test_twenty_programs_are_judged_as_gloo_does() -> None:
    assert main(["--seed", "5000", "--runs", "20"]) == 0
