"""One world, many views: which groups are shared, their members, and what stays behind."""

from __future__ import annotations

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

pytestmark = pytest.mark.skipif(
    not create.KEEPS_ORDER, reason="views of turned axes: torch 2.12 and newer"
)


FAMILIES = [
    (
        8,
        {"dp": 4, "sp": 2, "tp": 1},
        [{"replicate": 2, "shard": 4}, {"efsdp": 2, "ep": 2, "tp": 2}, {"dp": 4, "sp": -1}],
    ),
    (12, {"pp": 2, "dp": 3, "tp": 2}, [{"x": 12}, {"x": 6, "tp": 2}, {"a": 4, "b": 3}]),
    (1, {"dp": 1}, [{"x": 1, "y": 1}]),
]


def members_of(layout: Layout, rank: int) -> list[tuple[int, ...]]:
    """Return the members of the default groups of a rank, derived from the grid alone."""
    averaged = [axis for axis in ("dp", "cp", "sp") if axis in layout.axes]
    requests = [list(layout.axes), *([axis] for axis in layout.axes), averaged]
    found = []
    for axes in requests:
        if axes:
            where = [slice(None) if a in axes else layout.coordinate(rank)[a] for a in layout.axes]
            found.append(tuple(layout.grid[tuple(where)].ravel().tolist()))
    return found


Sizes = dict[str, int]


def build_views(sizes: Sizes, others: list[Sizes]) -> Any:
    """Take views of a mesh; return members, new groups, reports, and resources before and after."""
    meshkit.init()
    before, made = (descriptors(), threads()), []
    mesh = meshkit.build_mesh(order=" ".join(sizes), **sizes)
    every = [mesh]
    for other in others:
        count = live_groups()
        every.append(mesh.view(other))
        made.append(live_groups() - count)
    members = [collect_members(one) for one in every]
    held = [[list(group.members) for group in one.groups_report().groups] for one in every]
    text = str(mesh.groups_report())
    for one in every:
        one.close()
    del one
    return members, made, held, text, before, (descriptors(), threads())


@pytest.mark.parametrize(("ranks", "sizes", "others"), FAMILIES)
def test_groups_are_shared_and_hold_their_members(
    ranks: int, sizes: dict[str, int], others: list[dict[str, int]]
) -> None:
    layouts = [Layout(**sizes), *(Layout(**sizes).view(**other) for other in others)]
    results = meshkit.spawn(build_views, ranks, (sizes, others), timeout=120)
    for rank, (members, _, held, text, before, after) in enumerate(results):
        for layout, groups in zip(layouts, members, strict=True):
            for axes, (summed, gathered) in groups.items():
                row = layout.peers(rank, *axes).tolist()
                assert (summed, gathered) == (sorted(row), row)
        distinct = {row for layout in layouts for row in members_of(layout, rank)}
        for one in held:  # the same report from every view, each group once
            assert sorted(map(tuple, one)) == sorted(distinct | {tuple(range(ranks))})
        assert text.startswith(f"rank {rank} holds {len(held[0])} process group")
        assert after == before
    assert results[0][1] == results[-1][1]  # as many were made on every rank


def test_no_group_is_made_for_a_view_whose_groups_exist() -> None:
    others = [{"dp": 4, "sp": 2, "tp": 1}, {"x": 4, "y": 2}, {"z": 8}, {"dp": 4, "one": 1, "b": 2}]
    for result in meshkit.spawn(build_views, 8, ({"dp": 4, "sp": 2, "tp": 1}, others), timeout=60):
        assert result[1] == [0, 0, 0, 0]


def compare_groups() -> Any:
    """Return which groups are the same object across views."""
    with meshkit.build_mesh(dp=4, sp=2, tp=1, groups=["sp dp"]) as mesh:
        view = mesh.view(outer=2, inner=2, tp=2)
        again = view.view(dp=4, sp=2, tp=1)  # a view of a view is of the same family
        other = meshkit.build_mesh(dp=4, sp=2, tp=1)
        world = dist.group.WORLD
        return {
            "tp is sp": view.group("tp") is mesh.group("sp"),
            "again": all(
                again.group(*axes) is mesh.group(*axes)
                for axes in ((), ("dp",), ("sp",), ("tp",), ("dp", "sp"))
            ),
            "whole": view.group() is world and mesh.group("dp", "sp") is world,
            "turned": mesh.group("sp", "dp") is world,
            "another mesh": other.group("dp") is mesh.group("dp"),
            "device meshes": [
                mesh.device_mesh("dp sp").get_group("sp") is view.device_mesh("tp").get_group(),
                mesh.device_mesh("dp sp")["sp"].get_group() is mesh.group("sp"),
            ],
        }


def test_equal_groups_are_the_same_object() -> None:
    assert (
        meshkit.spawn(compare_groups, 8, timeout=60)
        == [
            {
                "tp is sp": True,
                "again": True,
                "whole": True,
                "turned": False,
                "another mesh": False,
                "device meshes": [True, True],
            }
        ]
        * 8
    )


def close_in_every_order() -> Any:
    """Close three views in every order; return the members of the groups that are still open."""
    meshkit.init()
    before, alive = (descriptors(), threads()), []
    for order in itertools.permutations(range(3)):
        mesh = meshkit.build_mesh(dp=2, sp=2, tp=2)
        every = [mesh, mesh.view(replicate=2, shard=4), mesh.view(pair=4, tp=2)]
        for place in order:
            every[place].close()
            every[place].close()  # harmless
            rest = [one for at, one in enumerate(every) if order.index(at) > order.index(place)]
            alive.append([collect_members(one) for one in rest])
        alive.append([error_of(lambda one=one: one.view(dp=8)) for one in every])
        rest.clear()
        del mesh, every
    return alive, before, (descriptors(), threads())


def test_a_group_lives_as_long_as_its_last_view_in_every_order() -> None:
    layouts = [Layout(dp=2, sp=2, tp=2), Layout(replicate=2, shard=4), Layout(pair=4, tp=2)]
    for rank, (alive, before, after) in enumerate(
        meshkit.spawn(close_in_every_order, 8, timeout=120)
    ):
        assert after == before
        steps = iter(alive)
        for order in itertools.permutations(range(3)):
            for at in range(3):
                rest = [layouts[one] for one in range(3) if order.index(one) > at]
                for layout, groups in zip(rest, next(steps), strict=True):
                    assert {axes: row for axes, (_, row) in groups.items()} == {
                        axes: layout.peers(rank, *axes).tolist() for axes in groups
                    }
            assert [kind for kind, _ in next(steps)] == ["MeshkitError"] * 3


def permute_axes() -> Any:
    """Return for each order of axes whether the group rank is the coordinate, and the members."""
    names = ("dp", "sp", "tp")
    requests = [one for size in (2, 3) for one in itertools.permutations(names, size)]
    with meshkit.build_mesh(dp=2, sp=2, tp=2, groups=[" ".join(one) for one in requests]) as mesh:
        found = {}
        for axes in requests:
            position = 0
            for axis in axes:  # Horner's rule, the last axis the fastest
                position = position * 2 + mesh.coordinate[axis]
            group = mesh.group(*axes)
            found[axes] = (group.rank() == position, gather_members(mesh, *axes))
        return found, mesh.layout.groups("tp", "dp").tolist()


def test_the_group_rank_is_the_coordinate_for_every_order_of_axes() -> None:
    layout = Layout(dp=2, sp=2, tp=2)
    for rank, (found, turned) in enumerate(meshkit.spawn(permute_axes, 8, timeout=60)):
        assert len(found) == 12
        for axes, (right, members) in found.items():
            assert right, axes
            assert members == layout.peers(rank, *axes).tolist()
        assert turned == [[0, 4, 1, 5], [2, 6, 3, 7]]


def request_different_views() -> Any:
    """Request different views on rank 1 than on the others; then the same view on all."""
    mesh = meshkit.build_mesh(dp=2, sp=2, arrival_timeout=20)
    odd = mesh.rank == 1
    outcomes = [
        error_of(lambda: mesh.view(x=4) if odd else mesh.view(x=2, y=2)),
        error_of(lambda: meshkit.build_mesh(dp=2, sp=2) if odd else mesh.view(dp=2, sp=2)),
        error_of(lambda: mesh.view(tp=2, dp=2) if odd else mesh.view(dp=2, tp=2)),
    ]
    view = mesh.view(x=2, y=2)
    if odd:
        view.close()
    outcomes.append(error_of(lambda: mesh.view(z=4)))
    view.close()
    with mesh.view(z=4) as last:
        return outcomes, all_reduce_members(last, "z")


def test_ranks_that_request_different_views_raise() -> None:
    for rank, (outcomes, members) in enumerate(
        meshkit.spawn(request_different_views, 4, timeout=60)
    ):
        assert members == [0, 1, 2, 3]
        kinds = [kind for kind, _ in outcomes]
        assert kinds == ["DisagreementError"] * 2 + [
            "SpecError" if rank == 1 else "DisagreementError",
            "DisagreementError",
        ]
        assert "ranks 0 and 2-3:  x=2 y=2\n" in outcomes[0][1]
        assert "call=build_mesh" in outcomes[1][1]
        assert "make the same calls in the same order" in outcomes[1][1]
        assert "tp dp is not the standard order, dp tp" in outcomes[2][1]
        assert outcomes[3][1].splitlines()[1:] == [
            "  ranks 0 and 2-3:  z=4, open=views 0 (dp=2 sp=2), 1 (x=2 y=2) of mesh 1",
            outcomes[3][1].splitlines()[2],
            "  Fix: close the same views on every rank, and create new ones from the same mesh.",
        ]
        assert outcomes[3][1].splitlines()[2].startswith("  rank 1 (")
        assert outcomes[3][1].splitlines()[2].endswith("z=4, open=views 0 (dp=2 sp=2) of mesh 1")


def fail_while_creating(at: int, told_of_each: bool) -> Any:
    """Take a view while a call of new_group fails; then use the mesh, and take the view again."""
    if told_of_each:
        create_every_group(pytest.MonkeyPatch())
    mesh = meshkit.build_mesh(dp=4, sp=2)
    before = (descriptors(), threads())
    with pytest.MonkeyPatch.context() as patch:
        calls = fail_new_group(patch, at, RuntimeError("planted"), together=True)
        try:
            outcome = error_of(lambda: mesh.view(a=2, b=2, c=2))
        except RuntimeError as error:
            outcome = ("RuntimeError", str(error))
    left = (descriptors(), threads())
    with mesh.view(a=2, b=2, c=2) as view:
        return (
            outcome,
            len(calls) >= at,
            before,
            left,
            all_reduce_members(mesh, "dp"),
            all_reduce_members(view, "b"),
        )


@pytest.mark.parametrize(("at", "each"), [(1, False), (2, False), (3, True), (6, True)])
def test_the_mesh_works_after_a_view_that_failed(at: int, each: bool) -> None:
    for outcome, fired, before, left, dp, b in meshkit.spawn(
        fail_while_creating, 8, (at, each), timeout=90
    ):
        assert fired
        assert outcome is not None
        assert "planted" in outcome[1]
        assert left == before
        assert (len(dp), len(b)) == (4, 2)


def inherit_timeouts() -> Any:
    """Return timeouts of groups of views, with and without a timeout of their own."""
    with meshkit.build_mesh(dp=4, sp=2, timeout={"sp": 30, "dp": 600}) as mesh:
        view = mesh.view(x=2, y=2, tp=2)
        own = mesh.view(x=4, tp=2, timeout={"tp": 77})
        whole = mesh.view(x=4, tp=2, timeout=44)
        seconds = [
            timeout_of(group).total_seconds()  # type: ignore[union-attr]
            for group in (view.group("tp"), view.group("x"), own.group("tp"), own.group("x"))
        ]
        shared = view.group("tp") is mesh.group("sp"), own.group("tp") is mesh.group("sp")
        return seconds, shared, [timeout_of(whole.group(a)).total_seconds() for a in ("x", "tp")]


def test_a_view_takes_the_timeouts_of_its_mesh_unless_given() -> None:
    for seconds, shared, whole in meshkit.spawn(inherit_timeouts, 8, timeout=60):
        assert seconds == [30, 1800, 77, 600]
        assert shared == (True, False)
        assert whole == [44, 44]


def timeouts_of(mesh: meshkit.Mesh) -> dict[str, float]:
    """Return the timeouts in seconds by axis; "" is the whole mesh."""
    found = {}
    for axes in ("", *mesh.layout.axes):
        limit = timeout_of(mesh.group(*axes.split()))
        assert limit is not None
        found[axes] = limit.total_seconds()
    return found


def repeat_timeouts() -> Any:
    """Take views with timeouts of axes of size 1, and with the default timeout as a number."""
    meshkit.init()
    one = meshkit.build_mesh(dp=4, tp=1, timeout={"tp": 5})
    found = [
        timeouts_of(one.view(dp=4)),
        timeouts_of(one.view(dp=2, tp=2)),
        timeouts_of(one.view(x=4, y=1)),
    ]
    two = meshkit.build_mesh(dp=2, tp=2, timeout={"tp": 5})
    found.append(timeouts_of(two.view(dp=2, tp=2, timeout=1800)))
    count = live_groups()
    two.view(dp=2, x=2, timeout={"x": 5, "dp": 1800})
    return found, live_groups() - count


def test_timeouts_given_twice_or_as_numbers() -> None:
    for found, made in meshkit.spawn(repeat_timeouts, 4, timeout=60):
        assert found == [
            {"": 1800, "dp": 1800},
            {"": 1800, "dp": 1800, "tp": 1800},
            {"": 1800, "x": 1800, "y": 5},
            {"": 1800, "dp": 1800, "tp": 1800},
        ]
        assert made == 0  # the backend's own timeout is the same in seconds


def wait_for_view() -> Any:
    """Miss a view on rank 1, with one timeout for all groups, and with an arrival_timeout."""
    mesh = meshkit.build_mesh(dp=4, arrival_timeout=60)
    outcomes = []
    for given in ({"timeout": 2}, {"timeout": 60, "arrival_timeout": 2}):
        outcomes.append(None if mesh.rank == 1 else error_of(lambda g=given: mesh.view(a=4, **g)))
        dist.barrier()
    return outcomes


def test_the_timeout_of_a_view_is_its_arrival_timeout_unless_given() -> None:
    results = meshkit.spawn(wait_for_view, 4, timeout=60)
    for rank in (0, 2, 3):
        for (kind, text), line in zip(
            results[rank], ("timeout=2", "arrival_timeout=2"), strict=True
        ):
            assert kind == "RankTimeoutError"
            assert line in text.splitlines()[0]
            assert text.splitlines()[0].endswith("within 2 s.")


def close_in_another_order() -> Any:
    """Close two views in different orders, as on NCCL, whose groups end on all ranks together."""
    meshkit.init(arrival_timeout=20)
    pytest.MonkeyPatch().setattr(
        open_mesh, "is_destroyed_collectively", lambda groups: bool([*groups])
    )
    mesh = meshkit.build_mesh(dp=2, tp=2)
    every = [mesh.view(x=2, y=2, timeout=9), mesh.view(x=2, y=2, timeout=8)]
    return error_of(every[mesh.rank % 2].close)


def test_closing_views_in_different_orders_raises_if_all_ranks_close_together() -> None:
    for kind, text in meshkit.spawn(close_in_another_order, 4, timeout=60):
        assert kind == "DisagreementError"
        assert "mesh=mesh.view(x=2, y=2, timeout=9), number " in text
        assert "mesh=mesh.view(x=2, y=2, timeout=8), number " in text


def view_part_of_the_world() -> Any:
    """Build a mesh and a view over ranks 2 to 5; return the members, or the errors outside."""
    mesh = meshkit.build_mesh(dp=2, tp=2, ranks=range(2, 6))
    view = mesh.view(x=4)
    if mesh.inside:
        found: Any = [all_reduce_members(one) for one in (mesh, view)] + [
            view.group() is mesh.group()
        ]
    else:
        asks = [
            lambda: mesh.coordinate,
            lambda: mesh.group("dp"),
            lambda: mesh.ring("dp"),
            view.peers,
        ]
        found = [error_of(ask) for ask in asks]
    report = mesh.groups_report().communicators
    view.close()
    mesh.close()
    return mesh.inside, repr(mesh), found, report


def test_a_mesh_over_a_part_of_the_world() -> None:
    for rank, (inside, text, found, held) in enumerate(
        meshkit.spawn(view_part_of_the_world, 8, timeout=60)
    ):
        assert inside == (2 <= rank < 6)
        if inside:
            assert found == [[2, 3, 4, 5], [2, 3, 4, 5], True]
            assert held == 3
        else:
            assert text == f"Mesh(dp=2, tp=2; rank {rank} is outside; closed)"
            assert [kind for kind, _ in found] == ["CoordinateError"] * 4
            assert all(f"rank {rank} is not in Layout(" in text for _, text in found)
            assert held == 0


def build_three_models() -> Any:
    """Build the meshes of three models in one world."""
    parts = meshkit.split_world(meshkit.init().world_size, actor=4, critic=2, reference=-1)
    sizes: dict[str, Sizes] = {"actor": {"tp": 2}, "critic": {}, "reference": {"tp": 2}}
    meshes = {name: meshkit.build_mesh(ranks=parts[name], **sizes[name]) for name in parts}
    (name,) = [key for key, mesh in meshes.items() if mesh.inside]
    return (
        name,
        repr(meshes[name]),
        all_reduce_members(meshes[name]),
        all_reduce_members(meshes[name], "dp"),
    )


def test_several_models_side_by_side() -> None:
    parts = {"actor": range(4), "critic": range(4, 6), "reference": range(6, 8)}
    sizes = {"actor": "dp=2, tp=2", "critic": "dp=2", "reference": "dp=1, tp=2"}
    results = meshkit.spawn(build_three_models, 8, timeout=60)
    for rank, (name, text, whole, dp) in enumerate(results):
        assert rank in parts[name]
        assert text.startswith(f"Mesh({sizes[name]}; rank {rank}: ")
        assert whole == list(parts[name])
        assert dp == [[0, 2], [1, 3], [0, 2], [1, 3], [4, 5], [4, 5], [6], [7]][rank]


def miss_view() -> Any:
    """Take a view on all ranks but rank 1."""
    mesh = meshkit.build_mesh(dp=4, arrival_timeout=2)
    found = None if mesh.rank == 1 else error_of(lambda: mesh.view(a=2, b=2))
    dist.barrier()
    return found


def test_a_rank_missing_at_a_view_is_named() -> None:
    results = meshkit.spawn(miss_view, 4, timeout=60)
    for rank in (0, 2, 3):
        kind, text = results[rank]
        assert kind == "RankTimeoutError"
        assert text.startswith("1 of 4 ranks did not arrive at mesh.view(a=2, b=2) within 2 s.\n")
        assert "Missing: 1 (a=0 b=1)" in text


def use_views() -> Any:
    """Use verify, barrier and guard on a view."""
    with meshkit.build_mesh(dp=2, sp=2) as mesh, mesh.view(x=2, y=2) as view:
        view.barrier("y")
        seen = [group.axes for group in view.verify().groups]
        with view.guard(timeout=20):
            members = all_reduce_members(view, "x")
        mesh.barrier()
        return seen, members


def test_verify_barrier_and_guard_work_on_a_view() -> None:
    for rank, (seen, members) in enumerate(meshkit.spawn(use_views, 4, timeout=60)):
        assert sorted(seen) == [("x",), ("x", "y"), ("y",)]
        assert members == [rank % 2, rank % 2 + 2]


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
