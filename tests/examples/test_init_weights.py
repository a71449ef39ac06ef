"""Weights out of blocks: equal where replicated, cut over tp, together those of one process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import meshkit
from examples import init_weights

MESHES = ["--tp=1", "--tp=2 --sp=2", "--tp=4", "--tp=8"]


def draw_rows(rows: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what this rank draws for each row of arguments, each in a job and mesh of its own."""
    return {row: init_weights.main(row.split()) for row in rows}


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[dict[str, Any]]]:
    """Return the weights that all ranks of each mesh of eight have drawn."""
    by_rank = meshkit.spawn(draw_rows, 8, (MESHES,), timeout=100)
    return {mesh: [one[mesh] for one in by_rank] for mesh in MESHES}


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Return the weights that one process draws."""
    return meshkit.spawn(draw_rows, 1, (["--tp=1"],), timeout=60)[0]["--tp=1"]


@pytest.mark.parametrize("mesh", MESHES)
def test_together_they_are_the_weight_of_one_process(
    drawn: dict[str, list[dict[str, Any]]], alone: dict[str, Any], mesh: str
) -> None:
    rows = drawn[mesh]
    tp = 1 + max(row["at"]["tp"] for row in rows)
    assert len(rows) == 8
    assert f"--tp={tp}" == mesh.split()[0]
    assert sorted(alone["blocks"]) == [*range(8)]
    for row in rows:
        at = row["at"]["tp"]
        assert [*row["blocks"]] == [*range(at * 8 // tp, (at + 1) * 8 // tp)]  # and no other
        assert row["blocks"].items() <= alone["blocks"].items()
        assert row["bias"] == alone["bias"]
    assert {number for row in rows for number in row["blocks"]} == {*alone["blocks"]}
    assert len({*alone["blocks"].values(), alone["bias"]}) == 9


@pytest.mark.parametrize("mesh", MESHES)
def test_a_stream_along_tp_is_equal_over_dp_and_sp(
    drawn: dict[str, list[dict[str, Any]]], alone: dict[str, Any], mesh: str
) -> None:
    pairs = {(row["at"]["tp"], row["plain"]) for row in drawn[mesh]}
    assert len(pairs) == len({tp for tp, _ in pairs}) == len({plain for _, plain in pairs})
    assert (pairs == {(0, alone["plain"])}) is (mesh == "--tp=1")  # as one process with tp=1 only
