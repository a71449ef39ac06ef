"""Meshes over groups and DeviceMeshes of the user: checked, used, and never destroyed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshkit
from meshkit import Layout
from meshkit.live import groups as create
from tests.live.faults import error_of
from tests.live.membership import all_reduce_members, collect_members
from tests.live.resources import live_groups


def rows(layout: Layout, rank: int, groups: dict[tuple[str, ...], object]) -> dict[object, object]:
    peers = {axes: layout.peers(rank, *axes).tolist() for axes in groups}
    return {axes: (sorted(row), row) for axes, row in peers.items()}


sorts = pytest.mark.skipif(not create.KEEPS_ORDER, reason="turned groups: torch 2.12 and newer")


# ------------------------------------------------------------------ groups of the user's own


def make_groups(names: dict[str, list[list[int]]]) -> dict[str, Any]:
    """Create groups with torch and return those of this rank by name."""
    found: dict[str, Any] = {}
    for name, rows in names.items():
        for row in rows:
            group = dist.new_group(row)
            if dist.get_rank() in row:
                found[name] = group
    return found


def adopt_groups() -> Any:
    """Build a mesh over groups of the user, take a view, and close both."""
    meshkit.init()
    layout = meshkit.Layout(dp=4, tp=2)
    groups = make_groups({"dp": layout.groups("dp").tolist(), "tp": layout.groups("tp").tolist()})
    turned = dist.new_group(layout.groups("tp", "dp")[0].tolist(), sort_ranks=False)
    count = live_groups()
    with meshkit.Mesh.from_groups(layout, {**groups, "tp dp": turned}) as mesh:
        made = live_groups() - count
        assert mesh.group("tp", "dp") is turned
        view = mesh.view(a=2, b=2, c=2)
        used = mesh.group("dp") is groups["dp"], view.group("c") is groups["tp"]
        members, whole = collect_members(mesh), mesh.group() is dist.group.WORLD
        origins = [(group.origin, len(group.members)) for group in mesh.groups_report().groups]
        view.close()
    total = torch.ones(1)
    dist.all_reduce(total, group=groups["dp"])
    return made, used, whole, members, origins, int(total)


@sorts
def test_a_mesh_over_groups() -> None:
    layout = Layout(dp=4, tp=2)
    for rank, (made, used, whole, members, origins, total) in enumerate(
        meshkit.spawn(adopt_groups, 8, timeout=60)
    ):
        assert made == 1  # the whole is the default group; absent axes have a group of one
        assert used == (True, True)
        assert whole
        assert members == rows(layout, rank, members)
        assert origins[:2] == [("default", 8), ("external", 8)]
        assert origins[2:] == [("external", 4), ("external", 2), ("created", 2), ("created", 2)]
        assert total == 4  # it works after close


def view_with_another_group() -> Any:
    """Ask for a group that was not passed, and create it in a view."""
    meshkit.init()
    layout = meshkit.Layout(dp=2, sp=2, tp=2)
    groups = make_groups({"dp": layout.groups("dp").tolist()})
    with meshkit.Mesh.from_groups(layout, groups) as mesh:
        outcome = error_of(lambda: mesh.group("dp", "tp"))
        with mesh.view(layout.sizes, groups=["dp", "dp tp"]) as view:
            members = all_reduce_members(view, "dp", "tp")
            return outcome, members, view.group("dp") is groups["dp"]


def test_a_view_creates_a_group_that_was_not_passed() -> None:
    results = meshkit.spawn(view_with_another_group, 8, timeout=60)
    for rank, (outcome, members, same) in enumerate(results):
        assert outcome[0] == "SpecError"
        sp = rank // 2 % 2
        assert members == [2 * sp, 2 * sp + 1, 2 * sp + 4, 2 * sp + 5]
        assert same


def adopt_wrong_groups() -> Any:
    """Pass groups that differ from the layout, on one rank or on all; then correct groups."""
    meshkit.init()
    layout = meshkit.Layout(dp=2, tp=2)
    groups = make_groups({"dp": [[0, 2], [1, 3]], "tp": [[0, 1], [2, 3]]})
    odd = dist.get_rank() == 2
    swapped = {"dp": groups["tp"], "tp": groups["dp"]}
    requests: list[tuple[Any, Any]] = [
        (layout, swapped if odd else groups),
        (layout, {"dp": None} if odd else {"dp": groups["dp"]}),
        (layout, {"dp": groups["dp"]} if odd else groups),
        (meshkit.Layout(dp=2, tp=4), groups),
        (layout, {"dq": groups["dp"]}),
        (layout, {"dp": groups["dp"], ("tp", "dp"): "group"}),
        ({"dp": 2}, groups),
        (layout, {("dp", ("x",)): groups["dp"]}),
    ]
    outcomes = [error_of(lambda r=r: meshkit.Mesh.from_groups(*r)) for r in requests]
    with meshkit.Mesh.from_groups(layout, {"dp": groups["dp"]}) as mesh:
        return outcomes, all_reduce_members(mesh, "dp"), all_reduce_members(mesh, "tp")


@sorts
def test_groups_that_differ_from_the_layout_raise_on_every_rank() -> None:
    for rank, (outcomes, dp, tp) in enumerate(meshkit.spawn(adopt_wrong_groups, 4, timeout=60)):
        assert dp == [rank % 2, rank % 2 + 2]
        assert tp == [rank // 2 * 2, rank // 2 * 2 + 1]
        odd = "SpecError" if rank == 2 else "DisagreementError"
        assert [kind for kind, _ in outcomes[:3]] == [odd, odd, "DisagreementError"]
        others = ["SpecError", "UnknownAxisError", "SpecError", "SpecError", "SpecError"]
        assert [kind for kind, _ in outcomes[3:]] == others
        texts = [text for _, text in outcomes]
        assert texts[0].startswith(
            "Mesh.from_groups(Layout(dp=2, tp=2), {'dp': ..., 'tp': ...}): the group over dp does"
            " not hold the ranks of the layout.\n"
            if rank == 2
            else "ranks disagree about the mesh; no process group was created.\n"
        )
        assert "The group holds [2, 3]; the layout has [0, 2]." in texts[0]
        assert "Fix: the group over [0, 2], in this order." in texts[0]
        assert "the value for dp is no process group of rank 2." in texts[1]
        assert "external=dp, tp" in texts[2]
        assert "Fix: pass groups over the same axes on every rank." in texts[2]
        assert "rank 7 is outside the world" in texts[3]
        assert "It is 'group'; the layout has" in texts[5]
        assert (
            texts[6]
            .splitlines()[0]
            .endswith("the arguments are a dict and a dict, not a Layout and a dict.")
        )


def adopt_unequal_groups() -> Any:
    """Pass one group on ranks 0 and 1, and on ranks 2 and 3 another of the same members."""
    meshkit.init(arrival_timeout=20)
    first = make_groups({"dp": [[0, 2], [1, 3]]})
    second = make_groups({"dp": [[0, 2], [1, 3]]})
    layout, before = meshkit.Layout(dp=2, tp=2), live_groups()
    own = first if dist.get_rank() < 2 else second
    outcome = error_of(lambda: meshkit.Mesh.from_groups(layout, own))
    left = live_groups() - before
    with meshkit.Mesh.from_groups(layout, first) as mesh:
        members = all_reduce_members(mesh, "dp")
        view = mesh.view(a=2, b=2, timeout=33)
        held = [(group.origin, len(group.members)) for group in mesh.groups_report().groups]
        dist.destroy_process_group(first["dp"])
        gone = [group.origin for group in view.groups_report().groups]
    again = error_of(lambda: meshkit.Mesh.from_groups(layout, first))
    return outcome, left, members, held, gone, again


def test_different_groups_of_equal_members_raise_on_every_rank() -> None:
    for rank, (outcome, left, members, held, gone, again) in enumerate(
        meshkit.spawn(adopt_unequal_groups, 4, timeout=60)
    ):
        kind, text = outcome
        assert kind in ("DisagreementError", "SpecError")
        assert "passed different groups of these members." in text
        assert "Fix: pass the same group on all of them." in text
        assert left == 0
        assert members == [rank % 2, rank % 2 + 2]
        assert held.count(("external", 2)) == 1  # one group, whatever time a view asks for
        assert len(held) == 5
        assert gone.count("gone") == 1
        assert "the group over dp has been destroyed" in again[1]


def adopt_axes_of_size_one() -> Any:
    """Build a mesh over a DeviceMesh with two axes of size 1; torch makes a group for each."""
    meshkit.init()
    theirs = init_device_mesh("cpu", (2, 1, 1, 2), mesh_dim_names=("dp", "cp", "sp", "tp"))
    with meshkit.Mesh.from_device_mesh(theirs) as mesh:
        return collect_members(mesh)


def test_a_device_mesh_with_several_axes_of_one() -> None:
    layout = Layout(dp=2, cp=1, sp=1, tp=2)
    for rank, members in enumerate(meshkit.spawn(adopt_axes_of_size_one, 4, timeout=60)):
        assert members == rows(layout, rank, members)


def adopt_device_mesh() -> Any:
    """Build a mesh over a DeviceMesh, and a DeviceMesh over that mesh."""
    meshkit.init()
    theirs = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
    bare = init_device_mesh("cpu", (8,))
    count = live_groups()
    outcomes = [
        error_of(lambda: meshkit.Mesh.from_device_mesh(bare)),
        error_of(lambda: meshkit.Mesh.from_device_mesh(theirs["tp"])),
        error_of(lambda: meshkit.Mesh.from_device_mesh("mesh")),  # type: ignore[arg-type]
    ]
    untouched = live_groups() - count
    with meshkit.Mesh.from_device_mesh(theirs) as mesh:
        back = mesh.device_mesh()
        same = [back.get_group(name) is theirs.get_group(name) for name in ("dp", "cp", "tp")]
        joint = mesh.device_mesh("(dp cp) tp").mesh.tolist()
        return (
            outcomes,
            untouched,
            same,
            joint,
            collect_members(mesh),
            mesh.layout.sizes,
            back == theirs,
        )


def test_a_mesh_over_a_device_mesh_and_back() -> None:
    layout = Layout(dp=2, cp=2, tp=2)
    for rank, (outcomes, untouched, same, joint, members, sizes, equal) in enumerate(
        meshkit.spawn(adopt_device_mesh, 8, timeout=60)
    ):
        assert [kind for kind, _ in outcomes] == ["SpecError", "DisagreementError", "SpecError"]
        assert "its dimensions have no names" in outcomes[0][1]
        assert "mesh_dim_names=('axis0',))." in outcomes[0][1]
        assert "ranks=range(0, 2)" in outcomes[1][1]
        assert untouched == 0
        assert same == [True] * 3
        assert joint == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert members == rows(layout, rank, members)
        assert sizes == {"dp": 2, "cp": 2, "tp": 2}
        assert equal


def adopt_part_of_device_mesh() -> Any:
    """Build a mesh over a DeviceMesh of ranks 1 to 4 of 6."""
    meshkit.init()
    from torch.distributed.device_mesh import DeviceMesh

    theirs = DeviceMesh("cpu", [[1, 2], [3, 4]], mesh_dim_names=("dp", "tp"))
    with meshkit.Mesh.from_device_mesh(theirs) as mesh:
        return mesh.inside, collect_members(mesh) if mesh.inside else None


def test_a_device_mesh_over_a_part_of_the_world() -> None:
    layout = Layout(dp=2, tp=2, ranks=range(1, 5))
    for rank, (inside, members) in enumerate(
        meshkit.spawn(adopt_part_of_device_mesh, 6, timeout=60)
    ):
        assert inside == (1 <= rank < 5)
        assert members == (rows(layout, rank, members) if inside else None)
