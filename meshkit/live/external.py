"""Check process groups and DeviceMeshes that the user created, and propose a mesh over them."""

from __future__ import annotations

from collections.abc import Mapping

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..core.axes import check_axes_exist, check_names, parse_axes
from ..core.call import Call, Verbatim
from ..core.errors import SpecError
from ..core.group_plan import GroupPlan, check_in_world
from ..core.layout import Layout
from ..core.ranks import Strides
from ..core.text import article
from ..launch.job import Job, require_job
from .device_mesh import check_members
from .group_registry import GroupRegistry
from .groups import GroupOptions, GroupTimeouts, check_orders
from .proposal import MeshProposal, announcing_failure

ExternalGroups = Mapping[str | tuple[str, ...], object]


def propose_from_groups(layout: object, groups: object) -> MeshProposal:
    """Return the proposal of a mesh over groups of the user. Local."""
    job = require_job()
    shown = dict.fromkeys(groups, Verbatim("...")) if isinstance(groups, Mapping) else groups
    call = Call("Mesh.from_groups", (layout, shown))
    with announcing_failure(job.world, call):
        return _propose(job, *_check_arguments(layout, groups), call)


def propose_from_device_mesh(device_mesh: object) -> MeshProposal:
    """Return the proposal of a mesh over a DeviceMesh of the user. Local."""
    job, call = require_job(), Call("Mesh.from_device_mesh", (Verbatim("device_mesh"),))
    with announcing_failure(job.world, call):
        return _propose(job, *_read_device_mesh(device_mesh), call)


def _propose(job: Job, layout: Layout, groups: ExternalGroups, call: Call) -> MeshProposal:
    size = job.world.world_size
    fix = f"a mesh of ranks from 0 to {size - 1}."
    check_in_world(max(layout.ranks), size, job.world.size_evidence, fix=fix)
    plan = GroupPlan.of(layout, [*groups])
    check_orders(plan)
    external = check_external_groups(layout, job.world.rank, groups)
    registry = GroupRegistry(call, external, ", ".join(map(describe_axes, plan.requested)))
    options = GroupOptions(None, GroupTimeouts(job.timeout), job.default_timeout)
    view = Call("mesh.view", kwargs=layout.sizes)  # no other call adds groups to such a mesh
    return MeshProposal(plan, job, options, registry, call, extended_by=view)


def _check_arguments(layout: object, groups: object) -> tuple[Layout, ExternalGroups]:
    """Return the arguments, if they are a layout and a mapping of axes."""
    if isinstance(layout, Layout) and isinstance(groups, Mapping):
        invalid = [key for key in groups if not _is_axes(key)]
        if not invalid:
            return layout, groups
        fix = 'for example {"dp": group, "dp tp": group}.'
        raise SpecError(f"{invalid[0]!r} does not name axes.", fix=fix)
    raise SpecError(
        f"the arguments are {article(type(layout).__name__)} and"
        f" {article(type(groups).__name__)}, not a Layout and a dict.",
        fix='for example Mesh.from_groups(Layout(dp=4, tp=2), {"dp": dp_group, "tp": tp_group}).',
    )


def _is_axes(key: object) -> bool:
    return isinstance(key, str) or (
        isinstance(key, tuple) and all(isinstance(axis, str) for axis in key)
    )


def _read_device_mesh(device_mesh: object) -> tuple[Layout, ExternalGroups]:
    """Return the grid of a DeviceMesh, and axes to this rank's group; None on a rank outside."""
    if not isinstance(device_mesh, DeviceMesh):
        fix = "a torch.distributed.device_mesh.DeviceMesh."
        raise SpecError(f"the argument is {article(type(device_mesh).__name__)}.", fix=fix)
    names = device_mesh.mesh_dim_names
    if names is None:
        shape = tuple(device_mesh.mesh.shape)
        example = tuple(f"axis{dim}" for dim in range(len(shape)))
        fix = f"init_device_mesh({device_mesh.device_type!r}, {shape}, mesh_dim_names={example})."
        raise SpecError("its dimensions have no names.", fix=f"for example {fix}")
    check_names(names)
    sizes = dict(zip(names, device_mesh.mesh.shape, strict=True))
    layout = Layout(ranks=device_mesh.mesh.flatten().tolist(), **sizes)
    if device_mesh.get_coordinate() is None:
        return layout, dict.fromkeys(names)
    try:
        return layout, {name: device_mesh.get_group(name) for name in names}
    except RuntimeError as error:
        line = "one of its groups has been destroyed."
        raise SpecError(line, str(error), fix="a DeviceMesh with all its groups.") from error


def check_external_groups(
    layout: Layout, rank: int, groups: ExternalGroups
) -> dict[Strides, dist.ProcessGroup | None]:
    """Return the user's groups by their members, after a check of each. Local."""
    by_members: dict[Strides, dist.ProcessGroup | None] = {}
    for names, value in groups.items():
        axes = parse_axes(names)
        check_axes_exist(axes, layout.axes)
        group = _check_group(layout, rank, axes, value) if rank in layout else None
        members = layout.strides(*axes)
        # groups of one rank have no members here; the first one serves all
        if by_members.setdefault(members, group) is not group and members:
            raise SpecError(f"two groups over {describe_axes(axes)}.", fix="pass one of them.")
    return by_members


def _check_group(
    layout: Layout, rank: int, axes: tuple[str, ...], group: object
) -> dist.ProcessGroup:
    members = layout.peers(rank, *axes)
    if not isinstance(group, dist.ProcessGroup):
        raise SpecError(
            f"the value for {describe_axes(axes)} is no process group of rank {rank}.",
            f"It is {group!r}; the layout has {members.tolist()}.",
            fix=f"the group over {members.tolist()}, which dist.new_group created on all ranks.",
        )
    check_members(axes, group, members, fix=f"the group over {members.tolist()}, in this order.")
    return group


def describe_axes(axes: tuple[str, ...]) -> str:
    """Return axes as text."""
    return " ".join(axes) or "the whole mesh"
