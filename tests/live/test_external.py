"""Meshes over groups and DeviceMeshes of the user: checked, used, and never destroyed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import meshkit
from meshkit import Layout
from tests.live.faults import error_of
from tests.live.membership import all_reduce_members, collect_members
from tests.live.newer_torch import needs_order
from tests.live.resources import live_groups
from tests.pool import Pool

RANKS = 8  # of the pool


@contextmanager
def destroying_groups() -> Iterator[None]:
    """Destroy the groups of the user at the end, for the next test."""
    yield
    dist.barrier()
    for group in [*dist.distributed_c10d._world.pg_map]:
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def make_groups(layout: Layout, *axes: str) -> dict[str, Any]:
    """Create the groups of axes with torch, and return those of this rank by axis."""
    groups: dict[str, Any] = {}
    for axis in axes:
        for row in layout.groups(axis).tolist():
            group = dist.new_group(row)
            if dist.get_rank() in row:
                groups[axis] = group
    return groups


def rows(layout: Layout, rank: int) -> dict[tuple[str, ...], Any]:
    """Return what ``collect_members`` must return on a mesh of this layout."""
    peers = {
        axes: layout.peers(rank, *axes).tolist() for axes in ((), *((a,) for a in layout.axes))
    }
    return {axes: (sorted(row), row) for axes, row in peers.items()}


@destroying_groups()
def adopt_groups() -> Any:
    """Build a mesh over groups of the user, take a view, and close both."""
    layout = Layout(dp=4, tp=2)
    groups = make_groups(layout, "dp", "tp")
    turned = dist.new_group(layout.groups("tp", "dp")[0].tolist(), sort_ranks=False)
    count = live_groups()
    with meshkit.Mesh.from_groups(layout, {**groups, "tp dp": turned}) as mesh:
        created = live_groups() - count
        assert mesh.group("tp", "dp") is turned
        assert mesh.group("dp") is groups["dp"]
        assert mesh.group() is dist.group.WORLD
        with mesh.view(a=2, b=2, c=2) as view:
            assert view.group("c") is groups["tp"]
            members = collect_members(mesh)
            origins = [(group.origin, len(group.members)) for group in mesh.groups_report().groups]
    total = torch.ones(1)
    dist.all_reduce(total, group=groups["dp"])  # it works after close
    return created, members, origins, int(total)


@needs_order
def test_a_mesh_over_groups(pool: Pool) -> None:
    held = [("external", 4), ("external", 2), ("created", 2), ("created", 2)]
    for rank, outcome in enumerate(pool.run(adopt_groups)):
        created, members, origins, total = outcome
        assert created == 1  # the whole is the default group; absent axes have a group of one
        assert members == rows(Layout(dp=4, tp=2), rank)
        assert origins == [("default", 8), ("external", 8), *held, ("created", 1)]
        assert total == 4


@destroying_groups()
def view_with_another_group() -> Any:
    """Ask for a group that was not passed, and create it in a view."""
    layout = Layout(dp=2, sp=2, tp=2)
    groups = make_groups(layout, "dp")
    with meshkit.Mesh.from_groups(layout, groups) as mesh:
        with pytest.raises(meshkit.SpecError) as caught:
            mesh.group("dp", "tp")
        with mesh.view(layout.sizes, groups=["dp", "dp tp"]) as view:
            assert view.group("dp") is groups["dp"]
            return caught.value.fix_text, all_reduce_members(view, "dp", "tp")


def test_a_view_creates_a_group_that_was_not_passed(pool: Pool) -> None:
    for rank, (fix, members) in enumerate(pool.run(view_with_another_group)):
        sp = rank // 2 % 2
        assert fix.startswith("mesh.view(")
        assert members == [2 * sp, 2 * sp + 1, 2 * sp + 4, 2 * sp + 5]


@destroying_groups()
def adopt_wrong_groups() -> Any:
    """Pass groups that differ from the layout, on one rank or on all; then correct groups."""
    layout = Layout(dp=4, tp=2)
    groups: Any = make_groups(layout, "dp", "tp")
    odd = dist.get_rank() == 2
    swapped = {"dp": groups["tp"], "tp": groups["dp"]}
    requests: list[tuple[Any, Any]] = [
        (layout, swapped if odd else groups),
        (layout, {"dp": None} if odd else {"dp": groups["dp"]}),
        (layout, {"dp": groups["dp"]} if odd else groups),
        (Layout(dp=4, tp=4), groups),
        (layout, {"dq": groups["dp"]}),
        (layout, {"dp": groups["dp"], ("tp", "dp"): "group"}),
        ({"dp": 2}, groups),
        (layout, {("dp", ("x",)): groups["dp"]}),
    ]
    errors = [error_of(lambda r=request: meshkit.Mesh.from_groups(*r)) for request in requests]
    with meshkit.Mesh.from_groups(layout, {"dp": groups["dp"]}) as mesh:
        return errors, collect_members(mesh)


@needs_order
def test_groups_that_differ_from_the_layout_raise_on_every_rank(pool: Pool) -> None:
    for rank, (errors, members) in enumerate(pool.run(adopt_wrong_groups)):
        assert members == rows(Layout(dp=4, tp=2), rank)
        odd = "SpecError" if rank == 2 else "DisagreementError"
        kinds = [odd, odd, "DisagreementError", "SpecError", "UnknownAxisError"]
        assert [kind for kind, _ in errors] == [*kinds, *["SpecError"] * 3]
        assert "The group holds [2, 3]; the layout has [0, 2, 4, 6]." in errors[0][1]  # quoted
        assert "no process group of rank 2." in errors[1][1]


@destroying_groups()
def adopt_unequal_groups() -> Any:
    """Pass one group on ranks 0 to 3, and on the others another of the same members."""
    layout = Layout(dp=4, tp=2)
    first, second = make_groups(layout, "dp"), make_groups(layout, "dp")
    before, own = live_groups(), first if dist.get_rank() < 4 else second
    kind, text = error_of(lambda: meshkit.Mesh.from_groups(layout, own)) or ("", "")
    assert live_groups() == before
    with (
        meshkit.Mesh.from_groups(layout, first) as mesh,
        mesh.view(a=4, b=2, timeout=33) as view,
    ):
        members = all_reduce_members(mesh, "dp")
        held = [(group.origin, len(group.members)) for group in mesh.groups_report().groups]
        dist.destroy_process_group(first["dp"])
        gone = [group.origin for group in view.groups_report().groups]
    again = error_of(lambda: meshkit.Mesh.from_groups(layout, first))
    return kind, text, members, held, gone, again


def test_different_groups_of_equal_members_raise_on_every_rank(pool: Pool) -> None:
    for rank, outcome in enumerate(pool.run(adopt_unequal_groups)):
        kind, text, members, held, gone, again = outcome
        assert kind in ("DisagreementError", "SpecError")
        assert "passed different groups of these members." in text
        assert members == [*range(rank % 2, 8, 2)]
        assert held.count(("external", 4)) == 1  # one group, whatever time a view asks for
        assert len([size for _, size in held if size > 1]) == 5
        assert gone.count("gone") == 1
        assert again[0] == "SpecError"


@destroying_groups()
def adopt_device_mesh(sizes: dict[str, int]) -> Any:
    """Build a mesh over a DeviceMesh, and a DeviceMesh over that mesh."""
    names = tuple(sizes)
    grid = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=names)
    with meshkit.Mesh.from_device_mesh(grid) as mesh:
        back = mesh.device_mesh()
        assert back == grid
        assert all(back.get_group(n) is grid.get_group(n) for n in names if sizes[n] > 1)
        assert mesh.layout.sizes == sizes
        return collect_members(mesh)


@pytest.mark.parametrize(
    "sizes", [{"dp": 2, "cp": 2, "tp": 2}, {"dp": 4, "cp": 1, "sp": 1, "tp": 2}]
)
def test_a_mesh_over_a_device_mesh_and_back(pool: Pool, sizes: dict[str, int]) -> None:
    for rank, members in enumerate(pool.run(adopt_device_mesh, sizes)):
        assert members == rows(Layout(**sizes), rank)


@destroying_groups()
def adopt_wrong_device_meshes() -> Any:
    bare = init_device_mesh("cpu", (8,))
    cube = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
    count = live_groups()
    wrong: tuple[Any, ...] = bare, cube["tp"], "mesh"
    errors = [error_of(lambda w=grid: meshkit.Mesh.from_device_mesh(w)) for grid in wrong]
    assert live_groups() == count
    return [kind for kind, _ in errors]


def test_a_device_mesh_without_names_or_of_other_ranks_raises(pool: Pool) -> None:
    kinds = ["SpecError", "DisagreementError", "SpecError"]
    assert pool.run(adopt_wrong_device_meshes) == [kinds] * 8


@destroying_groups()
def adopt_part_of_device_mesh() -> Any:
    """Build a mesh over a DeviceMesh of ranks 1 to 4."""
    grid = DeviceMesh("cpu", [[1, 2], [3, 4]], mesh_dim_names=("dp", "tp"))
    with meshkit.Mesh.from_device_mesh(grid) as mesh:
        return collect_members(mesh) if mesh.inside else None


def test_a_device_mesh_over_a_part_of_the_world(pool: Pool) -> None:
    layout = Layout(dp=2, tp=2, ranks=range(1, 5))
    for rank, members in enumerate(pool.run(adopt_part_of_device_mesh)):
        assert members == (rows(layout, rank) if 1 <= rank < 5 else None)
