"""Process groups and DeviceMeshes of a user's own, checked, as what a mesh starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ...core.call import Call, Verbatim
from ...core.errors import MeshkitError, SpecError
from ...core.grid.axis_names import check_axes_exist, check_names, parse_axes
from ...core.grid.group_plan import GroupPlan
from ...core.grid.layout import Layout
from ...core.grid.strides import Strides
from ...core.text import article
from ...launch.default_group import Job, require_job
from ...launch.store.client import store_call
from ..groups.create import check_orders
from ..groups.device_mesh import check_members
from ..groups.options import GroupOptions, GroupTimeouts, check_in_world
from ..groups.registry import GroupRegistry
from .proposal import announce_refusal

Given = Mapping[str | tuple[str, ...], object]
MeshParts = tuple[GroupPlan, Job, GroupOptions, GroupRegistry]  # what a Mesh is made of


def call_of(layout: object, groups: object) -> Call:
    """The call of ``Mesh.from_groups``, to quote."""
    named = dict.fromkeys(groups, Verbatim("group")) if isinstance(groups, Mapping) else groups
    return Call("Mesh.from_groups", (layout, named))


def wrap_groups(read: Callable[[], tuple[Layout, Given]]) -> MeshParts:
    """What a mesh over groups of the user's own is made of. Local, but that others hear a refusal.

    Args:
        read: gives the grid, and axes to this rank's group.

    Raises:
        LaunchError: where no default group exists.
        SpecError, UnknownAxisError: as :func:`check_external_groups`, and for ranks outside the world.
    """
    job = require_job()
    try:
        layout, groups = read()
        fix = f"a mesh of ranks from 0 to {job.world.world_size - 1}."
        check_in_world(max(layout.ranks), job.world, fix=fix)
        plan = GroupPlan.of(layout, [*groups])  # what is lent is asked for
        check_orders(plan)
        mine = check_external_groups(layout, job.world.rank, groups)
        shared = GroupRegistry(lent=mine, lends=", ".join(map(_named, plan.requested)))
    except MeshkitError as error:
        announce_refusal(job.world, error)
        raise
    return plan, job, GroupOptions(None, GroupTimeouts(job.timeout), job.default), shared


def given_groups(layout: object, groups: object) -> tuple[Layout, Given]:
    """What the caller gave, if it is a layout and a mapping.

    Raises:
        SpecError: where it is something else.
    """
    if isinstance(layout, Layout) and isinstance(groups, Mapping):
        wrong = [key for key in groups if not _is_axes(key)]
        if not wrong:
            return layout, groups
        raise SpecError(f"{wrong[0]!r} is no axes.", fix='{"dp": group, "dp tp": group}, say.')
    raise SpecError(
        f"what is given is {article(type(layout).__name__)} and"
        f" {article(type(groups).__name__)}, not a Layout and a dict.",
        fix='Mesh.from_groups(Layout(dp=4, tp=2), {"dp": dp_group, "tp": tp_group}), say.',
    )


def _is_axes(key: object) -> bool:
    return isinstance(key, str) or (
        isinstance(key, tuple) and all(isinstance(axis, str) for axis in key)
    )


def of_device_mesh(device_mesh: object) -> tuple[Layout, Given]:
    """The grid of a DeviceMesh, and axes to this rank's group; None where this rank is outside.

    Raises:
        SpecError: for something else, and where its axes have no names.
    """
    if not isinstance(device_mesh, DeviceMesh):
        fix = "a torch.distributed.device_mesh.DeviceMesh."
        raise SpecError(f"{article(type(device_mesh).__name__)}.", fix=fix)
    names = device_mesh.mesh_dim_names
    if names is None:
        shape = tuple(device_mesh.mesh.shape)
        words = tuple(f"axis{dim}" for dim in range(len(shape)))
        fix = (
            f"init_device_mesh({device_mesh.device_type!r}, {shape}, mesh_dim_names={words}), say."
        )
        raise SpecError("its dimensions have no names.", fix=fix)
    check_names(names)
    sizes = dict(zip(names, device_mesh.mesh.shape, strict=True))
    layout = Layout(ranks=device_mesh.mesh.flatten().tolist(), **sizes)
    if device_mesh.get_coordinate() is None:
        return layout, dict.fromkeys(names)
    try:
        return layout, {name: device_mesh.get_group(name) for name in names}
    except RuntimeError as error:
        raise SpecError(
            "a group of it is gone.", str(error), fix="a DeviceMesh that is whole."
        ) from error


def check_external_groups(
    layout: Layout, rank: int, groups: Mapping[str | tuple[str, ...], object]
) -> dict[Strides, dist.ProcessGroup | None]:
    """A user's own groups by their members, each checked. Local.

    Args:
        layout: the grid.
        rank: this rank.
        groups: axes to this rank's group; on a rank outside the layout, to None or whatever torch
            gives to those who are no members.

    Raises:
        UnknownAxisError: for an axis the layout does not have.
        SpecError: for something that is no group, or a group that does not hold exactly the ranks
            that the layout says, in that order; for two groups of equal members.
    """
    found: dict[Strides, dist.ProcessGroup | None] = {}
    for names, group in groups.items():
        axes = parse_axes(names)
        check_axes_exist(axes, layout.axes)
        mine = _checked(layout, rank, axes, group) if rank in layout else None
        steps = layout.strides(*axes)
        if found.setdefault(steps, mine) is not mine and steps:  # of one rank, the first serves all
            fix = "hand in one of them."
            raise SpecError(f"two groups over {_named(axes)}.", fix=fix)
    return found


def _checked(layout: Layout, rank: int, axes: tuple[str, ...], group: object) -> dist.ProcessGroup:
    row = layout.peers(rank, *axes)
    if not isinstance(group, dist.ProcessGroup):
        raise SpecError(
            f"what is given for {_named(axes)} is no process group of rank {rank}.",
            f"It is {group!r}; the layout says {row.tolist()}.",
            fix=f"the group over {row.tolist()}, which dist.new_group made on all ranks.",
        )
    fix = f"the group over {row.tolist()}, in this order."
    check_members(axes, group, row, fix=fix)
    return group


def _named(axes: tuple[str, ...]) -> str:
    return " ".join(axes) or "the whole mesh"


def check_same(record: Job, number: int, shared: GroupRegistry) -> None:
    """Hear at the store that the ranks of each lent group lend the same one, by torch's name.

    Two groups may have equal members. One store operation a group.

    Args:
        record: what is known of the default group.
        number: that of the meeting in which the mesh was agreed upon.
        shared: what is lent.

    Raises:
        SpecError: on a rank that lends another group than the first that came.
        RankTimeoutError: where the store answers nothing.
    """
    if record.store is None:
        return
    keys = dist.PrefixStore(f"mesh/{number}/lent", record.store)
    for steps, group in shared.lent.items():
        if group is not None and group.size() > 1:
            members = dist.get_process_group_ranks(group)
            hear = partial(keys.compare_set, f"{steps}/{members[0]}", "", group.group_name)
            wait = record.arrival_timeout.total_seconds()
            name = store_call(record.world, wait, hear).decode()
            if name != group.group_name:
                raise SpecError(
                    f"ranks {members} lend different groups of these members.",
                    f"Rank {dist.get_rank()} lends {group.group_name!r}, another {name!r}.",
                    fix="hand in the same group on all of them.",
                )
