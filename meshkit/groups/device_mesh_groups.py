"""Give later dims of a DeviceMesh their groups: those that exist, else new ones, after agreement.

Libraries cut and join the dims of a DeviceMesh by ``_flatten`` and ``_unflatten``, and torch makes
groups for each of these calls. The calls on a DeviceMesh of meshkit come here instead::

    root["dp_shard", "cp"]._flatten("dp_shard_cp")    members, backend, options, timeout
        exist in the mesh or in a view of it          the same group, whatever the name. Local
        do not exist                                  agree -> create -> confirm, as build_mesh
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..call import Call
from ..errors import MeshkitError, SpecError
from ..launch.creation import create_on_all
from ..launch.disagreement import describe_coordinate
from ..launch.job import Job
from ..launch.of_one_process import OfOneProcess
from ..launch.times import format_timeout
from ..launch.torch_aborts import default_timeout
from ..launch.torch_groups import (
    backend_of,
    register_fake_backend,
    timeout_of_options,
    waits_for_peers,
)
from ..launch.torch_meshes import MADE_BY, DimRequest, join_dims, root_of, serve_groups
from ..layout.axes import Names, check_axes_exist, parse_axes
from ..layout.layout import Layout
from ..layout.ranks import Strides, offsets
from ..text import Ints, article, format_sizes
from .backends import GroupBackend, backends_by_key
from .device_mesh import device_mesh
from .groups import complete_count, create_requested, destroy_groups
from .open_mesh import MeshProposal
from .registry import GroupKey, MeshGroups
from .requests import FoundGroups, GroupOptions, GroupRequest, match_groups

CONFLICT = "ranks disagree about more groups of a mesh; no process group was created."
FAILURE = "a rank could not create more groups of a mesh; all are closed again."


class Owner(OfOneProcess):
    """The mesh whose groups a root DeviceMesh has. It is not pickled with the DeviceMesh."""

    on_all_ranks = False  # whether ranks outside the mesh have the DeviceMesh too

    def __init__(self, mesh: object, proposal: MeshProposal, groups: MeshGroups) -> None:
        self.mesh: Any = mesh  # the Mesh, whose file imports this one
        self.proposal = proposal
        self.groups = groups

    def __reduce__(self) -> tuple[type[set[Any]], tuple[()]]:
        """Become an empty set, which ``torch.load`` accepts with ``weights_only=True``."""
        return set, ()


def make_device_mesh(
    owner: Owner, pattern: Names | None, more: Iterable[str], joint: Mapping[str, Names] | None
) -> DeviceMesh:
    """Return the groups of a mesh as a DeviceMesh. Local. See :meth:`meshkit.Mesh.device_mesh`."""
    pattern = " ".join([str(pattern), *more]) if more else pattern
    names = {} if joint is None else parse_joint(joint, owner.groups.plan.layout)
    if names and pattern is not None:
        fix = f"device_mesh(joint=...), and slices of it, such as [{next(iter(names))!r}]."
        raise SpecError("joint names belong to the whole DeviceMesh.", fix=fix)
    for axes in filter(None, names.values()):
        owner.groups.get(axes)  # raises before torch is asked, if it does not exist
    made = device_mesh(owner.groups, owner.mesh.group, owner.mesh.device.type, pattern)
    # slices need nothing of it, so a torch that meshkit does not know may lack it
    with suppress(MeshkitError) if joint is None else nullcontext():
        own(made, owner)
    add_joint(made, names, owner.groups)
    return made


def own(device_mesh: DeviceMesh, owner: Owner) -> None:
    """Let later dims of a DeviceMesh get their groups here. Local.

    Raises:
        MeshkitError: if this torch makes groups in a way that meshkit does not know.
    """
    vars(root_of(device_mesh)).setdefault(MADE_BY, owner)
    serve_groups(serve_torch)


def find_owner(device_mesh: object) -> Owner:
    """Return the owner of the groups of a DeviceMesh, or raise if meshkit did not make it."""
    if not isinstance(device_mesh, DeviceMesh):
        fix = "a DeviceMesh of meshkit.init_device_mesh or mesh.device_mesh."
        raise SpecError(f"the argument is {article(type(device_mesh).__name__)}.", fix=fix)
    owner = vars(root_of(device_mesh)).get(MADE_BY)
    if not isinstance(owner, Owner):
        line = "meshkit did not make the groups of this DeviceMesh."
        fix = "meshkit.Mesh.from_device_mesh(device_mesh) on every rank, which checks them."
        raise SpecError(line, fix=fix)
    return owner


def parse_joint(joint: object, layout: Layout) -> dict[str, tuple[str, ...]]:
    """Return each joint name with its axes, after a check of both."""
    if not hasattr(joint, "items"):
        fix = 'a dict from name to axes, for example joint={"dp_cp": "dp cp"}.'
        raise SpecError(f"joint is {article(type(joint).__name__)}.", fix=fix)
    parsed: dict[str, tuple[str, ...]] = {}
    for name, names in joint.items():
        axes = parse_axes(names)
        check_axes_exist(axes, layout.axes)
        in_order = tuple(axis for axis in layout.axes if axis in axes)
        present = tuple(axis for axis in axes if axis in layout.axes)
        if present != in_order:
            line = f"joint lists {' '.join(axes)} in another order than the mesh."
            raise SpecError(line, fix=f"joint={{{name!r}: {' '.join(in_order)!r}}}.")
        if not isinstance(name, str) or not name or name in layout.axes:
            line = f"joint has the name {name!r}, which "
            line += "is an axis of the mesh." if name in layout.axes else "is no name."
            raise SpecError(line, fix=f"another name, such as {'_'.join(axes)!r}.")
        parsed[name] = present
    return parsed


def add_joint(root: DeviceMesh, joint: dict[str, tuple[str, ...]], groups: MeshGroups) -> None:
    """Give a root DeviceMesh names for several axes together. Local; their groups exist."""
    names = dict(zip(groups.plan.layout.axes, root.mesh_dim_names or (), strict=False))
    for name, axes in joint.items():
        group = groups.find(*axes) if axes else groups.groups.by_key[()]
        try:
            join_dims(root, name, tuple(names[axis] for axis in axes), group)
        except ValueError as error:
            line = f"the DeviceMesh has another joint dim {name!r} already."
            raise SpecError(line, fix="another name.") from error


def serve_torch(
    owner: Owner, method: str, dims: list[DimRequest]
) -> list[dist.ProcessGroup | None]:
    """Return the group of each dim that torch requests of a DeviceMesh. See provide_groups."""
    sizes = {dim.name: len(dim.ranks) for dim in dims}
    return provide_groups(owner, Call(f"device_mesh.{method}", (format_sizes(sizes),)), dims)


def provide_groups(
    owner: Owner, call: Call, dims: list[DimRequest]
) -> list[dist.ProcessGroup | None]:
    """Return the group of each dim, None on a rank outside the mesh.

    Local if all groups exist; else collective over the world.
    """
    mesh, proposal = owner.groups, owner.proposal
    try:
        mesh.check_open()
        requests = [_request(mesh, proposal, dim) for dim in dims]
        with proposal.job.counts.lock:
            plan = mesh.plan
            found = match_groups(plan, requests, proposal.job, mesh.registry)
            _forget_external_of_other_backends(found, mesh)
            new = _create_agreed(found, owner, call, dims) if found.missing else {}
    except MeshkitError as error:
        error.quote(call)
        raise
    return [found.found.get(request.axes) or new.get(request.key) for request in requests]


def _request(mesh: MeshGroups, proposal: MeshProposal, dim: DimRequest) -> GroupRequest:
    """Return the request for the groups of one dim, for those of all ranks of the mesh."""
    layout = mesh.plan.layout
    positions = layout.rank_positions.find_all(np.array(dim.ranks, dtype=np.int64))
    steps = steps_of(positions)
    default, timeouts = proposal.options.backend or backend_of(), proposal.options.timeouts
    own, limit = GroupBackend(dim.backend, dim.options), timeouts.default
    if dim.backend in (None, default) and dim.options is None:  # the axes may have their own
        limit = timeouts.by_members(mesh.plan).get(steps, limit)
        by_key = backends_by_key(mesh.plan, proposal.options.backends)
        own = {mesh.plan.layout.strides(k): v for k, v in by_key.items() if steps}.get(steps, own)
    limit = timeout_of_options(own.options) or limit or default_timeout(own.name or default)
    members = members_of(layout, steps)
    return GroupRequest.of((dim.name,), dim.name, members, limit, steps, own, default)


def steps_of(positions: Ints) -> Strides:
    """Return the steps of the members of a group from their positions, the outermost first.

    Example:
        >>> steps_of(np.array([1, 3, 5, 7])), steps_of(np.array([0, 1, 4, 5]))
        (((4, 2),), ((2, 4), (2, 1)))
    """
    steps: list[tuple[int, int]] = []
    distances = positions - positions[0]
    while len(distances) > 1:
        stride = int(distances[1])
        regular = distances == stride * np.arange(len(distances))
        size = len(distances) if regular.all() else int(np.argmin(regular))
        steps.insert(0, (size, stride))
        distances = distances[::size]
    return tuple(steps)


def members_of(layout: Layout, steps: Strides) -> Ints:
    """Return the ranks of all groups with these steps: int64 (num_groups, group_size)."""
    positions = np.arange(layout.num_ranks, dtype=np.int64)
    is_first = np.ones(layout.num_ranks, dtype=bool)
    for size, stride in steps:
        is_first &= positions // stride % size == 0
    return layout.rank_positions.take(np.add.outer(positions[is_first], offsets(steps)))


def _forget_external_of_other_backends(found: FoundGroups, mesh: MeshGroups) -> None:
    """Request a group anew if the user's one has another backend, for example "fake"."""
    for request in found.requests:
        group = found.found.get(request.axes)
        is_external = mesh.registry.find(request.key)[0] == "external"
        if is_external and request.backend is not None and group is not None:
            if dist.get_backend(group) == request.backend:
                continue
            del found.found[request.axes]
            found.missing.append(request)


def _create_agreed(
    found: FoundGroups, owner: Owner, call: Call, dims: list[DimRequest]
) -> dict[GroupKey, dist.ProcessGroup | None]:
    """Create the missing groups once all ranks have requested the same. Collective."""
    mesh, job, layout = owner.groups, owner.proposal.job, owner.groups.plan.layout
    if layout.num_ranks < job.world.world_size and not owner.on_all_ranks:
        raise SpecError(
            f"there is no group over {' '.join(dim.name for dim in dims)}, and ranks outside the "
            "mesh cannot help to create it.",
            f"The mesh has {layout.num_ranks} of {job.world.world_size} ranks.",
            fix=f"{mesh.extended_by.name}(..., groups=[...]), which all ranks call.",
        )
    facts = {
        "dims": format_sizes({dim.name: len(dim.ranks) for dim in dims}),
        "members": "; ".join(_describe_steps(request.key[0]) for request in found.requests),
    }
    return create_agreed(found, mesh, job, owner.proposal.options, call, facts)


def create_agreed(
    found: FoundGroups,
    mesh: MeshGroups,
    job: Job,
    options: GroupOptions,
    call: Call,
    facts: Mapping[str, str],
) -> dict[GroupKey, dist.ProcessGroup | None]:
    """Create more groups of an open mesh once all ranks have requested the same. Collective.

    Returns:
        This rank's group of each missing request, None where it is no member.
    """
    layout = mesh.plan.layout
    describe = partial(describe_coordinate, layout)
    unique = {request.key: request for request in found.missing}
    missing = found._replace(missing=[*unique.values()])
    used = {request.key: (request.axes,) for request in missing.missing}
    facts = {
        **facts,
        "backend": ", ".join(request.key[1] for request in found.requests),
        "timeout": ", ".join(format_timeout(request.timeout) for request in found.requests),
        "of": f"mesh {mesh.round_id}, view {mesh.view_id}: {layout.sizes_text}",
        "history": f"{dist.get_pg_count()} groups",
    }
    job.agree(call.name, facts, CONFLICT, describe=describe)
    if any(request.backend == "fake" for request in missing.missing):
        register_fake_backend()
    before = dist.get_pg_count()
    try:
        new: dict[GroupKey, dist.ProcessGroup | None] = create_on_all(
            job.agreement(call.name, FAILURE, describe=describe),
            job.arrival_timeout,
            partial(create_requested, missing.missing, job, options),
            lambda groups: destroy_groups(group for group in groups.values() if group is not None),
            connects=any(waits_for_peers(request.key[1]) for request in missing.missing),
        )
    except BaseException:
        complete_count(missing, job, options, before)
        raise
    mesh.registry.extend(mesh.view_id, new, used)
    return new


def _describe_steps(steps: Strides) -> str:
    """Return the steps of a group as text: "4 steps of 2"."""
    return ", ".join(f"{size} steps of {stride}" for size, stride in steps) or "one rank"
