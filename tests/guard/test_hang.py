"""The report of a roll call: who is waited for, who is behind, and the error that names them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit.guard.hang import Lag, hang_error, lagging_ranks, who_is_behind
from meshkit.launch.disagreement import RankStatus
from meshkit.launch.judges import Arrival, Arrivals, Process, RankState, Sighting
from meshkit.testing import layouts
from tests.laws.derivations import law

LAYOUT = meshkit.Layout(dp=2, sp=2)
KNOWN = 0.3  # seconds for the answers if a rank has left


def statuses(**late: int) -> dict[int, RankStatus]:
    """Return ranks that have begun 8 collectives over each axis; dp_2=7: rank 2 is late over dp."""
    counts = {rank: {"dp": 8, "sp": 8} for rank in range(4)}
    for key, count in late.items():
        axis, _, rank = key.partition("_")
        counts[int(rank)][axis] = count
    return {rank: RankStatus(rank, begun) for rank, begun in counts.items()}


@law
@given(st.data())
def test_a_rank_behind_by_another_derivation(data: st.DataObject) -> None:
    """A rank is behind where a peer that differs in that axis only has begun more."""
    layout = data.draw(layouts(max_ranks=32))
    ranks = [int(rank) for rank in layout.grid.flat]
    answered = data.draw(st.sets(st.sampled_from(ranks)))
    counts = {
        rank: {axis: data.draw(st.integers(0, 3)) for axis in layout.axes} for rank in answered
    }
    lags = lagging_ranks(layout, {rank: RankStatus(rank, begun) for rank, begun in counts.items()})
    expected = {}
    for rank in answered:
        at = layout.coordinate(rank)
        for axis in layout.axes:
            others = [layout.rank(**{**at, axis: i}) for i in range(layout.sizes[axis])]
            most = max(counts[other][axis] for other in others if other in answered)
            if most > counts[rank][axis]:
                gap = most - counts[rank][axis]
                expected[rank] = max(gap, expected.get(rank, 0))
    assert {rank: lag.most - lag.begun for rank, lag in lags.items()} == expected
    assert list(lags) == sorted(lags)


def test_a_rank_is_late_by_a_second_and_by_half_of_the_longest_wait_of_its_group() -> None:
    waited = {0: 2.0, 1: 2.0, 2: 1.2, 3: 0.4, 4: 9.0, 5: 8.0}
    layout = meshkit.Layout(dp=3, sp=2)
    at = {
        rank: RankStatus(rank, {"sp": 1}, "all_reduce", "sp", waited=seconds)
        for rank, seconds in waited.items()
    }
    error = hang_error("all_reduce failed.", layout, at, {})
    assert (error.kind, error.fix_text.partition(";")[0]) == (
        "unknown",
        "look at the logs of all ranks",
    )
    at[3] = replace(at[3], waited=0.1)  # 2 and 3 before: by less than a second; 5: by an eighth
    error = hang_error("all_reduce failed.", layout, at, {})
    assert error.kind == "late"
    assert "Late: rank 3 (dp=1 sp=1) began all_reduce over sp 1.1 s after the first." in str(error)
    assert "Fix: look at rank 3 first;" in str(error)
    assert hang_error("x.", layout, at | {0: RankStatus(0, waited=50)}, {}).kind == "late"


@pytest.mark.parametrize("sees_waits", [True, False])
def test_a_rank_that_may_wait_for_a_peer_is_no_suspect_where_waits_are_not_seen(
    sees_waits: bool,
) -> None:
    """Rank 3 sleeps, rank 1 waits for it over dp, and rank 0 waits for rank 1 over sp."""
    begun = {0: (8, 8), 1: (8, 7), 2: (8, 8), 3: (7, 7)}
    at = {
        rank: RankStatus(rank, {"dp": dp, "sp": sp}, line="job.py:7 (f)", sees_waits=sees_waits)
        for rank, (dp, sp) in begun.items()
    }
    error = hang_error("rank 0 begins no collective.", LAYOUT, at, {})
    assert error.behind == (1, 3)
    text = str(error)
    assert ("Fix: look at rank 3 first;" in text) != sees_waits
    assert ("Fix: look at ranks 1, 3 first;" in text) == sees_waits
    lines = [
        "Behind: rank 1 (dp=0 sp=1) has begun 7 of 8 collectives over sp; waits in a coll",
        "Behind: rank 3 (dp=1 sp=1) has begun 7 of 8 collectives over dp; in no collective,",
        "Ranks 0, 2: wait in a collective over sp, now at job.py:7 (f).",
    ]
    assert [line in text for line in lines] == [not sees_waits, True, not sees_waits]


def test_groups_of_a_view_are_compared_by_their_own_ranks() -> None:
    begun = {rank: RankStatus(rank, {"y": 1 + rank % 2}) for rank in range(4)}
    rows = {"y": meshkit.Layout(x=2, y=2).groups("y")}
    assert lagging_ranks(meshkit.Layout(dp=4), begun, rows) == {
        0: Lag("y", 1, 2),
        2: Lag("y", 1, 2),
    }
    assert lagging_ranks(meshkit.Layout(dp=4), begun) == {}  # this rank does not know the view


def waits(status: RankStatus, axes: str) -> RankStatus:
    return replace(status, function="all_reduce", group=axes, line="train.py:17 (step)")


def sight(**states: RankState) -> dict[int, Sighting]:
    return {int(name[1:]): Sighting(state, "host b, pid 3") for name, state in states.items()}


LATE_0, LATE_2 = statuses(dp_0=7), statuses(dp_2=7)
SLEEPS = statuses(dp_2=7, sp_0=7, sp_2=7)  # 2 sleeps, 0 waits for it, 1 and 3 wait for both
SLEEPS = {
    0: waits(SLEEPS[0], "dp"),
    1: waits(SLEEPS[1], "sp"),
    2: SLEEPS[2],
    3: waits(SLEEPS[3], "sp"),
}
LATE_3 = statuses(dp_3=7)
WAITING = {rank: waits(LATE_3[rank], "dp") for rank in range(3)}
RAISED = LATE_0 | {1: RankStatus(1, error="ValueError: bad sample 17")}
CLOSED = WAITING | {r: replace(LATE_3[r], ended_by="mesh.close()") for r in (2, 3)}
ENDED, STOPPED, UNKNOWN, BUSY = RankState
Report = tuple[dict[int, RankStatus], dict[int, Sighting], tuple[Any, ...], str]
# statuses, silent ranks -> missing ranks, first words of the lines, rank to look at first
REPORTS: dict[str, Report] = {
    "a rank sleeps": (SLEEPS, {}, (), "Behind 2, Behind 0, Ranks 1", "rank 2"),
    "nobody is behind": (statuses(), {}, (), "Ranks 0-3", "the logs of all ranks"),
    "one has ended": (LATE_0, sight(r2=ENDED), (2,), "Silent 2, Ranks 0", "rank 2"),
    "nobody waits for the silent": (
        {0: waits(LATE_2[0], "dp"), 2: LATE_2[2]},
        sight(r1=ENDED, r3=ENDED),
        (1, 3),
        "Behind 2, Silent 1, Silent 3, Rank 0",
        "rank 2",
    ),
    "a silent one is awaited": (
        {0: waits(LATE_2[0], "dp")},
        sight(r1=ENDED, r2=ENDED, r3=ENDED),
        (1, 2, 3),
        "Silent 2, Silent 1, Silent 3, Rank 0",
        "rank 2",
    ),
    "one has raised": (RAISED, sight(r2=UNKNOWN), (2,), "Left 1, Silent 2, Ranks 0", "rank 1"),
    "one is stopped": (
        statuses(),
        sight(r0=BUSY, r1=UNKNOWN, r2=STOPPED),
        (2,),
        "Silent 2, Silent 1, Busy 0",
        "rank 2",
    ),
    "one has left the guard": (
        {**WAITING, 3: replace(LATE_3[3], left_guard=2)},
        {},
        (),
        "Behind 3, Ranks 0-2",
        "rank 3",
    ),
    "one is behind, two have closed": (CLOSED, {}, (), "Behind 3, Left 2, Ranks 0-1", "rank 3"),
    "one is busy, another has closed": (
        statuses() | {2: CLOSED[2]},
        sight(r0=BUSY),
        (0,),
        "Busy 0, Left 2, Ranks 1",
        "rank 0",
    ),
    "one is busy": (statuses(), sight(r0=BUSY), (0,), "Busy 0, Ranks 1-3", "rank 0"),
}


@pytest.mark.parametrize("case", REPORTS.values(), ids=REPORTS)
def test_the_report_names_the_first_suspect(case: Report) -> None:
    at, silent, missing, lines, first = case
    answered = {rank: status for rank, status in at.items() if rank not in silent}
    error = hang_error("all_reduce failed.", LAYOUT, answered, silent)
    words = [re.sub(r"[:,]|rank ", "", line).split()[:2] for line in error.evidence]
    assert ", ".join(" ".join(pair) for pair in words).startswith(lines)
    assert error.missing_ranks == missing
    assert error.behind == tuple(lagging_ranks(LAYOUT, answered))
    assert error.fix_text.startswith(f"look at {first}")


def test_the_lines_of_many_ranks_are_cut_after_the_first_suspect() -> None:
    """A hundred ranks wait for 0 to 98, of which 77 waits for no rank."""
    layout = meshkit.Layout(dp=100)
    at = {rank: RankStatus(rank, {"dp": 1 + (rank == 99)}, "send", "dp") for rank in range(100)}
    at[77] = RankStatus(77, {"dp": 1}, line="train.py:3 (load_batch)")
    error = hang_error("x.", layout, at, {})
    assert error.evidence[0].startswith("Behind: rank 77 (dp=77) ")
    assert len(error.evidence) == 8 + 1
    assert error.behind == tuple(range(99))


# ranks that answered, ranks that left, states of the silent, seconds, expired -> it decides
WAITED = {
    "all have answered": ((0, 1, 2, 3), (), {}, 0.0, False, True),
    "one may run": ((0, 1, 3), (), {2: UNKNOWN}, 2.0, False, False),
    "one is stopped, and may go on": ((0, 1, 3), (), {2: STOPPED}, 2.0, False, False),
    "one has ended": ((0, 1, 3), (), {2: ENDED}, 0.0, False, True),
    "one has ended, another runs": ((0, 1), (), {2: ENDED, 3: BUSY}, 0.0, False, False),
    "no time is left": ((0, 1), (), {2: BUSY, 3: BUSY}, 4.0, True, True),
    "one has left": ((0, 1, 3), (2,), {}, 0.0, False, True),
    "one has left, another runs": ((0, 1), (2,), {3: BUSY}, 0.0, False, False),
    "the cause is known": ((0, 1), (2,), {3: BUSY}, KNOWN, False, True),
    "the cause is known, another may run": ((0, 1), (2,), {3: UNKNOWN}, KNOWN, False, True),
    "one has closed, another runs": ((0, 1), (-2,), {3: BUSY}, KNOWN, False, False),
}


def judge(
    answered: Iterable[int],
    gone: Iterable[int],
    states: dict[int, RankState],
    *,
    summary: str = "x.",
    late: bool = True,
    **options: Any,
) -> Any:
    """Return the decision of a roll call in which rank 0 may be late."""
    at = statuses(dp_0=7) if late else statuses()
    at[3] = RankStatus(3, at[3].begun, "all_reduce", "dp", "a.py:3 (f)", left_guard=2, waited=0.5)
    posted = {rank: json.loads(json.dumps(at[rank].to_facts())) for rank in answered}
    assert all(RankStatus.from_facts(rank, posted[rank]) == at[rank] for rank in posted)
    arrived = {rank: Arrival(Process("b", rank), facts) for rank, facts in posted.items()}
    sightings = {rank: Sighting(state, "facts") for rank, state in states.items()}
    left = {rank: RankStatus(rank, error="ValueError") for rank in gone if rank > 0}
    left |= {-rank: replace(at[-rank], ended_by="mesh.close()") for rank in gone if rank < 0}
    roll_call = who_is_behind(LAYOUT, summary, lambda ranks: left, known=KNOWN)
    return roll_call(Arrivals(range(4), arrived, seen=sightings, **options))


@pytest.mark.parametrize("case", WAITED.values(), ids=WAITED)
def test_who_is_waited_for(case: tuple[Any, ...]) -> None:
    answered, gone, states, waited, expired, decides = case
    decision = judge(answered, gone, states, waited=waited, expired=expired)
    assert (decision is not None) is decides
    if decides:
        assert decision.error.missing_ranks == (() if gone else tuple(states))


def test_a_suspicion_without_a_cause_is_not_reported() -> None:
    assert judge(range(4), (), {}, summary="", late=False).error is None
    assert judge(range(4), (), {}, summary="").error.behind == (0,)
