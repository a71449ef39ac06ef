"""Ranks put on near wires, on two hosts with a slow wire between: the order, not the seconds."""

from __future__ import annotations

import pytest

from benchmarks.placement import Found, measure
from benchmarks.two_hosts import NoHostsError


def test_tp_is_faster_on_near_wires() -> None:
    try:
        found = measure(repeats=1, ranks=4)
    except NoHostsError as error:
        pytest.skip(str(error))
    assert found.tp_as_dealt == [0, 1]
    assert found.tp_placed == [0, 2]  # the even ranks are on one host
    assert found.ratio > 1, found


def test_what_is_printed() -> None:
    assert str(Found([1.0, 1.2], [0.1, 0.1], [0, 1, 2, 3], [0, 2, 4, 6])) == (
        "all_reduce of 4 MiB over tp=4, 8 ranks dealt in turn to 2 hosts, 200mbit between:\n"
        "  as dealt      1100.0 ms   tp group of rank 0: [0, 1, 2, 3]\n"
        "  place=True     100.0 ms   tp group of rank 0: [0, 2, 4, 6]\n"
        "  11 times faster (10 to 12)"
    )
