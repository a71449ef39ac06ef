"""Groups and DeviceMeshes of the user's own: used as they are, checked, and never destroyed."""

from __future__ import annotations

import pytest

import meshkit
from meshkit import Layout
from meshkit.live import create

from . import view_jobs as jobs


def rows(layout: Layout, rank: int, groups: dict[tuple[str, ...], object]) -> dict[object, object]:
    peers = {axes: layout.peers(rank, *axes).tolist() for axes in groups}
    return {axes: (sorted(row), row) for axes, row in peers.items()}


sorts = pytest.mark.skipif(not create.KEEPS_ORDER, reason="turned groups: torch 2.13 and newer")


@sorts
def test_a_mesh_over_groups() -> None:
    layout = Layout(dp=4, tp=2)
    for rank, (made, used, whole, met, origins, total) in enumerate(
        meshkit.spawn(jobs.from_groups, 8, timeout=60)
    ):
        assert made == 0  # the whole is the default group
        assert used == (True, True)
        assert whole
        assert met == rows(layout, rank, met)
        assert origins[:2] == [("default", 8), ("lent", 8)]
        assert origins[2:] == [("lent", 4), ("lent", 2), ("made", 2), ("made", 2)]
        assert total == 4  # it works after close


def test_a_group_that_was_not_lent_can_be_had_by_a_view() -> None:
    for rank, (told, members, same) in enumerate(
        meshkit.spawn(jobs.fix_of_a_group_that_was_not_lent, 8, timeout=60)
    ):
        assert told == (
            "mesh.group('dp', 'tp'): no group over dp tp was built.\n"
            "  Built are (dp), (sp), (tp), (dp sp); a getter never creates one.\n"
            "  Fix: mesh.view(dp=2, sp=2, tp=2, groups=['dp', 'dp tp'])."
        )
        sp = rank // 2 % 2
        assert members == [2 * sp, 2 * sp + 1, 2 * sp + 4, 2 * sp + 5]
        assert same


@sorts
def test_groups_that_are_not_what_the_layout_says_are_refused_on_every_rank() -> None:
    for rank, (told, dp, tp) in enumerate(meshkit.spawn(jobs.wrong_groups, 4, timeout=60)):
        assert dp == [rank % 2, rank % 2 + 2]
        assert tp == [rank // 2 * 2, rank // 2 * 2 + 1]
        odd = "SpecError" if rank == 2 else "DisagreementError"
        assert [kind for kind, _ in told[:3]] == [odd, odd, "DisagreementError"]
        others = ["SpecError", "UnknownAxisError", "SpecError", "SpecError", "SpecError"]
        assert [kind for kind, _ in told[3:]] == others
        texts = [text for _, text in told]
        assert texts[0].startswith(
            "Mesh.from_groups(Layout(dp=2, tp=2), {'dp': group, 'tp': group}): the group over dp is"
            " not the one the mesh says.\n"
            if rank == 2
            else "ranks disagree about the mesh; no process group was created.\n"
        )
        assert "The group holds [2, 3], the mesh says [0, 2]." in texts[0]
        assert "Fix: the group over [0, 2], in this order." in texts[0]
        assert "what is given for dp is no process group of rank 2." in texts[1]
        assert "lent=dp, tp" in texts[2]
        assert "Fix: hand in groups over the same axes on every rank." in texts[2]
        assert "ranks must be some of the world's" in texts[3]
        assert "It is 'group'; the layout says" in texts[5]
        assert (
            texts[6]
            .splitlines()[0]
            .endswith("what is given is a dict and a dict, not a Layout and a dict.")
        )


def test_other_groups_of_equal_members_are_told_on_every_rank() -> None:
    for rank, (told, left, members, held, gone, again) in enumerate(
        meshkit.spawn(jobs.another_group_of_equal_members, 4, timeout=60)
    ):
        kind, text = told
        assert kind in ("DisagreementError", "SpecError")
        assert "lend different groups of these members." in text
        assert "Fix: hand in the same group on all of them." in text
        assert left == 0
        assert members == [rank % 2, rank % 2 + 2]
        assert held.count(("lent", 2)) == 1  # one group, whatever time a view asks for
        assert len(held) == 5
        assert gone.count("gone") == 1
        assert "the group over dp has been destroyed" in again[1]


def test_a_device_mesh_with_several_axes_of_one() -> None:
    layout = Layout(dp=2, cp=1, sp=1, tp=2)
    for rank, met in enumerate(meshkit.spawn(jobs.axes_of_one, 4, timeout=60)):
        assert met == rows(layout, rank, met)


def test_a_mesh_over_a_device_mesh_and_back() -> None:
    layout = Layout(dp=2, cp=2, tp=2)
    for rank, (told, untouched, same, joint, met, sizes, equal) in enumerate(
        meshkit.spawn(jobs.from_device_mesh, 8, timeout=60)
    ):
        assert [kind for kind, _ in told] == ["SpecError", "DisagreementError", "SpecError"]
        assert "its dimensions have no names" in told[0][1]
        assert "mesh_dim_names=('axis0',)), say." in told[0][1]
        assert "ranks=range(0, 2)" in told[1][1]
        assert untouched == 0
        assert same == [True] * 3
        assert joint == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert met == rows(layout, rank, met)
        assert sizes == {"dp": 2, "cp": 2, "tp": 2}
        assert equal


def test_a_device_mesh_over_a_part_of_the_world() -> None:
    layout = Layout(dp=2, tp=2, ranks=range(1, 5))
    for rank, (inside, met) in enumerate(
        meshkit.spawn(jobs.from_part_of_a_device_mesh, 6, timeout=60)
    ):
        assert inside == (1 <= rank < 5)
        assert met == (rows(layout, rank, met) if inside else None)
