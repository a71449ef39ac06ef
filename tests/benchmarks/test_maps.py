"""Maps: which rows there are, that both sides say the same, and who is missing."""

from __future__ import annotations

import doctest
import importlib.util
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks import maps, peers
from benchmarks.peers import DEEPSPEED, DEVICE_MESH, EVERY, MEGATRON, NUMPY, Peer
from benchmarks.rows import ITSELF, Row

SIZES = {"dp": 3, "sp": 2, "tp": 4}  # unequal, so that no two axes can be mistaken
GRID = np.arange(24).reshape(3, 2, 4)
PLACE = ({"dp": 1, "sp": 0, "tp": 3}, [[3, 11, 19], [11, 15], [8, 9, 10, 11]])  # of rank 11


def needs(peer: Peer) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not peer.installed, reason=f"{peer.package} is not installed: pip install -e '.[bench]'"
    )


WITH = [pytest.param(peer, marks=needs(peer), id=peer.package) for peer in EVERY]


@pytest.fixture
def one_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks alone, hardly timed."""
    monkeypatch.setattr(maps, "QUICK", (8,))
    timed = maps.in_turns
    monkeypatch.setattr(maps, "in_turns", lambda *args: timed(*args, least=0.0))


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(peers).failed == doctest.testmod(maps).failed == 0


@pytest.mark.parametrize("peer", WITH)
def test_a_peer_answers_for_the_same_grid(peer: Peer) -> None:
    if peer.groups is not None:
        every = [maps.rows_of(axis) for axis in peer.groups(SIZES)()]
        expected = [np.moveaxis(GRID, i, -1).reshape(-1, n) for i, n in enumerate(GRID.shape)]
        assert every == [sorted(axis.tolist()) for axis in expected]
    if peer.coordinate is not None:
        assert peer.coordinate(SIZES)(11) == PLACE[0]
    if peer.rank is not None:
        assert peer.rank(SIZES)(PLACE[0]) == 11
    if peer.place is not None:
        at, groups = peer.place(SIZES, 11)
        assert (at, groups) == PLACE


def test_who_can_answer_what() -> None:
    answers = {
        peer.package: [
            name for name in ("groups", "coordinate", "rank", "place") if has(peer, name)
        ]
        for peer in EVERY
    }
    assert answers == {
        "numpy": ["groups", "coordinate", "rank"],
        "megatron-core": ["groups", "place"],
        "deepspeed": ["groups", "coordinate", "rank", "place"],
        "torch": ["place"],
    }


def has(peer: Peer, name: str) -> bool:
    return getattr(peer, name) is not None


@pytest.mark.usefixtures("one_scale")
def test_every_work_has_a_row_for_every_peer() -> None:
    found = maps.run(quick=True)
    assert len(set(found)) == len(found)
    named = {(row.what, row.peer) for row in found}
    assert named == {
        ("rank -> coordinate, all ranks", NUMPY.name),
        *(("all groups of every axis", peer.name) for peer in (NUMPY, MEGATRON, DEEPSPEED)),
        *(("rank -> coordinate, one rank", peer.name) for peer in (NUMPY, DEEPSPEED)),
        *(("coordinate -> rank, one rank", peer.name) for peer in (NUMPY, DEEPSPEED)),
        *(
            ("sizes -> my coordinate and my groups", p.name)
            for p in (MEGATRON, DEEPSPEED, DEVICE_MESH)
        ),
        *((what, ITSELF) for what in maps.questions(maps.layout_of(8))),
        ("memory of a layout that has answered", ITSELF),
    }
    for row in found:
        assert (row.ratio is None) == (row.lacks is not None)
        assert row.ratio is None or row.ratio.low > 0


def test_a_peer_that_is_not_installed_is_named_once_a_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    asked = [maps.group_rows(ranks, 1) for ranks in (8, 64)]
    found = maps.named_once([row for some in asked for row in some])
    assert {row.peer for row in found} == {NUMPY.name, MEGATRON.name, DEEPSPEED.name}
    assert [row.scale for row in found] == [64, 64, 64]  # the most that were asked about
    assert found[1].lacks == (
        "megatron-core is not installed: pip install -c constraints.txt -e '.[bench]'"
    )


def test_goals_hold_from_the_scale_they_were_set_for() -> None:
    assert [maps.goal(NUMPY, n) for n in (8, 65_536, 1_048_576)] == [None, maps.FLOOR, maps.FLOOR]
    assert [maps.goal(MEGATRON, n) for n in (1024, 65_536)] == [None, maps.PEERS]
    assert maps.row_of_peer("w", 1_048_576, MEGATRON, len, not_asked) == []
    assert maps.row_of_peer("w", 8, MEGATRON, None, not_asked) == []


def not_asked(peer: Peer, question: Callable[..., object]) -> Row:
    raise AssertionError(f"{peer.name} was asked")


def test_sides_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Peer("wrong", "numpy", groups=lambda sizes: lambda: [[[0, 1]]])
    monkeypatch.setattr(maps, "EVERY", (wrong,))
    with pytest.raises(RuntimeError, match="all groups of every axis: meshkit and wrong differ"):
        maps.group_rows(8, 1)
    wrong = Peer("wrong", "numpy", coordinate=lambda sizes: lambda rank: {"dp": rank})
    monkeypatch.setattr(maps, "EVERY", (wrong,))
    with pytest.raises(RuntimeError, match="rank -> coordinate, one rank: meshkit and wrong"):
        maps.coordinate_rows(8, 1)


def test_ranks_asked_about_are_spread_over_all() -> None:
    assert maps.asked(8) == [*range(8)]
    spread = maps.asked(65_536)
    assert (len(spread), spread[0], spread[-1]) == (16, 0, 65_535)
    turn = maps.each(lambda rank: rank, [4, 5])
    assert [turn() for _ in range(3)] == [4, 5, 4]


def test_memory_does_not_grow_and_would_be_seen_to() -> None:
    few, many = maps.memory(8), maps.memory(1_048_576)
    assert 0 < few <= many < 2 * few


def test_one_question_beside_numpy_has_no_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "PEERS_UP_TO", 8)
    slow = Peer("slow", "numpy", coordinate=NUMPY.coordinate, rank=NUMPY.rank)
    monkeypatch.setattr(maps, "EVERY", (NUMPY, slow))
    found = [*maps.coordinate_rows(8, 1), *maps.rank_rows(8, 1)]
    assert [(row.peer, row.goal) for row in found] == [
        ("numpy", None),
        ("slow", maps.PEERS),
        ("numpy", None),
        ("slow", None),
    ]
