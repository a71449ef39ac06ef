"""One world, many views: which groups are shared, their members, and what stays behind."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
import torch.distributed as dist

import meshkit
from meshkit import Layout
from meshkit.launch.torch_internals import timeout_of
from meshkit.live import groups as create
from meshkit.live import open_mesh
from tests.live.faults import create_every_group, error_of, fail_new_group
from tests.live.membership import all_reduce_members, collect_members, gather_members
from tests.live.resources import descriptors, live_groups, threads
from tests.pool import Pool

RANKS = 8  # of the pool

pytestmark = pytest.mark.skipif(
    not create.KEEPS_ORDER, reason="views of turned axes: torch 2.12 and newer"
)

Sizes = dict[str, int]
FAMILIES: list[tuple[Sizes, list[Sizes], list[int]]] = [  # and how many groups each view creates
    (
        {"dp": 4, "sp": 2, "tp": 1},
        [{"replicate": 2, "shard": 4}, {"efsdp": 2, "ep": 2, "tp": 2}, {"dp": 4, "sp": -1}],
        [2, 1, 0],
    ),
    ({"pp": 2, "dp": 2, "tp": 2}, [{"x": 8}, {"x": 4, "tp": 2}, {"a": 2, "b": 4}], [0, 1, 1]),
    (
        {"dp": 4, "sp": 2, "tp": 1},
        [{"x": 4, "y": 2}, {"z": 8}, {"dp": 4, "one": 1, "b": 2}],
        [0, 0, 0],
    ),
]


def members_of(layout: Layout, rank: int) -> list[tuple[int, ...]]:
    """Return the members of the default groups of a rank, derived from the grid alone."""
    averaged = [axis for axis in ("dp", "cp", "sp") if axis in layout.axes]
    requests = [list(layout.axes), *([axis] for axis in layout.axes), averaged]
    rows = []
    for axes in requests:
        if axes:
            where = [slice(None) if a in axes else layout.coordinate(rank)[a] for a in layout.axes]
            rows.append(tuple(layout.grid[tuple(where)].ravel().tolist()))
    return rows


def view_after_destroying(everywhere: bool) -> Any:
    """Destroy the group of an axis behind meshkit, and take a view that has that axis too."""
    with meshkit.build_mesh(dp=4, tp=2) as mesh:
        if everywhere or dist.get_rank() == 5:
            dist.destroy_process_group(mesh.group("tp"))
        error = None
        try:
            with mesh.view(a=4, b=2) as view:
                members = all_reduce_members(view, "b")
                return members, len(view.groups_report().groups)
        except meshkit.DisagreementError as caught:
            error = caught.requests
        return error


def test_a_group_that_the_user_destroyed_is_made_anew(pool: Pool) -> None:
    for rank, (members, groups) in enumerate(pool.run(view_after_destroying, True)):
        assert members == [rank - rank % 2, rank - rank % 2 + 1]
        assert groups == 4
    for requests in pool.run(view_after_destroying, False):
        assert "destroyed" in requests[5]
        assert not any("destroyed" in text for rank, text in requests.items() if rank != 5)


def view_with_ranks_outside() -> Any:
    """Destroy a group of a mesh that leaves ranks out, take a view, and follow the fix."""
    with meshkit.build_mesh(dp=2, tp=2, ranks=range(4)) as mesh:
        if mesh.inside:
            dist.destroy_process_group(mesh.group("tp"))
        with pytest.raises(meshkit.DisagreementError) as error:
            mesh.view(a=2, b=2)
    with meshkit.build_mesh(dp=2, tp=2, ranks=range(4)) as mesh, mesh.view(a=2, b=2) as view:
        return error.value.fix_text, all_reduce_members(view, "b") if view.inside else []


def test_a_view_of_a_mesh_that_leaves_ranks_out_names_what_to_do_about_a_destroyed_group(
    pool: Pool,
) -> None:
    for rank, (fix, members) in enumerate(pool.run(view_with_ranks_outside)):
        assert "close it and build it again" in fix
        assert members == ([rank - rank % 2, rank - rank % 2 + 1] if rank < 4 else [])


def build_views(sizes: Sizes, others: list[Sizes]) -> Any:
    """Take views of a mesh; return members, new groups, reports, and resources before and after."""
    gc.collect()  # an error of an earlier test may hold groups
    before, created = (descriptors(), threads()), []
    mesh = meshkit.build_mesh(order=" ".join(sizes), **sizes)
    meshes = [mesh]
    for other in others:
        count = live_groups()
        meshes.append(mesh.view(other))
        created.append(live_groups() - count)
    members = [collect_members(view) for view in meshes]
    held = [[list(group.members) for group in view.groups_report().groups] for view in meshes]
    for view in meshes:
        view.close()
    del view
    return members, created, held, before, (descriptors(), threads())


@pytest.mark.parametrize(("sizes", "others", "created"), FAMILIES)
def test_groups_are_shared_and_hold_their_members(
    pool: Pool, sizes: Sizes, others: list[Sizes], created: list[int]
) -> None:
    layouts = [Layout(**sizes), *(Layout(**sizes).view(**other) for other in others)]
    results = pool.run(build_views, sizes, others)
    for rank, (members, new, held, before, after) in enumerate(results):
        for layout, groups in zip(layouts, members, strict=True):
            for axes, (summed, gathered) in groups.items():
                row = layout.peers(rank, *axes).tolist()
                assert (summed, gathered) == (sorted(row), row)
        distinct = {row for layout in layouts for row in members_of(layout, rank)}
        for groups in held:  # the same report from every view, each group once
            expected = distinct | {tuple(range(8)), (rank,)}  # absent axes have a group of one
            assert sorted(map(tuple, groups)) == sorted(expected)
        assert after == before
        assert new == created


def compare_groups() -> None:
    """Check which groups are the same object across views."""
    with (
        meshkit.build_mesh(dp=4, sp=2, tp=1, groups=["sp dp"]) as mesh,
        mesh.view(outer=2, inner=2, tp=2) as view,
        view.view(dp=4, sp=2, tp=1) as again,  # a view of a view is of the same family
        meshkit.build_mesh(dp=4, sp=2, tp=1) as other,
    ):
        assert view.group("tp") is mesh.group("sp")
        for axes in ((), ("dp",), ("sp",), ("tp",), ("dp", "sp")):
            assert again.group(*axes) is mesh.group(*axes)
        assert view.group() is mesh.group("dp", "sp") is dist.group.WORLD
        assert mesh.group("sp", "dp") is not dist.group.WORLD
        assert other.group("dp") is not mesh.group("dp")
        grid = mesh.device_mesh("dp sp")
        assert grid.get_group("sp") is view.device_mesh("tp").get_group()
        assert grid["sp"].get_group() is mesh.group("sp")


def test_equal_groups_are_the_same_object(pool: Pool) -> None:
    pool.run(compare_groups)


def close_in_every_order() -> Any:
    """Close three views in every order; return the members of the groups that are still open."""
    before, alive = (descriptors(), threads()), []
    for order in itertools.permutations(range(3)):
        mesh = meshkit.build_mesh(dp=2, sp=2, tp=2)
        views = [mesh, mesh.view(replicate=2, shard=4), mesh.view(pair=4, tp=2)]
        for closed, index in enumerate(order):
            views[index].close()
            views[index].close()  # harmless
            alive.append({open_: collect_members(views[open_]) for open_ in order[closed + 1 :]})
        assert {error_of(lambda v=view: v.view(dp=8))[0] for view in views} == {"MeshkitError"}
        del mesh, views
    return alive, before, (descriptors(), threads())


def test_a_group_lives_as_long_as_its_last_view_in_every_order(pool: Pool) -> None:
    layouts = [Layout(dp=2, sp=2, tp=2), Layout(replicate=2, shard=4), Layout(pair=4, tp=2)]
    for rank, (alive, before, after) in enumerate(pool.run(close_in_every_order)):
        assert after == before
        assert [len(views) for views in alive] == [2, 1, 0] * 6
        for views in alive:
            for index, groups in views.items():
                rows = {axes: layouts[index].peers(rank, *axes).tolist() for axes in groups}
                assert {axes: row for axes, (_, row) in groups.items()} == rows


def permute_axes() -> Any:
    """Return for each order of axes the position by the coordinate, the rank, and the members."""
    names = ("dp", "sp", "tp")
    requests = [axes for size in (2, 3) for axes in itertools.permutations(names, size)]
    groups = [" ".join(axes) for axes in requests]
    with meshkit.build_mesh(dp=2, sp=2, tp=2, groups=groups) as mesh:
        rows = {}
        for axes in requests:
            position = 0
            for axis in axes:  # Horner's rule, the last axis the fastest
                position = position * 2 + mesh.coordinate[axis]
            rows[axes] = position, mesh.group(*axes).rank(), gather_members(mesh, *axes)
        return rows


def test_the_group_rank_is_the_coordinate_for_every_order_of_axes(pool: Pool) -> None:
    layout = Layout(dp=2, sp=2, tp=2)
    for rank, rows in enumerate(pool.run(permute_axes)):
        assert len(rows) == 12
        for axes, (position, group_rank, members) in rows.items():
            assert position == group_rank
            assert members == layout.peers(rank, *axes).tolist()


def request_different_views() -> Any:
    """Request different views on rank 1 than on the others; then the same view on all."""
    with meshkit.build_mesh(dp=4, sp=2, arrival_timeout=20) as mesh:
        odd = mesh.rank == 1
        errors = [
            error_of(lambda: mesh.view(x=8) if odd else mesh.view(x=4, y=2)),
            error_of(lambda: meshkit.build_mesh(dp=4, sp=2) if odd else mesh.view(dp=4, sp=2)),
            error_of(lambda: mesh.view(tp=2, dp=4) if odd else mesh.view(dp=4, tp=2)),
        ]
        view = mesh.view(x=4, y=2)
        if odd:
            view.close()
        errors.append(error_of(lambda: mesh.view(z=8)))
        view.close()
        with mesh.view(z=8) as last:
            return errors, all_reduce_members(last, "z")


def test_ranks_that_request_different_views_raise(pool: Pool) -> None:
    for rank, (errors, members) in enumerate(pool.run(request_different_views)):
        assert members == [*range(8)]
        odd = "SpecError" if rank == 1 else "DisagreementError"
        kinds = ["DisagreementError", "DisagreementError", odd, "DisagreementError"]
        assert [kind for kind, _ in errors] == kinds
        assert "call=build_mesh" in errors[1][1]
        assert "open=views 0 (dp=4 sp=2), 1 (x=4 y=2) of mesh" in errors[3][1]


def fail_while_creating(number: int, each: bool) -> Any:
    """Take a view while a call of new_group fails; then use the mesh, and take the view again."""
    with pytest.MonkeyPatch.context() as slow_way:
        if each:
            create_every_group(slow_way)
        with meshkit.build_mesh(dp=4, sp=2) as mesh:
            before = (descriptors(), threads())
            with pytest.MonkeyPatch.context() as patch:
                calls = fail_new_group(patch, number, RuntimeError("planted"), together=True)
                with pytest.raises((RuntimeError, meshkit.MeshkitError), match="planted"):
                    mesh.view(a=2, b=2, c=2)
            assert len(calls) >= number
            assert (descriptors(), threads()) == before
            with mesh.view(a=2, b=2, c=2) as view:
                return all_reduce_members(mesh, "dp"), all_reduce_members(view, "b")


@pytest.mark.parametrize(("number", "each"), [(1, False), (2, False), (3, True), (6, True)])
def test_the_mesh_works_after_a_view_that_failed(pool: Pool, number: int, each: bool) -> None:
    for dp, b in pool.run(fail_while_creating, number, each):
        assert (len(dp), len(b)) == (4, 2)


def timeouts_of(mesh: meshkit.Mesh) -> dict[str, float]:
    """Return the timeouts in seconds by axis; "" is the whole mesh."""
    seconds = {}
    for axes in ("", *mesh.layout.axes):
        limit = timeout_of(mesh.group(*axes.split()))
        assert limit is not None
        seconds[axes] = limit.total_seconds()
    return seconds


def inherit_timeouts() -> None:
    """Check the timeouts of views, with and without a timeout of their own."""
    with (
        meshkit.build_mesh(dp=4, sp=2, timeout={"sp": 30, "dp": 600}) as mesh,
        mesh.view(x=2, y=2, tp=2) as view,
        mesh.view(x=4, tp=2, timeout={"tp": 77}) as own,
        mesh.view(x=4, tp=2, timeout=44) as whole,
        mesh.view(dp=4, sp=2, timeout=1800) as number,
    ):
        assert timeouts_of(view) == {"": 1800, "x": 1800, "y": 1800, "tp": 30}
        assert timeouts_of(own) == {"": 1800, "x": 600, "tp": 77}
        assert timeouts_of(whole) == {"": 44, "x": 44, "tp": 44}
        assert timeouts_of(number) == {"": 1800, "dp": 1800, "sp": 1800}
        assert view.group("tp") is mesh.group("sp") is not own.group("tp")
        count = live_groups()  # the backend's own timeout is the same in seconds
        with mesh.view(dp=4, x=2, timeout={"x": 30, "dp": 1800}):
            assert live_groups() == count
    with meshkit.build_mesh(dp=8, tp=1, timeout={"tp": 5}) as flat:  # of an axis of size 1
        for sizes, y in (
            ({"dp": 8}, {}),
            ({"dp": 4, "tp": 2}, {"tp": 1800}),
            ({"dp": 8, "y": 1}, {"y": 5}),
        ):
            with flat.view(sizes) as view:
                assert timeouts_of(view) == {"": 1800, "dp": 1800, **y}


def test_a_view_takes_the_timeouts_of_its_mesh_unless_given(pool: Pool) -> None:
    pool.run(inherit_timeouts)


def miss_views() -> Any:
    """Miss views on rank 1, whose time is given in three ways."""
    mesh = meshkit.build_mesh(dp=4, arrival_timeout=60)
    short = meshkit.build_mesh(dp=4, arrival_timeout=2)
    asks = (
        lambda: mesh.view(a=2, b=2, timeout=2),
        lambda: mesh.view(a=2, b=2, timeout=60, arrival_timeout=2),
        lambda: short.view(a=2, b=2),
    )
    errors = []
    for ask in asks:
        errors.append(None if mesh.rank == 1 else error_of(ask))
        dist.barrier()
    return errors


def test_a_rank_missing_at_a_view_is_named_after_its_arrival_timeout() -> None:
    results = meshkit.spawn(miss_views, 4, timeout=60)
    for rank in (0, 2, 3):
        for kind, text in results[rank]:
            assert kind == "RankTimeoutError"
            assert text.splitlines()[0].endswith("within 2 s.")
            assert "Missing: 1 (a=0 b=1)" in text


def close_in_another_order() -> Any:
    """Close two views in different orders, as on NCCL, whose groups end on all ranks together."""
    meshkit.init(arrival_timeout=20)
    pytest.MonkeyPatch().setattr(
        open_mesh, "is_destroyed_collectively", lambda groups: bool([*groups])
    )
    mesh = meshkit.build_mesh(dp=2, tp=2)
    views = [mesh.view(x=2, y=2, timeout=9), mesh.view(x=2, y=2, timeout=8)]
    return error_of(views[mesh.rank % 2].close)


def test_closing_views_in_different_orders_raises_if_all_ranks_close_together() -> None:
    for kind, text in meshkit.spawn(close_in_another_order, 4, timeout=60):
        assert kind == "DisagreementError"
        assert "mesh=mesh.view(x=2, y=2, timeout=9), number " in text
        assert "mesh=mesh.view(x=2, y=2, timeout=8), number " in text


def view_part_of_the_world() -> Any:
    """Build a mesh and a view over ranks 2 to 5; return the members, or the errors outside."""
    with meshkit.build_mesh(dp=2, tp=2, ranks=range(2, 6)) as mesh, mesh.view(x=4) as view:
        held = mesh.groups_report().communicators
        if mesh.inside:
            assert view.group() is mesh.group()
            return held, [all_reduce_members(mesh), all_reduce_members(view)]
        asks = [lambda: mesh.coordinate, lambda: mesh.group("dp"), lambda: mesh.ring("dp")]
        return held, [error_of(ask)[0] for ask in (*asks, view.peers)]


def test_a_mesh_over_a_part_of_the_world(pool: Pool) -> None:
    for rank, outcome in enumerate(pool.run(view_part_of_the_world)):
        if 2 <= rank < 6:
            assert outcome == (4, [[2, 3, 4, 5]] * 2)
        else:
            assert outcome == (0, ["CoordinateError"] * 4)


def build_three_models() -> Any:
    """Build the meshes of three models in one world."""
    parts = meshkit.split_world(8, actor=4, critic=2, reference=-1)
    sizes: dict[str, Sizes] = {"actor": {"tp": 2}, "critic": {}, "reference": {"tp": 2}}
    meshes = {name: meshkit.build_mesh(ranks=parts[name], **sizes[name]) for name in parts}
    (name,) = [name for name, mesh in meshes.items() if mesh.inside]
    members = all_reduce_members(meshes[name]), all_reduce_members(meshes[name], "dp")
    for mesh in meshes.values():
        mesh.close()
    return name, meshes[name].layout.sizes_text, *members


def test_several_models_side_by_side(pool: Pool) -> None:
    ranks = {"actor": range(4), "critic": range(4, 6), "reference": range(6, 8)}
    sizes = {"actor": "dp=2 tp=2", "critic": "dp=2", "reference": "dp=1 tp=2"}
    over_dp = [[0, 2], [1, 3], [0, 2], [1, 3], [4, 5], [4, 5], [6], [7]]
    for rank, (name, text, whole, dp) in enumerate(pool.run(build_three_models)):
        assert rank in ranks[name]
        assert (text, whole, dp) == (sizes[name], list(ranks[name]), over_dp[rank])


def use_views() -> Any:
    """Use verify, barrier and guard on a view."""
    with meshkit.build_mesh(dp=4, sp=2) as mesh, mesh.view(x=4, y=2) as view:
        view.barrier("y")
        verified = [group.axes for group in view.verify().groups]
        with view.guard(timeout=20):
            members = all_reduce_members(view, "x")
        mesh.barrier()
        return sorted(verified), members


def test_verify_barrier_and_guard_work_on_a_view(pool: Pool) -> None:
    for rank, (verified, members) in enumerate(pool.run(use_views)):
        assert verified == [("x",), ("x", "y"), ("y",)]
        assert members == [*range(rank % 2, 8, 2)]


def view_after_shutdown() -> Any:
    """Use a view, and take another one, after shutdown; return the errors."""
    mesh = meshkit.build_mesh(dp=2)
    view = mesh.view(y=2)
    meshkit.shutdown()
    return error_of(lambda: view.group("y")), error_of(lambda: mesh.view(x=2))


def test_a_view_raises_after_shutdown() -> None:
    """The fix is the call that builds the mesh, since a view needs its mesh."""
    text = "{}: the job it was built in has been left.\n  Fix: build_mesh(dp=2) again."
    calls = "mesh.group('y')", "mesh.view(x=2)"
    expected = tuple(("MeshkitError", text.format(call)) for call in calls)
    assert meshkit.spawn(view_after_shutdown, 2, timeout=60) == [expected] * 2
