"""compare_meshes finds thirty real bugs, names their axis, and is silent about their twins."""

from __future__ import annotations

import pytest

from meshkit.testing import compare_meshes
from tests.compare.miniatures import MINIATURES, Miniature

FAST = ("router", "order of shards")


def case(miniature: Miniature) -> object:
    marks = [] if miniature.name in FAST else [pytest.mark.slow]
    return pytest.param(miniature, id=miniature.name.replace(" ", "-"), marks=marks)


@pytest.mark.parametrize("miniature", [case(miniature) for miniature in MINIATURES])
def test_a_bug_is_found_with_its_axis_and_its_twin_is_right(miniature: Miniature) -> None:
    wrong, right = (
        compare_meshes(
            lambda mesh, bug=is_wrong: miniature.step(mesh, bug),  # type: ignore[misc]
            *miniature.meshes,
            layout=miniature.layout,
        )
        for is_wrong in (True, False)
    )
    assert right.differences == (), str(right)
    assert wrong.differences
    assert {*wrong.differences[0].axes} == {*miniature.axes}, str(wrong)


def test_there_are_thirty_each_with_its_issue() -> None:
    assert len({miniature.name for miniature in MINIATURES}) == 30
    assert all("#" in miniature.issue for miniature in MINIATURES)
