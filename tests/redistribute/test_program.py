"""A move in progress, without ranks."""

from __future__ import annotations

import pytest

import meshkit
from meshkit.redistribute.program import Handle


def test_the_result_of_a_move_stays() -> None:
    handle = Handle(iter([1]).__next__)
    assert (handle.wait(), handle.wait()) == (1, 1)


def test_a_move_that_has_failed_has_no_result_later() -> None:
    def fail() -> None:
        raise ValueError("lost")

    handle = Handle(fail)
    with pytest.raises(ValueError, match="lost"):
        handle.wait()
    for _ in range(2):
        with pytest.raises(meshkit.CollectiveError, match="failed in an earlier wait"):
            handle.wait()
