"""One world, many views: which groups are shared, their members, and what stays behind."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit import Layout
from meshkit.groups import close_mesh
from meshkit.launch.torch_aborts import timeout_of
from meshkit.launch.torch_groups import KEEPS_ORDER
from tests.faults import create_every_group, error_of, fail_new_group
from tests.membership import all_reduce_members, collect_members, gather_members
from tests.pool import Pool
from tests.resources import descriptors, live_groups, threads

RANKS = 8  # of the pool

pytestmark = pytest.mark.skipif(
    not KEEPS_ORDER, reason="views of turned axes: torch 2.12 and newer"
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


@contextmanager
def nothing_left() -> Iterator[None]:
    """Check that the block leaves as many descriptors and threads as before."""
    gc.collect()  # an error of an earlier test may hold groups
    before = descriptors(), threads()
    yield
    assert (descriptors(), threads()) == before


def check_members(mesh: meshkit.Mesh) -> None:
    """Check by collectives the members of the whole mesh and of each axis."""
    for axes, (summed, gathered) in collect_members(mesh).items():
        row = mesh.layout.peers(mesh.rank, *axes).tolist()
        assert (summed, gathered) == (sorted(row), row)


def build_views(sizes: Sizes, others: list[Sizes], created: list[int]) -> None:
    """Take views of a mesh; check their members, the new groups, and the report of each."""
    with nothing_left():
        mesh = meshkit.build_mesh(order=" ".join(sizes), **sizes)
        meshes, new = [mesh], []
        for other in others:
            count = live_groups()
            meshes.append(mesh.view(other))
            new.append(live_groups() - count)
        assert new == created
        layouts = [Layout(**sizes), *(Layout(**sizes).view(**other) for other in others)]
        assert [view.layout for view in meshes] == layouts
        distinct = {row for layout in layouts for row in members_of(layout, mesh.rank)}
        expected = distinct | {tuple(range(8)), (mesh.rank,)}  # absent axes have a group of one
        for view in meshes:
            check_members(view)
            held = [tuple(group.members) for group in view.groups_report().groups]
            assert sorted(held) == sorted(expected)  # from every view, each group once
        for view in meshes:
            view.close()
        del view


@pytest.mark.parametrize(("sizes", "others", "created"), FAMILIES)
def test_groups_are_shared_and_hold_their_members(
    pool: Pool, sizes: Sizes, others: list[Sizes], created: list[int]
) -> None:
    pool.run(build_views, sizes, others, created)


def share_equal_groups() -> None:
    """Check which groups are the same object across views."""
    with (
        meshkit.build_mesh(dp=4, sp=2, tp=1, groups=["sp dp"]) as mesh,
        mesh.view(outer=2, inner=2, tp=2) as view,
        view.view(dp=4, sp=2, tp=1) as again,  # a view of a view is of the same family
        mesh.view() as twin,
        meshkit.build_mesh(dp=4, sp=2, tp=1) as other,
    ):
        assert view.group("tp") is mesh.group("sp")
        for axes in ((), ("dp",), ("sp",), ("tp",), ("dp", "sp")):
            assert again.group(*axes) is mesh.group(*axes)
        assert view.group() is mesh.group("dp", "sp") is dist.group.WORLD
        assert twin.group("sp", "dp") is mesh.group("sp", "dp") is not dist.group.WORLD
        assert other.group("dp") is not mesh.group("dp")
        grid = mesh.device_mesh("dp sp")
        assert grid.get_group("sp") is view.device_mesh("tp").get_group()
        assert grid["sp"].get_group() is mesh.group("sp")


def close_in_every_order() -> None:
    """Close three views in every order: a group lives as long as its last view."""
    with nothing_left():
        for order in itertools.permutations(range(3)):
            mesh = meshkit.build_mesh(dp=2, sp=2, tp=2)
            views = [mesh, mesh.view(replicate=2, shard=4), mesh.view(pair=4, tp=2)]
            for closed, index in enumerate(order):
                views[index].close()
                views[index].close()  # harmless
                for is_open in order[closed + 1 :]:
                    check_members(views[is_open])
            for view in views:
                assert kind_of(lambda v=view: v.view(dp=8)) == "MeshkitError"
            del mesh, views, view


def kind_of(call: Callable[[], Any]) -> str:
    """Return the class name of the error that a call raises."""
    return (error_of(call) or ("none", ""))[0]


def rank_groups_by_coordinate() -> None:
    """Check the group rank and the members for every order of axes."""
    names = ("dp", "sp", "tp")
    requests = [axes for size in (2, 3) for axes in itertools.permutations(names, size)]
    groups = [" ".join(axes) for axes in requests]
    with meshkit.build_mesh(dp=2, sp=2, tp=2, groups=groups) as mesh:
        for axes in requests:
            position = 0
            for axis in axes:  # Horner's rule, the last axis the fastest
                position = position * 2 + mesh.coordinate[axis]
            assert mesh.group(*axes).rank() == position
            assert gather_members(mesh, *axes) == mesh.peers(*axes).tolist()


def request_different_views() -> None:
    """Request different views on rank 1 than on the others; then the same view on all."""
    with meshkit.build_mesh(dp=4, sp=2, arrival_timeout=20) as mesh:
        odd = mesh.rank == 1
        calls: list[Callable[[], meshkit.Mesh]] = [
            lambda: mesh.view(x=8) if odd else mesh.view(x=4, y=2),
            lambda: meshkit.build_mesh(dp=4, sp=2) if odd else mesh.view(dp=4, sp=2),
            lambda: mesh.view(tp=2, dp=4) if odd else mesh.view(dp=4, tp=2),
        ]
        errors = [error_of(call) or ("", "") for call in calls]
        view = mesh.view(x=4, y=2)
        if odd:
            view.close()
        errors.append(error_of(lambda: mesh.view(z=8)) or ("", ""))
        view.close()
        kinds = ["DisagreementError"] * 4
        kinds[2] = "SpecError" if odd else kinds[2]
        assert [kind for kind, _ in errors] == kinds
        assert "call=build_mesh" in errors[1][1]
        assert "open=views 0 (dp=4 sp=2), 1 (x=4 y=2) of mesh" in errors[3][1]
        with mesh.view(z=8) as last:
            assert all_reduce_members(last, "z") == [*range(8)]


def fail_while_creating() -> None:
    """Take a view while a call of new_group fails; then use the mesh, and take the view again."""
    for number, each in (1, False), (6, True):
        with pytest.MonkeyPatch.context() as slow_way:
            if each:
                create_every_group(slow_way)
            with meshkit.build_mesh(dp=4, sp=2) as mesh:
                with nothing_left(), pytest.MonkeyPatch.context() as patch:
                    calls = fail_new_group(patch, number, RuntimeError("planted"), together=True)
                    with pytest.raises((RuntimeError, meshkit.MeshkitError), match="planted"):
                        mesh.view(a=2, b=2, c=2)
                assert len(calls) >= number
                with mesh.view(a=2, b=2, c=2) as view:
                    assert len(all_reduce_members(mesh, "dp")) == 4
                    assert len(all_reduce_members(view, "b")) == 2


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


def make_a_destroyed_group_anew() -> None:
    """Destroy the group of an axis behind meshkit, and take a view that has that axis too."""
    for everywhere in (True, False):
        with meshkit.build_mesh(dp=4, tp=2) as mesh:
            if everywhere or mesh.rank == 5:
                dist.destroy_process_group(mesh.group("tp"))
            if everywhere:
                with mesh.view(a=4, b=2) as view:
                    first = mesh.rank - mesh.rank % 2
                    assert all_reduce_members(view, "b") == [first, first + 1]
                    assert len(view.groups_report().groups) == 4
                continue
            with pytest.raises(meshkit.DisagreementError) as caught:
                mesh.view(a=4, b=2)
            requests = caught.value.requests
            assert [rank for rank, text in requests.items() if "destroyed" in text] == [5]


def give_none_outside_both_meshes() -> None:
    """Move between meshes of two ranks: a third one gets None, whether or not they are equal."""
    with (
        meshkit.build_mesh(dp=2, ranks=[0, 1]) as mesh,
        meshkit.build_mesh(tp=2, ranks=[0, 1]) as equal,
        meshkit.build_mesh(tp=2, ranks=[1, 0]) as turned,
    ):
        x = torch.arange(4.0) if mesh.inside else None
        for to, pattern in (equal, "a/dp -> a/tp"), (turned, "a/dp -> a/tp"), (mesh, "a/dp -> a"):
            kept = mesh.redistribution(pattern, to=to)
            for y in (
                mesh.redistribute(x, pattern, to=to),
                mesh.begin(x, pattern, to=to).wait(),
                kept(x),  # type: ignore[arg-type]
            ):
                assert (y is None) == (not mesh.inside), (to, y)
        if not mesh.inside:
            with pytest.raises(meshkit.CoordinateError):  # one mesh: a rank outside has no part
                mesh.redistribute(torch.ones(2), "a/dp -> a")


def name_the_way_out_where_ranks_are_outside() -> None:
    """Destroy a group of a mesh that leaves ranks out, take a view, and follow the fix."""
    with meshkit.build_mesh(dp=2, tp=2, ranks=range(4)) as mesh:
        if mesh.inside:
            dist.destroy_process_group(mesh.group("tp"))
        with pytest.raises(meshkit.DisagreementError) as error:
            mesh.view(a=2, b=2)
    assert "close it and build it again" in error.value.fix_text
    with meshkit.build_mesh(dp=2, tp=2, ranks=range(4)) as mesh, mesh.view(a=2, b=2) as view:
        check_members(view) if view.inside else None


def view_part_of_the_world() -> None:
    """Build a mesh and a view over ranks 2 to 5."""
    with meshkit.build_mesh(dp=2, tp=2, ranks=range(2, 6)) as mesh, mesh.view(x=4) as view:
        held = mesh.groups_report().communicators
        if mesh.inside:
            assert held == 4
            assert view.group() is mesh.group()
            assert all_reduce_members(mesh) == all_reduce_members(view) == [2, 3, 4, 5]
            return
        assert held == 0
        for call in (
            lambda: mesh.coordinate,
            lambda: mesh.group("dp"),
            lambda: mesh.ring("dp"),
            view.peers,
        ):
            assert kind_of(call) == "CoordinateError"


def build_three_models() -> None:
    """Build the meshes of three models in one world."""
    parts = meshkit.split_world(8, actor=4, critic=2, reference=-1)
    sizes: dict[str, Sizes] = {"actor": {"tp": 2}, "critic": {}, "reference": {"tp": 2}}
    meshes = {name: meshkit.build_mesh(ranks=parts[name], **sizes[name]) for name in parts}
    texts = {name: mesh.layout.sizes_text for name, mesh in meshes.items()}
    assert texts == {"actor": "dp=2 tp=2", "critic": "dp=2", "reference": "dp=1 tp=2"}
    rank = dist.get_rank()
    name = ("actor", "actor", "critic", "reference")[rank // 2]
    assert [each for each, mesh in meshes.items() if mesh.inside] == [name]
    whole = {"actor": range(4), "critic": range(4, 6), "reference": range(6, 8)}[name]
    over_dp = [[0, 2], [1, 3], [0, 2], [1, 3], [4, 5], [4, 5], [6], [7]][rank]
    assert all_reduce_members(meshes[name]) == [*whole]
    assert all_reduce_members(meshes[name], "dp") == over_dp
    for mesh in meshes.values():
        mesh.close()


def verify_wait_and_guard() -> None:
    """Use verify, barrier and guard on a view."""
    with meshkit.build_mesh(dp=4, sp=2) as mesh, mesh.view(x=4, y=2) as view:
        view.barrier("y")
        verified = sorted(group.axes for group in view.verify().groups)
        assert verified == [("x",), ("x", "y"), ("y",)]
        with view.guard(timeout=20):
            assert all_reduce_members(view, "x") == [*range(mesh.rank % 2, 8, 2)]
        mesh.barrier()


@pytest.mark.parametrize(
    "check",
    [
        share_equal_groups,
        close_in_every_order,
        rank_groups_by_coordinate,
        request_different_views,
        fail_while_creating,
        inherit_timeouts,
        make_a_destroyed_group_anew,
        name_the_way_out_where_ranks_are_outside,
        give_none_outside_both_meshes,
        view_part_of_the_world,
        build_three_models,
        verify_wait_and_guard,
    ],
)
def test_views_on_eight_ranks(pool: Pool, check: Callable[[], None]) -> None:
    pool.run(check)


def miss_views() -> Any:
    """Miss views on rank 1, whose time is given in three ways."""
    mesh = meshkit.build_mesh(dp=4, arrival_timeout=60)
    short = meshkit.build_mesh(dp=4, arrival_timeout=1)
    asks = (
        lambda: mesh.view(a=2, b=2, timeout=1),
        lambda: mesh.view(a=2, b=2, timeout=60, arrival_timeout=1),
        lambda: short.view(a=2, b=2),
    )
    errors = []
    for ask in asks:
        errors.append(None if mesh.rank == 1 else error_of(ask))
        dist.barrier()
    return errors


def test_a_rank_missing_at_a_view_is_named_after_its_arrival_timeout() -> None:
    results = meshkit.spawn(miss_views, 4, timeout=60)
    for kind, text in results[0] + results[2] + results[3]:
        assert kind == "RankTimeoutError"
        assert text.splitlines()[0].endswith("within 1 s.")
        assert "Missing: 1 (a=0 b=1)" in text


def close_in_another_order() -> Any:
    """Close two views in different orders, as on NCCL, whose groups end on all ranks together."""
    pytest.MonkeyPatch().setattr(
        close_mesh, "is_destroyed_collectively", lambda groups: bool([*groups])
    )
    mesh = meshkit.build_mesh(dp=2, arrival_timeout=20)
    views = [mesh.view(x=2, timeout=9), mesh.view(x=2, timeout=8)]
    return error_of(views[mesh.rank].close)


def test_closing_views_in_different_orders_raises_if_all_ranks_close_together() -> None:
    for kind, text in meshkit.spawn(close_in_another_order, 2, timeout=60):
        assert kind == "DisagreementError"
        assert "mesh=mesh.view(x=2, timeout=9), number " in text
        assert "mesh=mesh.view(x=2, timeout=8), number " in text


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
