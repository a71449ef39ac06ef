"""The list of missing ranks in an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from meshkit.core.text import format_ranks
from meshkit.launch.agreement.missing_ranks import first_few, missing_ranks_error, shorten_ranks
from meshkit.launch.store.check_in import CheckIn, ProcessIdentity
from meshkit.launch.store.rank_lease import LeaseHolder, process_start


def test_a_long_list_is_cut_after_eight_names() -> None:
    assert first_few(list("abcdefgh")) == list("abcdefgh")
    assert first_few(list("abcdefghij")) == [*"abcdefgh", "and 2 more"]


@pytest.fixture
def child() -> Iterator[int]:
    """Yield the pid of a process that sleeps."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process.pid
        process.kill()


def holder(pid: int) -> LeaseHolder:
    return LeaseHolder(ProcessIdentity.current()._replace(pid=pid), process_start(pid), "c")


def test_a_stopped_rank_is_missing_and_ranks_that_run_are_late(child: int) -> None:
    holders = {3: holder(os.getpid()), 5: holder(child), 7: holder(os.getpid())}
    here = {rank: CheckIn(ProcessIdentity.current()) for rank in (0, 1, 2, 4, 6)}
    error = missing_ranks_error("", 5, here, [3, 5, 7], None, holders=holders)
    assert error.missing_ranks == (3, 5, 7)
    os.kill(child, signal.SIGSTOP)
    while holders[5].life().name != "STOPPED":
        time.sleep(0.01)
    error = missing_ranks_error("", 5, here, [3, 5, 7], lambda r: f"dp={r}", holders=holders)
    assert error.missing_ranks == (5,)
    assert error.summary.startswith("3 of 8 ranks did not arrive")
    assert error.evidence[0].startswith("Missing: 5 (dp=5) is stopped. Arrived: 0-2, 4, 6 ")
    assert error.evidence[1] == "Ranks 3, 7: late, and not known to have ended."
    assert error.fix_text == "look at the logs of rank 5 first."


def test_the_text_and_the_list_are_bounded_for_any_number_of_ranks() -> None:
    every_second = range(0, 2_000_000, 2)
    error = missing_ranks_error("", 5, {1: CheckIn(ProcessIdentity.current())}, every_second, None)
    assert len(str(error)) < 2000
    assert len(error.missing_ranks) == 100_000
    assert shorten_ranks([1, 2, 5]) == format_ranks([1, 2, 5])
