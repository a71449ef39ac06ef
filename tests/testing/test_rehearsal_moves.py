"""Moves between two meshes, rehearsed."""

from __future__ import annotations

import pytest
import torch

import meshkit
from meshkit.core.errors import MeshkitError
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


def transfer() -> None:
    """Transfer a state."""
    with (
        meshkit.build_mesh(dp=4, ranks=range(4)) as source,
        meshkit.build_mesh(tp=4, ranks=range(4, 8)) as target,
    ):
        source.transfer({"*": "..."}, like={"w": torch.ones(4)}, to=target)


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


def test_a_transfer_is_an_error_row_that_says_so() -> None:
    report = rehearse(transfer, 8, ranks=[0, 7])
    for rank in (0, 7):
        with pytest.raises(MeshkitError, match="a rehearsal does not play it"):
            raise report.raised[rank]
