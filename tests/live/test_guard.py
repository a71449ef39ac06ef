"""mesh.guard: collectives that fail or hang, told in coordinates."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest

from tests.live import guard_jobs as jobs
from tests.promises import BUSY


@pytest.mark.job(jobs.one_sleeps, 4, (6.0, 2.0, None))
def test_a_rank_that_hangs_is_behind_and_its_line_is_told(by_rank: list[Any]) -> None:
    texts = {told["text"] for told, _, _ in by_rank}
    assert len(texts) == 1
    (text,) = texts
    lines = text.splitlines()
    assert re.match(
        r"mesh.guard\(timeout=2.0\): all_reduce over (dp|sp) failed on rank [013]: RuntimeError: ",
        lines[0],
    )
    assert "  Behind: rank 0 (dp=0 sp=0) has begun 1 of 2 collectives over sp; " in text
    behind = "  Behind: rank 2 (dp=1 sp=0) has begun 1 of 2 collectives over dp; "
    sleeping = r"in no collective, guard_jobs.py:\d+ \(load_batch\)\."
    assert re.search(re.escape(behind) + sleeping, text), text
    assert re.search(
        r"  Ranks 1, 3: in all_reduce over sp, guard_jobs.py:\d+ \(one_sleeps\)\.", text
    )
    again = "mesh.close(), meshkit.shutdown(), and build again on all ranks."
    assert lines[-1] == f"  Fix: look at rank 2 first; then {again}"
    for rank, (told, seconds, left) in enumerate(by_rank):
        assert (told["kind"], told["missing"], told["behind"]) == ("CollectiveError", [], [0, 2])
        assert told["cause"] == "RuntimeError"
        assert rank == 2 or 2 <= seconds < 2 + 4 + 3 + BUSY
        assert left == 0


@pytest.mark.job(jobs.one_sleeps, 4, (10.0, None, 2.0))
def test_without_a_timeout_the_groups_own_applies_and_a_rank_that_hangs_is_silent(
    by_rank: list[Any],
) -> None:
    told, seconds, _ = by_rank[0]
    host = socket.gethostname()
    silent = rf"  Silent: rank 2 \(dp=1 sp=0\): host {host}, pid \d+; it runs, outside a guard "
    assert re.search(silent, told["text"]), told["text"]
    assert told["missing"] == [2]
    assert 2 <= seconds < 2 + 4 + BUSY  # before it wakes


@pytest.mark.job(jobs.one_raises, 4)
def test_a_rank_that_left_with_an_error_of_its_own_is_quoted_and_all_build_again(
    by_rank: list[Any],
) -> None:
    assert [total for _, total in by_rank] == [4] * 4
    assert (by_rank[1][0]["kind"], by_rank[1][0]["text"]) == ("ValueError", "bad sample 17")
    for rank in (0, 2, 3):
        told = by_rank[rank][0]
        assert told["kind"] == "CollectiveError"
        assert "rank 1 (dp=0 sp=1)" in told["text"]
        assert "left with ValueError: bad sample 17." in told["text"]
        assert "  Fix: look at rank 1 first; " in told["text"]


@pytest.mark.job(jobs.left_long_ago, 4)
def test_an_error_that_was_caught_long_ago_is_forgotten(by_rank: list[Any]) -> None:
    for told in by_rank:
        assert told["behind"] == [2]
        assert "StopIteration" not in told["text"]
        assert "(load_batch)" in told["text"]


@pytest.mark.job(jobs.hangs_elsewhere, 2)
def test_a_hang_in_a_group_of_ones_own_is_reported_too(by_rank: list[Any]) -> None:
    seen, _ = by_rank
    assert len(seen) == 1
    line = "mesh.guard(timeout=1): rank 0 waits in all_reduce over a group of mine."
    assert seen[0].splitlines()[0] == line
    assert "Rank 0: in all_reduce over a group of mine, " in seen[0]
    assert "Rank 1: in no collective, guard_jobs.py:" in seen[0]


@pytest.mark.job(jobs.two_false_alarms_and_a_hang, 2)
def test_a_false_alarm_does_not_switch_the_guard_off(by_rank: list[Any]) -> None:
    told, _ = by_rank
    assert told["behind"] == [1]
    assert "(load_batch)" in told["text"]


@pytest.mark.job(jobs.healthy, 2)
def test_where_nothing_fails_times_are_put_back_and_no_thread_is_left(by_rank: list[Any]) -> None:
    for times, inside, left in by_rank:
        assert times == [50, 7, 3, 7, 50, 50]
        assert (inside, left) == (1, 0)


@pytest.mark.job(jobs.other_errors, 2)
def test_other_errors_pass_unchanged(by_rank: list[Any]) -> None:
    for found in by_rank:
        assert found[:3] == [True] * 3
        assert found[3].startswith("mesh.guard(timeout=0): timeout is 0.")


@pytest.mark.job(jobs.stalls_where_nobody_raises, 2, (9.0,))
def test_a_hang_that_raises_nothing_is_noticed_by_the_thread_beside_it(by_rank: list[Any]) -> None:
    """The path of nccl, on gloo: the report is out and the groups are aborted before any error."""
    told, aborted = by_rank[0]
    assert aborted
    line = r"mesh.guard\(timeout=1\): rank [01] begins no collective\."
    assert re.match(line, told["text"]), told["text"]
    assert told["behind"] == [1]
    assert "(load_batch)" in told["text"]


@pytest.mark.job(jobs.closes_together, 2, (False,))
def test_closing_together_waits_for_all(by_rank: list[Any]) -> None:
    for what, _, shown in by_rank:
        assert (what, shown[-7:]) == ("closed", "closed)")


@pytest.mark.job(jobs.closes_together, 2, (True,))
def test_closing_together_names_who_does_not_come(by_rank: list[Any]) -> None:
    assert by_rank[0][0] == "1 of 2 ranks did not arrive at mesh.close() within 2 s."
    assert by_rank[0][1] < 2 + BUSY
    assert by_rank[0][2].endswith("closed)")
