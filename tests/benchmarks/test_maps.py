"""Maps: the rows, equal answers of both sides, and peers that are missing."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
import pytest

from benchmarks import maps
from benchmarks.harness import ITSELF
from benchmarks.maps import COORDINATE, DEEPSPEED, DEVICE_MESH, GROUPS, MEGATRON, NUMPY, POSITION

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


@pytest.mark.parametrize("coordinate", peers(COORDINATE))
def test_a_peer_returns_the_coordinates_of_the_same_grid(coordinate: Callable[..., Any]) -> None:
    question = coordinate(SIZES)
    answers = [tuple(question().values()) for _ in range(maps.NUM_ASKED)]
    assert answers[0] == (0, 0, 0)
    assert answers[-1] == (2, 1, 3)
    assert {*answers} <= {*product(range(3), range(2), range(4))}


@pytest.mark.parametrize("position", peers(POSITION))
def test_a_peer_returns_the_position_on_the_same_grid(position: Callable[..., Any]) -> None:
    coordinate, groups = position(SIZES)()  # of rank 8
    assert coordinate == {"dp": 1, "sp": 0, "tp": 0}
    assert groups == [[0, 8, 16], [8, 12], [8, 9, 10, 11]]


@pytest.mark.slow
@pytest.mark.usefixtures("barely_timed")
def test_every_work_has_a_row_for_every_peer() -> None:
    rows = maps.run(quick=True)
    assert len(set(rows)) == len(rows)
    assert {(row.what, row.peer) for row in rows} == {
        ("rank -> coordinate, all ranks", NUMPY),
        *(("all groups of every axis", peer) for peer in (NUMPY, MEGATRON, DEEPSPEED)),
        ("rank -> coordinate, one rank", DEEPSPEED),
        *(
            ("sizes -> my coordinate and my groups", peer)
            for peer in (MEGATRON, DEEPSPEED, DEVICE_MESH)
        ),
        *((what, ITSELF) for what in maps.questions(maps.layout_of(8))),
        ("memory of a layout that has answered", ITSELF),
    }
    for row in rows:
        assert (row.ratio is None) == (row.missing is not None)
        assert row.ratio is None or row.ratio.low > 0


def test_a_missing_peer_is_named() -> None:
    def missing(sizes: maps.Sizes) -> Any:
        return maps.import_quietly("no_such_package")

    (row,) = maps.peer_rows("work", 8, 1, list, {"absent": missing})
    assert row.missing == (
        "no_such_package is not installed: pip install -c constraints.txt -e '.[bench]'"
    )


@pytest.mark.usefixtures("barely_timed")
@pytest.mark.parametrize(
    ("ranks", "goals"),
    [
        (8, {"numpy": None, "peer": None}),
        (65_536, {"numpy": maps.FLOOR, "peer": maps.PEERS}),
        (1_048_576, {"numpy": maps.FLOOR}),  # other peers are not asked: they are too slow
    ],
)
def test_goals_hold_from_the_scale_they_were_set_for(ranks: int, goals: dict[str, Any]) -> None:
    rows = maps.peer_rows(
        "work", ranks, 1, list, {name: lambda _: list for name in ("numpy", "peer")}
    )
    assert {row.peer: row.goal for row in rows} == goals


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


def test_every_answer_of_one_question_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = maps.layout_of(8)

    def last_is_wrong(sizes: maps.Sizes) -> Any:
        wrong = {"dp": 9, "sp": 9, "tp": 9}
        return maps.for_each(lambda rank: wrong if rank == 7 else layout.coordinate(rank), sizes)

    monkeypatch.setattr(maps, "COORDINATE", {"wrong": last_is_wrong})
    with pytest.raises(RuntimeError, match=r"differ: .* and {'dp': 9"):
        maps.coordinate_rows(8, 1)


def test_memory_does_not_grow_and_growth_would_be_seen() -> None:
    few, many = maps.memory(8), maps.memory(1_048_576)
    assert 0 < few <= many < 2 * few
