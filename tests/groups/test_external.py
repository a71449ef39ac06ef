"""Meshes over groups and DeviceMeshes of the user: checked, used, and never destroyed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import meshkit
from meshkit import Layout
from tests.faults import error_of
from tests.membership import all_reduce_members, collect_members
from tests.newer_torch import needs_order
from tests.pool import Pool
from tests.resources import live_groups

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


def check_members(mesh: meshkit.Mesh) -> None:
    """Check by collectives the members of the whole mesh and of each axis."""
    for axes, members in collect_members(mesh).items():
        row = mesh.layout.peers(mesh.rank, *axes).tolist()
        assert members == (sorted(row), row)


@destroying_groups()
def adopt_groups() -> None:
    """Build a mesh over groups of the user, take a view, and close both."""
    layout = Layout(dp=4, tp=2)
    groups = make_groups(layout, "dp", "tp")
    turned = dist.new_group(layout.groups("tp", "dp")[0].tolist(), sort_ranks=False)
    count = live_groups()
    with meshkit.Mesh.from_groups(layout, {**groups, "tp dp": turned}) as mesh:
        # the whole is the default group; absent axes have a group of one
        assert live_groups() == count + 1
        assert mesh.group("tp", "dp") is turned
        assert mesh.group("dp") is groups["dp"]
        assert mesh.group() is dist.group.WORLD
        with mesh.view(a=2, b=2, c=2) as view:
            assert view.group("c") is groups["tp"]
            check_members(mesh)
            origins = [(group.origin, len(group.members)) for group in mesh.groups_report().groups]
    held = [("external", 4), ("external", 2), ("created", 2), ("created", 2)]
    assert origins == [("default", 8), ("external", 8), *held, ("created", 1)]
    total = torch.ones(1)
    dist.all_reduce(total, group=groups["dp"])  # it works after close
    assert total == 4


@destroying_groups()
def create_a_group_that_was_not_passed() -> None:
    layout = Layout(dp=2, sp=2, tp=2)
    groups = make_groups(layout, "dp")
    with meshkit.Mesh.from_groups(layout, groups) as mesh:
        with pytest.raises(meshkit.SpecError) as caught:
            mesh.group("dp", "tp")
        assert caught.value.fix_text.startswith("mesh.view(")
        with mesh.view(layout.sizes, groups=["dp", "dp tp"]) as view:
            assert view.group("dp") is groups["dp"]
            assert all_reduce_members(view, "dp", "tp") == mesh.peers("dp", "tp").tolist()


@destroying_groups()
def refuse_wrong_groups() -> None:
    """Pass groups that differ from the layout, on one rank or on all; then correct groups."""
    layout = Layout(dp=4, tp=2)
    groups: Any = make_groups(layout, "dp", "tp")
    is_odd = dist.get_rank() == 2
    odd = "SpecError" if is_odd else "DisagreementError"
    swapped = {"dp": groups["tp"], "tp": groups["dp"]}
    requests: list[tuple[str, Any, Any]] = [
        (odd, layout, swapped if is_odd else groups),
        (odd, layout, {"dp": None} if is_odd else {"dp": groups["dp"]}),
        ("DisagreementError", layout, {"dp": groups["dp"]} if is_odd else groups),
        ("SpecError", Layout(dp=4, tp=4), groups),
        ("UnknownAxisError", layout, {"dq": groups["dp"]}),
        ("SpecError", layout, {"dp": groups["dp"], ("tp", "dp"): "group"}),
        ("SpecError", {"dp": 2}, groups),
        ("SpecError", layout, {("dp", ("x",)): groups["dp"]}),
    ]
    texts = []
    for kind, *request in requests:
        error = error_of(lambda r=request: meshkit.Mesh.from_groups(*r))
        assert error is not None
        assert error[0] == kind
        texts.append(error[1])
    assert "The group holds [2, 3]; the layout has [0, 2, 4, 6]." in texts[0]  # quoted
    assert "no process group of rank 2." in texts[1]
    with meshkit.Mesh.from_groups(layout, {"dp": groups["dp"]}) as mesh:
        check_members(mesh)


@destroying_groups()
def refuse_different_groups_of_equal_members() -> None:
    """Pass one group on ranks 0 to 3, and on the others another of the same members."""
    layout = Layout(dp=4, tp=2)
    first, second = make_groups(layout, "dp"), make_groups(layout, "dp")
    before, own = live_groups(), first if dist.get_rank() < 4 else second
    kind, text = error_of(lambda: meshkit.Mesh.from_groups(layout, own)) or ("", "")
    assert kind in ("DisagreementError", "SpecError")
    assert "passed different groups of these members." in text
    assert live_groups() == before
    with (
        meshkit.Mesh.from_groups(layout, first) as mesh,
        mesh.view(a=4, b=2, timeout=33) as view,
    ):
        assert all_reduce_members(mesh, "dp") == mesh.peers("dp").tolist()
        held = [(group.origin, len(group.members)) for group in mesh.groups_report().groups]
        assert held.count(("external", 4)) == 1  # one group, whatever time a view asks for
        assert len([size for _, size in held if size > 1]) == 5
        dist.destroy_process_group(first["dp"])
        assert [group.origin for group in view.groups_report().groups].count("gone") == 1
    assert (error_of(lambda: meshkit.Mesh.from_groups(layout, first)) or "")[0] == "SpecError"


@destroying_groups()
def adopt_device_meshes() -> None:
    """Build a mesh over a DeviceMesh, and a DeviceMesh over that mesh."""
    for sizes in ({"dp": 2, "cp": 2, "tp": 2}, {"dp": 4, "cp": 1, "sp": 1, "tp": 2}):
        grid = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        with meshkit.Mesh.from_device_mesh(grid) as mesh:
            back = mesh.device_mesh()
            assert back == grid
            assert all(back.get_group(n) is grid.get_group(n) for n in sizes if sizes[n] > 1)
            assert mesh.layout.sizes == sizes
            check_members(mesh)


@destroying_groups()
def refuse_device_meshes_without_names_or_of_other_ranks() -> None:
    bare = init_device_mesh("cpu", (8,))
    cube = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
    count = live_groups()
    wrong: tuple[Any, ...] = bare, cube["tp"], "mesh"
    errors = [error_of(lambda w=grid: meshkit.Mesh.from_device_mesh(w)) for grid in wrong]
    assert live_groups() == count
    kinds = [(error or "")[0] for error in errors]
    assert kinds == ["SpecError", "DisagreementError", "SpecError"]


@destroying_groups()
def adopt_a_device_mesh_of_ranks_1_to_4() -> None:
    grid = DeviceMesh("cpu", [[1, 2], [3, 4]], mesh_dim_names=("dp", "tp"))
    with meshkit.Mesh.from_device_mesh(grid) as mesh:
        assert mesh.layout == Layout(dp=2, tp=2, ranks=range(1, 5))
        if mesh.inside:
            check_members(mesh)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(adopt_groups, marks=needs_order),
        create_a_group_that_was_not_passed,
        pytest.param(refuse_wrong_groups, marks=needs_order),
        refuse_different_groups_of_equal_members,
        adopt_device_meshes,
        refuse_device_meshes_without_names_or_of_other_ranks,
        adopt_a_device_mesh_of_ranks_1_to_4,
    ],
)
def test_groups_of_the_user_on_eight_ranks(pool: Pool, check: Callable[[], None]) -> None:
    pool.run(check)
