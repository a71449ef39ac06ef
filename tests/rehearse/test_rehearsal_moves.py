"""Moves between two meshes, rehearsed."""

from __future__ import annotations

import pytest
import torch

import meshkit
from meshkit.errors import MeshkitError
from meshkit.testing import rehearse


def move(absent: int = -1) -> None:
    """Move a tensor from the first half of the ranks to the second half."""
    size = meshkit.init().world_size // 2
    source = meshkit.build_mesh(dp=size // 2, tp=2, ranks=range(size))
    target = meshkit.build_mesh(tp=size, ranks=range(size, 2 * size))
    x = torch.ones(4, 8) if source.inside else None
    if source.rank == absent:
        return
    y = source.redistribute(x, "b/dp d/tp -> b d/tp", to=target)
    if target.inside:
        assert y is not None
        assert tuple(y.shape) == (2 * size, 16 // size)


def transfer(staged: bool) -> None:
    """Transfer two states whose weights are cut along tp on both sides."""
    size = meshkit.init().world_size // 2
    with (
        meshkit.build_mesh(dp=size // 2, tp=2, ranks=range(size)) as source,
        meshkit.build_mesh(tp=size, ranks=range(size, 2 * size)) as target,
    ):
        rows = 4 * size // (2 if source.inside else size)
        state = {"w": torch.ones(rows, 8), "b": torch.ones(4)}
        patterns = {"w": "o/tp i -> o/tp i", "*": "n -> n"}
        sync = source.transfer(patterns, like=state, to=target, staged=staged)
        for _ in range(2):
            moved = sync(state if source.inside else None)
            assert (moved is None) == source.inside


def test_a_move_to_another_mesh_is_played() -> None:
    report = rehearse(move, 8, ranks="all")
    report.raise_if_mismatched()
    assert any(op.name == "recv" for op in report.collectives(7))


def test_the_order_of_played_ranks_does_not_matter() -> None:
    rehearse(move, 8, ranks=[7, 0, 1, 2, 3]).raise_if_mismatched()


def test_a_rank_that_skips_a_move_is_named() -> None:
    report = rehearse(move, 8, (5,), ranks="all")
    assert any(5 in mismatch.ranks for mismatch in report.mismatches)


def test_without_a_rank_of_the_source_the_report_says_so() -> None:
    report = rehearse(move, 8, ranks=[6, 7])
    assert isinstance(report.raised[7], MeshkitError)
    assert "no rank of the source mesh was rehearsed" in str(report.raised[7])


@pytest.mark.parametrize("staged", [False, True])
def test_a_transfer_is_played(staged: bool) -> None:
    report = rehearse(transfer, 8, (staged,), ranks="all")
    report.raise_if_mismatched()
    sent = [sum(op.num_bytes for op in report.collectives(rank)) for rank in range(8)]
    # each row of w is wanted once, and b by one rank of the four, which passes it on
    assert sum(sent[:4]) == 2 * (16 * 8 * 4 + 4 * 4)
    names = {op.name for rank in range(4, 8) for op in report.collectives(rank)}
    assert {"recv", "all_gather"} <= names


def test_a_transfer_of_one_side_says_what_is_unknown() -> None:
    report = rehearse(transfer, 8, (False,), ranks=[0, 1])
    assert "no rank of the target mesh was rehearsed" in str(report.raised[1])


def transfer_stages(stages: int) -> None:
    """Transfer the layers of a pipeline, one a stage, to ranks that hold all of them."""
    size = meshkit.init().world_size // 2
    with (
        meshkit.build_mesh(pp=stages, dp=-1, tp=2, ranks=range(size)) as source,
        meshkit.build_mesh(dp=size // 2, tp=2, ranks=range(size, 2 * size)) as target,
    ):
        names = [f"layers.{number}.w" for number in range(stages)]
        if source.inside:
            names = [names[source.coordinate["pp"]]]
        state = {name: torch.ones(4, 8) for name in names}
        sync = source.transfer({"*": "o/tp i -> o/tp i"}, like=state, to=target)
        moved = sync(state if source.inside else None)
        assert moved is None or len(moved) == stages


@pytest.mark.parametrize("ranks", ["all", "corners"])
def test_a_transfer_whose_names_differ_by_stage_is_played(ranks: str) -> None:
    report = rehearse(transfer_stages, 16, (4,), ranks=ranks)
    report.raise_if_mismatched()
    sent = [0] * 4  # bytes of each stage
    for rank in report.ranks:
        operations = report.collectives(rank)
        sent[rank // 2 % 4] += sum(op.num_bytes for op in operations if op.name == "send")
    assert {*range(0, 8, 2)} <= {*report.ranks}  # a rank of each stage, the third is no corner
    if ranks == "all":  # each row is wanted once, and passed on
        assert sent == [8 * 8 * 4] * 4


def test_a_transfer_of_some_stages_says_which_one_is_unknown() -> None:
    report = rehearse(transfer_stages, 16, (4,), ranks=[0, 2, 6, 15])
    assert {*report.raised} == {0, 2, 6, 15}
    assert "no rank of pp=2 of the source mesh was rehearsed" in str(report.raised[15])
