"""The ledger of a start in the report, to the letter."""

from __future__ import annotations

from benchmarks.ledger import Ledger, Phase, Span
from benchmarks.phases import HEAD, over, phase_table
from benchmarks.rows import Row


def job(*seconds: float) -> list[Ledger]:
    """A rank each, with a phase of so many seconds and nothing else."""
    return [
        Ledger(
            rank,
            (Span("start", 0, 1), Span("gate", 1, 1), Span("groups", 1, 1 + took)),
            {},
            1,
            1,
            0.0,
            0,
        )
        for rank, took in enumerate(seconds)
    ]


def test_of_several_repetitions_the_median_and_the_slowest_of_all() -> None:
    # medians 2, 4 and 5; rank 1 of the second is the slowest
    found = over([job(1, 2, 3), job(4, 9, 4), job(5, 5, 5)])
    assert found[1:] == (Phase("groups", 4, 9, 1), Phase("rest", 0, 0, 0))
    assert found[0] == Phase("start", 1, 1, 0)


def test_the_table_to_the_letter() -> None:
    ours = (Phase("store", 0.0125, 0.5, 3), Phase("groups", 1, 2, 0))
    theirs = (Phase("groups", 1.5, 12, 127),)
    shown = phase_table(
        [
            Row("other", 8, "torch", "s"),
            Row("start-up", 8, "torch", "s", phases=ours, their_phases=theirs),
            Row("start-up", 1024, "torch", "s", phases=ours[1:], their_phases=theirs),
            Row("lazy", 8, "torch", "s", phases=ours[:1], their_phases=theirs),
            Row("lazy", 1024, "torch", "s", phases=ours[:1], their_phases=theirs),
        ]
    )
    assert shown.splitlines() == [
        HEAD,
        "",
        "start-up, meshkit",
        "  ranks       8                       1,024",
        "  store       0.0125 / 0.5 (3)",
        "  groups      1 / 2 (0)               1 / 2 (0)",
        "",
        "start-up, torch",
        "  ranks       8                       1,024",
        "  groups      1.5 / 12 (127)          1.5 / 12 (127)",
        "",
        "lazy, meshkit",
        "  ranks       8                       1,024",
        "  store       0.0125 / 0.5 (3)        0.0125 / 0.5 (3)",
    ]


def test_without_a_start_there_is_no_table() -> None:
    assert phase_table([Row("other", 8, "torch", "s")]) == ""
