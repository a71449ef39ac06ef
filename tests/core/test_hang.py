"""The report of a roll call: who is waited for, who is behind, and the error that names them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit.core.hang import Lag, RankStatus, hang_error, lagging_ranks, who_is_behind
from meshkit.core.judges import Arrival, Arrivals, Process, RankState, Sighting
from meshkit.testing import layouts

LAYOUT = meshkit.Layout(dp=2, sp=2)
KNOWN = 0.3  # seconds for the answers if a rank has left
ENDED = Sighting(RankState.ENDED, "host b, pid 4")


def places(**late: int) -> dict[int, RankStatus]:
    """Every rank has begun 8 of each, but for those that are late over an axis: dp_2=7."""
    counts = {rank: {"dp": 8, "sp": 8} for rank in range(4)}
    for key, count in late.items():
        axis, _, rank = key.partition("_")
        counts[int(rank)][axis] = count
    return {rank: RankStatus(rank, begun) for rank, begun in counts.items()}


@given(st.data())
def test_behind_by_a_derivation_of_its_own(data: st.DataObject) -> None:
    """A rank is behind where a peer that differs in that axis only has begun more."""
    layout = data.draw(layouts(max_ranks=32))
    ranks = [int(rank) for rank in layout.grid.flat]
    answered = data.draw(st.sets(st.sampled_from(ranks)))
    counts = {
        rank: {axis: data.draw(st.integers(0, 3)) for axis in layout.axes} for rank in answered
    }
    found = lagging_ranks(layout, {rank: RankStatus(rank, begun) for rank, begun in counts.items()})
    expected = {}
    for rank in answered:
        at = layout.coordinate(rank)
        for axis in layout.axes:
            others = [layout.rank(**{**at, axis: i}) for i in range(layout.sizes[axis])]
            most = max(counts[other][axis] for other in others if other in answered)
            if most > counts[rank][axis]:
                gap = most - counts[rank][axis]
                expected[rank] = max(gap, expected.get(rank, 0))
    assert {rank: one.most - one.begun for rank, one in found.items()} == expected
    assert list(found) == sorted(found)


def test_the_group_in_which_a_rank_is_furthest_behind_counts() -> None:
    assert lagging_ranks(LAYOUT, places(dp_2=7, sp_2=5)) == {2: Lag("sp", 5, 8)}
    assert lagging_ranks(LAYOUT, places()) == {}


def hang(found: dict[int, RankStatus], silent: dict[int, Sighting]) -> meshkit.CollectiveError:
    error = "all_reduce over sp failed on rank 3: RuntimeError: timed out."
    return hang_error(error, LAYOUT, found, silent)


def test_word_for_word() -> None:
    """2 sleeps; 0 waits for it over dp; 1 and 3 wait for 0 and 2 over sp."""
    at = places(dp_2=7, sp_0=7, sp_2=7)
    at[2] = RankStatus(2, at[2].begun, line="train.py:3 (load_batch)")
    at[0] = RankStatus(0, at[0].begun, "all_reduce", "dp", "train.py:17 (step)")
    for rank in (1, 3):
        at[rank] = RankStatus(rank, at[rank].begun, "all_reduce", "sp", "train.py:18 (step)")
    error = hang(at, {})
    assert str(error) == (
        "all_reduce over sp failed on rank 3: RuntimeError: timed out.\n"
        "  Behind: rank 2 (dp=1 sp=0) has begun 7 of 8 collectives over dp; "
        "in no collective, train.py:3 (load_batch).\n"
        "  Behind: rank 0 (dp=0 sp=0) has begun 7 of 8 collectives over sp; "
        "in all_reduce over dp, train.py:17 (step).\n"
        "  Ranks 1, 3: in all_reduce over sp, train.py:18 (step).\n"
        "  Fix: look at rank 2 first; then mesh.close(), meshkit.shutdown(), "
        "and build again on all ranks."
    )
    assert (error.behind, error.missing_ranks) == ((0, 2), ())


def test_a_rank_that_does_not_answer_is_looked_at_first() -> None:
    at = places(dp_0=7)
    del at[2]
    error = hang(at, {2: Sighting(RankState.ENDED, "host b, pid 311")})
    assert "  Silent: rank 2 (dp=1 sp=0): host b, pid 311; it has ended.\n" in str(error)
    assert error.missing_ranks == (2,)
    assert str(error).splitlines()[-1].startswith("  Fix: look at rank 2 first; ")


def test_a_silent_rank_for_which_nobody_waits_is_not_looked_at_first() -> None:
    """0 waits for 2 over dp; 1 and 3 have left the guard in peace."""
    at = places(dp_2=7)
    at[0] = RankStatus(0, at[0].begun, "all_reduce", "dp", "train.py:17 (step)")
    text = str(hang({0: at[0], 2: at[2]}, {1: ENDED, 3: ENDED}))
    assert text.splitlines()[-1].startswith("  Fix: look at rank 2 first; ")
    text = str(hang({0: at[0]}, {1: ENDED, 2: ENDED, 3: ENDED}))
    assert text.splitlines()[-1].startswith("  Fix: look at rank 2 first; ")


def test_a_rank_that_left_with_an_error_is_looked_at_before_all_others() -> None:
    at = places(dp_0=7)
    at[1] = RankStatus(1, at[1].begun, error="ValueError: bad sample 17")
    text = str(hang(at, {2: Sighting(RankState.UNKNOWN, "no answer")}))
    assert "  Left: rank 1 (dp=0 sp=1) left with ValueError: bad sample 17.\n" in text
    assert text.splitlines()[-1].startswith("  Fix: look at rank 1 first; ")


def test_nobody_is_behind() -> None:
    text = str(hang(places(), {}))
    assert "  Ranks 0-3: in no collective, no line is known.\n" in text
    assert "  Fix: look at the logs of all ranks; then mesh.close(), meshkit.shutdown()" in text


def test_who_is_looked_at_first_is_told_first() -> None:
    """A hundred ranks wait for 0 to 98, of which 77 waits for nobody."""
    layout = meshkit.Layout(dp=100)
    at = {rank: RankStatus(rank, {"dp": 1 + (rank == 99)}, "send", "dp") for rank in range(100)}
    at[77] = RankStatus(77, {"dp": 1}, line="train.py:3 (load_batch)")
    text = str(hang_error("x.", layout, at, {}))
    assert text.splitlines()[1].startswith("  Behind: rank 77 (dp=77) ")
    assert text.splitlines()[-1].startswith("  Fix: look at rank 77 first; ")


def test_many_lines_are_cut() -> None:
    layout = meshkit.Layout(dp=100)
    at = {rank: RankStatus(rank, {"dp": rank}) for rank in range(100)}
    error = hang_error("x.", layout, at, {})
    lines = str(error).splitlines()
    assert len(lines) == 1 + 8 + 1 + 1
    assert lines[1].startswith("  Behind: rank 0 ")
    assert lines[9] == "  and 92 more."
    assert error.behind == tuple(range(99))


def test_ranks_that_are_slow_do_not_stand_beside_one_that_is_stopped() -> None:
    at = places()
    silent = {
        0: Sighting(RankState.BUSY, "host b, pid 3"),
        1: Sighting(RankState.UNKNOWN, "host c, pid 4"),
        2: Sighting(RankState.STOPPED, "host b, pid 5"),
    }
    error = hang({3: at[3]}, silent)
    lines = str(error).splitlines()
    assert error.missing_ranks == (2,)
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["Silent:", "rank", "2"],
        ["Silent:", "rank", "1"],
        ["Busy:", "rank", "0"],
    ]
    assert lines[-1].startswith("  Fix: look at rank 2 first; ")
    del silent[2]
    assert hang({2: at[2], 3: at[3]}, silent).missing_ranks == (1,)
    del silent[1]
    assert hang({1: at[1], 2: at[2], 3: at[3]}, silent).missing_ranks == (0,)


def test_a_busy_rank_is_not_missing_if_another_is_the_reason() -> None:
    at = places(dp_0=7)
    at[1] = RankStatus(1, at[1].begun, error="ValueError: bad sample 17")
    busy = {2: Sighting(RankState.BUSY, "host b, pid 5")}
    assert hang(at | {0: at[0]}, busy).missing_ranks == ()


# ranks that answered, ranks that left, states of the silent, seconds, expired -> it decides
WAITED = {
    "all have answered": ((0, 1, 2, 3), (), {}, 0.0, False, True),
    "one runs": ((0, 1, 3), (), {2: RankState.BUSY}, 2.0, False, False),
    "one may run": ((0, 1, 3), (), {2: RankState.UNKNOWN}, 2.0, False, False),
    "one is stopped, and may go on": ((0, 1, 3), (), {2: RankState.STOPPED}, 2.0, False, False),
    "one has ended": ((0, 1, 3), (), {2: RankState.ENDED}, 0.0, False, True),
    "one has ended, another runs": (
        (0, 1),
        (),
        {2: RankState.ENDED, 3: RankState.BUSY},
        0.0,
        False,
        False,
    ),
    "no time is left": ((0, 1), (), {2: RankState.BUSY, 3: RankState.BUSY}, 4.0, True, True),
    "one has left": ((0, 1, 3), (2,), {}, 0.0, False, True),
    "one has left, another runs": ((0, 1), (2,), {3: RankState.BUSY}, 0.0, False, False),
    "the cause is known": ((0, 1), (2,), {3: RankState.BUSY}, KNOWN, False, True),
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
    at = places(dp_0=7) if late else places()
    arrived = {rank: Arrival(Process("b", rank), at[rank].to_facts()) for rank in answered}
    sightings = {rank: Sighting(state, "facts") for rank, state in states.items()}
    left = {rank: RankStatus(rank, error="ValueError") for rank in gone}
    roll_call = who_is_behind(LAYOUT, summary, lambda ranks: left, known=KNOWN)
    return roll_call(Arrivals(range(4), arrived, seen=sightings, **options))


@pytest.mark.parametrize("case", WAITED.values(), ids=WAITED)
def test_who_is_waited_for(case: tuple[Any, ...]) -> None:
    answered, gone, states, waited, expired, decides = case
    decision = judge(answered, gone, states, waited=waited, expired=expired)
    assert (decision is not None) is decides
    if decides and not gone:
        assert decision.error.missing_ranks == tuple(states)


def test_a_suspicion_without_a_cause_is_not_reported() -> None:
    assert judge(range(4), (), {}, summary="", late=False).error is None
    assert judge(range(4), (), {}, summary="").error.behind == (0,)


def test_a_status_is_equal_after_its_way_through_json() -> None:
    status = RankStatus(2, {"dp": 3}, "all_reduce", "dp", "a.py:3 (f)", "ValueError: x", "close")
    assert RankStatus.from_facts(2, json.loads(json.dumps(status.to_facts()))) == status
