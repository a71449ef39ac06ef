"""Maps: the rows, equal answers of both sides, and peers that are missing."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from benchmarks import maps
from benchmarks.maps import DEEPSPEED, GROUPS, MEGATRON, POSITION

SIZES = {"dp": 3, "sp": 2, "tp": 4}  # unequal, so that no two axes can be mistaken
GRID = np.arange(24).reshape(3, 2, 4)
PACKAGES = {MEGATRON: "megatron", DEEPSPEED: "deepspeed"}


def peers(questions: maps.Peers) -> Any:
    return [
        pytest.param(
            question,
            id=peer,
            marks=pytest.mark.skipif(
                find_spec(PACKAGES.get(peer, "torch")) is None,
                reason=f"{peer} is not installed: pip install -e '.[bench]'",
            ),
        )
        for peer, question in questions.items()
    ]


@pytest.fixture
def barely_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = maps.time_in_turns
    monkeypatch.setattr(maps, "SCALES", (8,))
    monkeypatch.setattr(maps, "time_in_turns", lambda *args: timed(*args, min_seconds=0.0))


@pytest.mark.parametrize("groups", peers(GROUPS))
def test_a_peer_returns_the_groups_of_the_same_grid(groups: Callable[..., Any]) -> None:
    expected = [np.moveaxis(GRID, i, -1).reshape(-1, n) for i, n in enumerate(GRID.shape)]
    answer = [sorted(np.asarray(axis).tolist()) for axis in groups(SIZES)()]
    assert answer == [sorted(axis.tolist()) for axis in expected]


@pytest.mark.parametrize("position", peers(POSITION))
def test_a_peer_returns_the_position_on_the_same_grid(position: Callable[..., Any]) -> None:
    coordinate, groups = position(SIZES)()  # of rank 8
    assert coordinate == {"dp": 1, "sp": 0, "tp": 0}
    assert groups == [[0, 8, 16], [8, 12], [8, 9, 10, 11]]


@pytest.mark.parametrize(
    ("rows", "name", "answer"),
    [
        (maps.group_rows, "GROUPS", [[[0, 1]]]),
        (maps.coordinate_rows, "COORDINATE", {"dp": 0}),
        (maps.position_rows, "POSITION", ({}, [])),
    ],
)
def test_sides_that_differ_are_not_timed(
    rows: Callable[..., Any], name: str, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, name, {"wrong": lambda sizes: lambda: answer})
    with pytest.raises(RuntimeError, match="meshkit and wrong differ"):
        rows(8, 1)


def test_memory_does_not_grow_and_growth_would_be_seen() -> None:
    few = max(maps.memory(8) for _ in range(3))  # the first one fills caches
    assert 0 < maps.memory(1_048_576) < 2 * few
