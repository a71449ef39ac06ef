"""compare_meshes finds thirty real bugs, names their axis, and is silent about their twins."""

from __future__ import annotations

import pytest

from meshkit.compare.parity import Report
from meshkit.testing import compare_meshes
from tests.compare.miniatures import MINIATURES, Miniature

FAST = ("router", "order of shards")


def case(miniature: Miniature) -> object:
    marks = [] if miniature.name in FAST else [pytest.mark.slow]
    return pytest.param(miniature, id=miniature.name.replace(" ", "-"), marks=marks)


# one of each program and its meshes: without a bug those of the others are the same
OTHERWISE = ("zigzag labels", "inf norm", "squares of copies")  # also in what is right
TWINS = {
    (m.program, m.meshes, m.name if m.name in OTHERWISE else ""): m for m in reversed(MINIATURES)
}.values()


def compare(miniature: Miniature, *, is_wrong: bool) -> Report:
    return compare_meshes(
        lambda mesh: miniature.step(mesh, is_wrong), *miniature.meshes, layout=miniature.layout
    )


@pytest.mark.parametrize("miniature", [case(miniature) for miniature in MINIATURES])
def test_a_bug_is_found_with_its_axis(miniature: Miniature) -> None:
    report = compare(miniature, is_wrong=True)
    assert report.differences
    assert {*report.differences[0].axes} == {*miniature.axes}, str(report)


@pytest.mark.parametrize("miniature", [case(miniature) for miniature in TWINS])
def test_a_twin_is_right(miniature: Miniature) -> None:
    report = compare(miniature, is_wrong=False)
    assert report.differences == (), str(report)


def test_there_are_thirty_each_with_its_issue() -> None:
    assert len({miniature.name for miniature in MINIATURES}) == 30
    assert all("#" in miniature.issue for miniature in MINIATURES)
