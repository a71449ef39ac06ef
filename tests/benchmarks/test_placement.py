"""Placement on two hosts with a slow link: which order is faster, not by how much."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.hosts import NoHostsError
from benchmarks.placement import measure


@pytest.mark.slow
def test_tp_is_faster_within_hosts() -> None:
    try:
        times = measure(repeats=1, ranks=4)
    except NoHostsError as error:
        pytest.skip(str(error))
    assert times["tp_cyclic"] == [0, 1]
    assert times["tp_placed"] == [0, 2]  # the even ranks are on one host
    assert median(times["placed"]) < median(times["cyclic"])
