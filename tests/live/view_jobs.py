"""What the ranks of test_view.py run. No pytest here: every child imports this."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import meshkit
from meshkit.launch.inside import timeout_of
from meshkit.live import create
from meshkit.live import mesh as live_mesh

from .jobs import descriptors, in_order, live_groups, one_hot_sum, tell_each, threads

Sizes = dict[str, int]


def caught(call: Callable[[], Any]) -> tuple[str, str] | None:
    """Kind and text of what a call raises."""
    try:
        call()
    except meshkit.MeshkitError as error:
        return type(error).__name__, str(error)
    return None


def every_group(mesh: meshkit.Mesh) -> dict[tuple[str, ...], Any]:
    """Who is met in each group of a mesh: by an all-reduce, and in order by a gather."""
    asked = [(), *((axis,) for axis in mesh.layout.axes)]
    return {axes: (one_hot_sum(mesh, *axes), in_order(mesh, *axes)) for axes in asked}


def views(sizes: Sizes, others: list[Sizes]) -> Any:
    """A mesh and views of it: who is met in each group, what is shared, and what is left."""
    meshkit.init()
    before, made = (descriptors(), threads()), []
    mesh = meshkit.build_mesh(order=" ".join(sizes), **sizes)
    every = [mesh]
    for other in others:
        count = live_groups()
        every.append(mesh.view(other))
        made.append(live_groups() - count)
    met = [every_group(one) for one in every]
    held = [[list(group.members) for group in one.groups_report().groups] for one in every]
    text = str(mesh.groups_report())
    for one in every:
        one.close()
    del one
    return met, made, held, text, before, (descriptors(), threads())


def closing_in_every_order() -> Any:
    """Three views of one world: what lives on when they are closed, in every order."""
    meshkit.init()
    before, alive = (descriptors(), threads()), []
    for order in itertools.permutations(range(3)):
        mesh = meshkit.build_mesh(dp=2, sp=2, tp=2)
        every = [mesh, mesh.view(replicate=2, shard=4), mesh.view(pair=4, tp=2)]
        for place in order:
            every[place].close()
            every[place].close()  # harmless
            rest = [one for at, one in enumerate(every) if order.index(at) > order.index(place)]
            alive.append([every_group(one) for one in rest])
        alive.append([caught(lambda one=one: one.view(dp=8)) for one in every])
        rest.clear()
        del mesh, every
    return alive, before, (descriptors(), threads())


def identities() -> Any:
    """Which groups are the same object across views."""
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


def permutations() -> Any:
    """Groups over several axes in every order: is the position the coordinate?"""
    names = ("dp", "sp", "tp")
    asked = [one for size in (2, 3) for one in itertools.permutations(names, size)]
    with meshkit.build_mesh(dp=2, sp=2, tp=2, groups=[" ".join(one) for one in asked]) as mesh:
        found = {}
        for axes in asked:
            position = 0
            for axis in axes:  # Horner's rule, the last axis the fastest
                position = position * 2 + mesh.coordinate[axis]
            group = mesh.group(*axes)
            found[axes] = (group.rank() == position, in_order(mesh, *axes))
        return found, mesh.layout.groups("tp", "dp").tolist()


def disagreements() -> Any:
    """Views that differ between ranks, and what works afterwards."""
    mesh = meshkit.build_mesh(dp=2, sp=2, arrival_timeout=20)
    odd = mesh.rank == 1
    told = [
        caught(lambda: mesh.view(x=4) if odd else mesh.view(x=2, y=2)),
        caught(lambda: meshkit.build_mesh(dp=2, sp=2) if odd else mesh.view(dp=2, sp=2)),
        caught(lambda: mesh.view(tp=2, dp=2) if odd else mesh.view(dp=2, tp=2)),
    ]
    view = mesh.view(x=2, y=2)
    if odd:
        view.close()
    told.append(caught(lambda: mesh.view(z=4)))
    view.close()
    with mesh.view(z=4) as last:
        return told, one_hot_sum(last, "z")


def failing_view(at: int, told_of_each: bool) -> Any:
    """new_group fails at its n-th call while a view is made: the mesh works on, a view too."""
    if told_of_each:
        create.count_on = tell_each
    mesh, real, calls = meshkit.build_mesh(dp=4, sp=2), dist.new_group, []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == at:
            dist.barrier()
            raise RuntimeError("planted")
        return real(*args, **kwargs)

    before = (descriptors(), threads())
    create.dist.new_group = failing
    try:
        told = caught(lambda: mesh.view(a=2, b=2, c=2))
    except RuntimeError as error:
        told = ("RuntimeError", str(error))
    finally:
        create.dist.new_group = real
    left = (descriptors(), threads())
    with mesh.view(a=2, b=2, c=2) as view:
        return told, len(calls) >= at, before, left, one_hot_sum(mesh, "dp"), one_hot_sum(view, "b")


def inherited_times() -> Any:
    """A view takes the times of its mesh, group by group, unless it says its own."""
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


def times_of(mesh: meshkit.Mesh) -> dict[str, float]:
    """Seconds by axes; "" is the whole mesh."""
    found = {}
    for axes in ("", *mesh.layout.axes):
        limit = timeout_of(mesh.group(*axes.split()))
        assert limit is not None
        found[axes] = limit.total_seconds()
    return found


def times_said_twice() -> Any:
    """Times of axes of size 1, times that equal the usual one, and the backend's own in numbers."""
    meshkit.init()
    one = meshkit.build_mesh(dp=4, tp=1, timeout={"tp": 5})
    found = [times_of(one.view(dp=4)), times_of(one.view(dp=2, tp=2)), times_of(one.view(x=4, y=1))]
    two = meshkit.build_mesh(dp=2, tp=2, timeout={"tp": 5})
    found.append(times_of(two.view(dp=2, tp=2, timeout=1800)))
    count = live_groups()
    two.view(dp=2, x=2, timeout={"x": 5, "dp": 1800})
    return found, live_groups() - count


def waits_for_a_view() -> Any:
    """A time for all groups of a view is the time in which ranks arrive, too."""
    mesh = meshkit.build_mesh(dp=4, arrival_timeout=60)
    told = []
    for given in ({"timeout": 2}, {"timeout": 60, "arrival_timeout": 2}):
        told.append(None if mesh.rank == 1 else caught(lambda g=given: mesh.view(a=4, **g)))
        dist.barrier()
    return told


def closing_in_another_order() -> Any:
    """Where closing is a matter of all ranks: they close two views in different orders."""
    meshkit.init(arrival_timeout=20)
    live_mesh.ends_together = lambda groups: bool([*groups])  # as nccl
    mesh = meshkit.build_mesh(dp=2, tp=2)
    every = [mesh.view(x=2, y=2, timeout=9), mesh.view(x=2, y=2, timeout=8)]
    return caught(every[mesh.rank % 2].close)


def part_of_the_world() -> Any:
    """A mesh over some ranks, a view of it, and what the others hold."""
    mesh = meshkit.build_mesh(dp=2, tp=2, ranks=range(2, 6))
    view = mesh.view(x=4)
    if mesh.inside:
        found: Any = [one_hot_sum(one) for one in (mesh, view)] + [view.group() is mesh.group()]
    else:
        asks = [
            lambda: mesh.coordinate,
            lambda: mesh.group("dp"),
            lambda: mesh.ring("dp"),
            view.peers,
        ]
        found = [caught(ask) for ask in asks]
    report = mesh.groups_report().communicators
    view.close()
    mesh.close()
    return mesh.inside, repr(mesh), found, report


def actors_and_critics() -> Any:
    """Three models side by side in one world."""
    parts = meshkit.split_world(dist_size(), actor=4, critic=2, reference=-1)
    sizes: dict[str, Sizes] = {"actor": {"tp": 2}, "critic": {}, "reference": {"tp": 2}}
    meshes = {name: meshkit.build_mesh(ranks=parts[name], **sizes[name]) for name in parts}
    (mine,) = [name for name, mesh in meshes.items() if mesh.inside]
    return mine, repr(meshes[mine]), one_hot_sum(meshes[mine]), one_hot_sum(meshes[mine], "dp")


def dist_size() -> int:
    return meshkit.init().world_size


def late_for_a_view() -> Any:
    """Rank 1 never comes to a view."""
    mesh = meshkit.build_mesh(dp=4, arrival_timeout=2)
    found = None if mesh.rank == 1 else caught(lambda: mesh.view(a=2, b=2))
    dist.barrier()
    return found


def collectives_of_views() -> Any:
    """Verify, barrier and guard on a view; a group of the same members under both names."""
    with meshkit.build_mesh(dp=2, sp=2) as mesh, mesh.view(x=2, y=2) as view:
        view.barrier("y")
        seen = [group.axes for group in view.verify().groups]
        with view.guard(timeout=20):
            members = one_hot_sum(view, "x")
        mesh.barrier()
        return seen, members


def shut_down() -> Any:
    """A mesh whose job has been left: its view says so."""
    mesh = meshkit.build_mesh(dp=2)
    meshkit.shutdown()
    return caught(lambda: mesh.view(x=2))


# ------------------------------------------------------------------ groups of the user's own


def own_groups(names: dict[str, list[list[int]]]) -> dict[str, Any]:
    """This rank's groups, made by torch, by name."""
    found: dict[str, Any] = {}
    for name, rows in names.items():
        for row in rows:
            group = dist.new_group(row)
            if dist.get_rank() in row:
                found[name] = group
    return found


def from_groups() -> Any:
    """A mesh over a user's groups: used, shared with views, and not destroyed."""
    meshkit.init()
    layout = meshkit.Layout(dp=4, tp=2)
    groups = own_groups({"dp": layout.groups("dp").tolist(), "tp": layout.groups("tp").tolist()})
    turned = dist.new_group(layout.groups("tp", "dp")[0].tolist(), sort_ranks=False)
    count = live_groups()
    with meshkit.Mesh.from_groups(layout, {**groups, "tp dp": turned}) as mesh:
        made = live_groups() - count
        assert mesh.group("tp", "dp") is turned
        view = mesh.view(a=2, b=2, c=2)
        used = mesh.group("dp") is groups["dp"], view.group("c") is groups["tp"]
        met, whole = every_group(mesh), mesh.group() is dist.group.WORLD
        origins = [(group.origin, len(group.members)) for group in mesh.groups_report().groups]
        view.close()
    total = torch.ones(1)
    dist.all_reduce(total, group=groups["dp"])
    return made, used, whole, met, origins, int(total)


def fix_of_a_group_that_was_not_lent() -> Any:
    """What the error of ``mesh.group`` says, typed."""
    meshkit.init()
    layout = meshkit.Layout(dp=2, sp=2, tp=2)
    groups = own_groups({"dp": layout.groups("dp").tolist()})
    with meshkit.Mesh.from_groups(layout, groups) as mesh:
        told = caught(lambda: mesh.group("dp", "tp"))
        assert told is not None
        fix = told[1].partition("Fix: ")[2].removesuffix(".")
        with eval(fix, {"mesh": mesh}) as view:
            return told[1], one_hot_sum(view, "dp", "tp"), view.group("dp") is groups["dp"]


def wrong_groups() -> Any:
    """Groups that are not what the layout says, on one rank or on all; then right ones."""
    meshkit.init()
    layout = meshkit.Layout(dp=2, tp=2)
    groups = own_groups({"dp": [[0, 2], [1, 3]], "tp": [[0, 1], [2, 3]]})
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
    told = [caught(lambda r=r: meshkit.Mesh.from_groups(*r)) for r in requests]
    with meshkit.Mesh.from_groups(layout, {"dp": groups["dp"]}) as mesh:
        return told, one_hot_sum(mesh, "dp"), one_hot_sum(mesh, "tp")


def another_group_of_equal_members() -> Any:
    """Ranks 0 and 1 lend one group, ranks 2 and 3 another, of the same members."""
    meshkit.init(arrival_timeout=20)
    first = own_groups({"dp": [[0, 2], [1, 3]]})
    second = own_groups({"dp": [[0, 2], [1, 3]]})
    layout, before = meshkit.Layout(dp=2, tp=2), live_groups()
    mine = first if dist.get_rank() < 2 else second
    told = caught(lambda: meshkit.Mesh.from_groups(layout, mine))
    left = live_groups() - before
    with meshkit.Mesh.from_groups(layout, first) as mesh:
        members = one_hot_sum(mesh, "dp")
        view = mesh.view(a=2, b=2, timeout=33)
        held = [(group.origin, len(group.members)) for group in mesh.groups_report().groups]
        dist.destroy_process_group(first["dp"])
        gone = [group.origin for group in view.groups_report().groups]
    again = caught(lambda: meshkit.Mesh.from_groups(layout, first))
    return told, left, members, held, gone, again


def axes_of_one() -> Any:
    """A DeviceMesh with two axes of size 1, for each of which torch makes a group."""
    meshkit.init()
    theirs = init_device_mesh("cpu", (2, 1, 1, 2), mesh_dim_names=("dp", "cp", "sp", "tp"))
    with meshkit.Mesh.from_device_mesh(theirs) as mesh:
        return every_group(mesh)


def from_device_mesh() -> Any:
    """A mesh over a DeviceMesh, and back."""
    meshkit.init()
    theirs = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
    bare = init_device_mesh("cpu", (8,))
    count = live_groups()
    told = [
        caught(lambda: meshkit.Mesh.from_device_mesh(bare)),
        caught(lambda: meshkit.Mesh.from_device_mesh(theirs["tp"])),
        caught(lambda: meshkit.Mesh.from_device_mesh("mesh")),  # type: ignore[arg-type]
    ]
    untouched = live_groups() - count
    with meshkit.Mesh.from_device_mesh(theirs) as mesh:
        back = mesh.device_mesh()
        same = [back.get_group(name) is theirs.get_group(name) for name in ("dp", "cp", "tp")]
        joint = mesh.device_mesh("(dp cp) tp").mesh.tolist()
        return told, untouched, same, joint, every_group(mesh), mesh.layout.sizes, back == theirs


def from_part_of_a_device_mesh() -> Any:
    """A DeviceMesh over ranks 1 to 4 of 6."""
    meshkit.init()
    from torch.distributed.device_mesh import DeviceMesh

    theirs = DeviceMesh("cpu", [[1, 2], [3, 4]], mesh_dim_names=("dp", "tp"))
    with meshkit.Mesh.from_device_mesh(theirs) as mesh:
        return mesh.inside, every_group(mesh) if mesh.inside else None
