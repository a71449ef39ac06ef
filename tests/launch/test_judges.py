"""The judges of a round: what ranks have left becomes one decision, without processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

import meshkit
from meshkit.launch.judges import (
    Arrival,
    Arrivals,
    Decision,
    Process,
    RankState,
    Sighting,
    all_done,
    all_same,
    all_same_and_stated,
    failure_error,
    missing_error,
)

ERROR = meshkit.LaunchError("two ranks use one device.")
ENDED = Sighting(RankState.ENDED, "host b, pid 7")
STOPPED = ENDED._replace(state=RankState.STOPPED)
BUSY = ENDED._replace(state=RankState.BUSY)


def seen(facts: Sequence[Mapping[str, Any] | None], **options: Any) -> Arrivals:
    """Return the arrivals of ranks, None for one that is missing."""
    arrived = {
        rank: Arrival(Process(f"h{rank % 2}", rank), fact)
        for rank, fact in enumerate(facts)
        if fact is not None
    }
    return Arrivals(range(len(facts)), arrived, **options)


def outcome(decision: Decision | None) -> Any:
    """Return what a decision says: ok, wait, or the class of the error with its ranks."""
    if decision is None:
        return "wait"
    error = decision.error
    if error is None:
        return "ok"
    ranks = getattr(error, "missing_ranks", None) or tuple(getattr(error, "requests", ()))
    return (type(error).__name__, *ranks)


EXPIRED: dict[str, Any] = {"expired": True}
LATE = [("RankTimeoutError", rank) for rank in range(3)]
A, B = {"call": "build_mesh", "sizes": "dp=4"}, {"call": "build_mesh", "sizes": "dp=2 tp=2"}


@pytest.mark.parametrize(
    ("facts", "options", "same", "done"),
    [
        ([A, A], {}, "ok", "ok"),
        ([A, None], {}, "wait", "wait"),
        ([A, B], {}, ("DisagreementError", 0, 1), ("DisagreementError", 0, 1)),
        ([A, B, None], {}, "wait", "wait"),
        ([A, B, None], EXPIRED, ("DisagreementError", 0, 1), ("DisagreementError", 0, 1)),
        ([A, None], EXPIRED, LATE[1], LATE[1]),
        ([A, A], {"objections": [ERROR]}, ("LaunchError",), ("LaunchError",)),
        (  # a claim of two ranks counts at once; after creation the missing rank is the reason
            [A, None],
            {"objections": [ERROR], "expired": True},
            ("LaunchError",),
            LATE[1],
        ),
        ([A, None, None], EXPIRED | {"seen": {1: ENDED, 2: BUSY}}, LATE[1], LATE[1]),
        ([A, None, None], EXPIRED | {"seen": {2: STOPPED}}, LATE[2], LATE[2]),
        ([A, A], {"expired": True, "late": (1,)}, "ok", "ok"),
        # a rank that has ended never comes, so the others do not wait until the deadline
        ([A, None, None], {"seen": {1: ENDED, 2: BUSY}}, LATE[1], LATE[1]),
        ([A, None, None], {"seen": {1: STOPPED, 2: BUSY}}, "wait", "wait"),
        ([A, B, None], {"seen": {2: ENDED}}, *[("DisagreementError", 0, 1)] * 2),
    ],
)
def test_all_same_and_all_done(
    facts: list[Any], options: dict[str, Any], same: object, done: object
) -> None:
    arrivals = seen(facts, **options)
    assert outcome(all_same("ranks disagree.", seconds=5)(arrivals)) == same
    assert outcome(all_done("ranks failed.", seconds=5)(arrivals)) == done


@pytest.mark.parametrize(
    ("facts", "options", "same"),
    [
        ([A | {"shape": "8 4"}, A], {}, [("8 4", [0])]),
        ([A, A | {"shape": "8 4"}, A | {"shape": "8 4"}], {}, [("8 4", [1, 2])]),
        ([A, A], {}, []),
        ([A | {"shape": "8 4"}, B], {}, ("DisagreementError", 0, 1)),
        ([A | {"shape": "8 4"}, A, A | {"shape": "4 8"}], {}, ("DisagreementError", 0, 2)),
        ([A | {"shape": "8 4"}, None], {}, "wait"),
        ([A | {"shape": "8 4"}, None], EXPIRED, LATE[1]),
    ],
)
def test_a_fact_that_some_ranks_state_is_the_value_of_the_decision(
    facts: list[Any], options: dict[str, Any], same: object
) -> None:
    judge = all_same_and_stated("ranks disagree.", "shape", alike=True, seconds=5)
    decision = judge(seen(facts, **options))
    is_ok = decision is not None and decision.error is None
    assert (decision.value if decision is not None and is_ok else outcome(decision)) == same


def test_the_error_of_missing_ranks_names_what_is_known() -> None:
    arrivals = seen([A, None, None, A], expired=True, seen={1: ENDED, 2: BUSY}, late=(3,))
    error = missing_error(arrivals, 5, describe=lambda rank: f"dp={rank}", hosts=("h0", "h1", "h2"))
    text, known = str(error), ("1 (dp=1) has ended", "0, 3 on hosts h0, h1", "1 on host b, pid 7")
    assert all(part in text for part in (*known, "Rank 3 came late", "No rank came from host h2"))


def test_before_the_deadline_the_error_has_the_seconds_that_have_passed() -> None:
    arrivals = seen([A, None], seen={1: ENDED}, waited=0.6172)
    decision = all_same("ranks disagree.", seconds=5)(arrivals)
    assert decision is not None
    assert "within 0.6 s" in str(decision.error)


def test_the_error_of_very_many_missing_ranks_is_short() -> None:
    arrivals = Arrivals(range(200_000), {0: Arrival(Process("a", 1), {})}, expired=True)
    error = missing_error(arrivals, 5)
    assert len(error.missing_ranks) == 100_000
    assert len(str(error)) < 1000
    odd = Arrivals(range(1000), {r: Arrival(Process("a", 1), {}) for r in range(0, 1000, 2)})
    assert len(str(missing_error(odd, 5))) < 2000


@pytest.mark.parametrize(
    ("stage", "ranks", "fix"),
    [
        (
            "",
            {0, 1},
            "look at the logs of ranks 2-3 first; if they skipped the call, make it there too.",
        ),
        (
            "",
            {0, 1, 2},
            "look at the logs of rank 3 first; if it skipped the call, make it there too.",
        ),
        ("the end of ", {0, 1}, "look at the logs of ranks 2-3 first."),
    ],
)
def test_the_fix_of_a_rank_that_skipped_a_call(stage: str, ranks: set[int], fix: str) -> None:
    arrived = {rank: Arrival(Process("a", rank), {}) for rank in ranks}
    assert missing_error(Arrivals(range(4), arrived, expired=True), 5, stage=stage).fix == fix


def test_a_failure_is_quoted_with_the_call_of_its_rank() -> None:
    error = meshkit.SpecError("needs 8 ranks.", "{call} is too large.", fix="start 8 ranks.")
    report = failure_error("ranks disagree.", 1, Process("a", 3), error)
    assert report.requests == {1: "SpecError: needs 8 ranks."}  # type: ignore[attr-defined]
    assert report.evidence[1:] == ("this call is too large.",)
    other = failure_error("ranks disagree.", 1, Process("a", 3), ValueError("bad\nline"))
    assert other.evidence == ("rank 1 (host a, pid 3) gave up: ValueError: bad", "line")
    assert other.fix_text == "look at the log of rank 1 first."


class Odd(Exception):
    """An error of a user with attributes and a text of its own kinds."""

    fix = 3
    evidence = None

    def __str__(self) -> str:
        raise LookupError("no text")


def test_an_error_of_the_user_may_have_any_fix_and_no_text() -> None:
    """Its rank still tells the others."""
    report = failure_error("ranks disagree.", 1, Process("a", 3), Odd())
    assert report.evidence[0].endswith("gave up: Odd: an error without a text")
    assert report.fix_text == "look at the log of rank 1 first."
    for fix, text in ((3, "3"), (None, "look at the log of rank 1 first.")):
        error = meshkit.SpecError("x", fix=cast(Any, fix))
        assert failure_error("ranks differ.", 1, Process("a", 3), error).fix_text == text
