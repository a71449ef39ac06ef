"""Make a DeviceMesh by the arguments of torch's ``init_device_mesh``, over groups of meshkit.

A library that calls ``init_device_mesh`` runs on meshkit's groups by one changed import::

    from meshkit import init_device_mesh
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, KeysView, Mapping, Sequence, ValuesView
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..call import Call, parse_integer, quotes_call
from ..errors import DeviceMeshError, SpecError
from ..groups.device_mesh import device_mesh
from ..groups.device_mesh_groups import Owner, add_joint, own, parse_joint, provide_groups
from ..groups.open_mesh import MeshProposal, announcing_failure, open_groups, with_backend
from ..groups.registry import GroupRegistry
from ..groups.requests import GroupOptions, GroupTimeouts, check_orders
from ..launch.job import Job, current_job
from ..launch.join import join, world_to_join
from ..launch.torch_groups import describe_options
from ..launch.torch_meshes import DimRequest, copy_root, device_mesh_outside
from ..launch.world import World
from ..layout.axes import Names, axis_role, name_fault, parse_axes
from ..layout.group_plan import Axes, GroupPlan, plan_groups
from ..layout.layout import Layout
from ..recover.admission import open_mesh_of_job
from ..text import count_noun
from .mesh import Mesh

Override = Mapping[int | str, object]  # dim to backend, to its options, or to both in a tuple
Overrides = dict[str, tuple[str | None, object]]  # axis to its backend and options
ORDERED = (Sequence, KeysView, ValuesView)  # torch takes views of a dict, too; a set has no order


class RootRequest(NamedTuple):
    """The DeviceMesh that this rank asks for: computed locally."""

    plan: GroupPlan
    names: tuple[str, ...] | None  # of the dims
    joint: dict[str, Axes]  # a name to the axes that it joins
    overrides: Overrides

    @property
    def facts(self) -> dict[str, str]:
        """The facts that must be equal on all ranks beside the plan."""
        joined = (f"{name} = {' '.join(axes)}" for name, axes in self.joint.items())
        overrides = (
            f"{axis} = {backend or ''} {describe_options(options)}".strip()
            for axis, (backend, options) in self.overrides.items()
        )
        named = "named" if self.names == self.plan.layout.axes else repr(self.names)
        dims = "without names" if self.names is None else named
        return {"dims": dims, "joint": ", ".join(joined), "override": ", ".join(overrides)}


@quotes_call("init_device_mesh")
def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Override | None = None,
    joint: Mapping[str, Names] | None = None,
) -> DeviceMesh:
    """Return a DeviceMesh, as torch's ``init_device_mesh`` does, over groups of meshkit.

    Collective over the world: all ranks compare the request before a group is created. If there is
    no default group, :func:`meshkit.init` creates it. The groups of the dims and of ``joint`` are
    made at once. Equal groups are one group, also those of an earlier call and of a mesh that
    ``build_mesh`` has made. Group ranks are coordinates, and timeouts are those of the job.
    ``get_group`` gives a group the ``group_desc`` of the dim that is asked: ``"mesh_dp"``.

    A shape of fewer ranks takes the first ones. The others call this function too, and get a
    DeviceMesh without a coordinate and without groups. A mesh of some ranks has groups of its own.

    ``_flatten``, ``_unflatten`` and slices of the result make no group that exists. All ranks of
    the job compare a request for another group, as here. :meth:`meshkit.Mesh.of` returns the Mesh,
    with its guard, samplers and recovery.

    Args:
        device_type: ``"cpu"``, ``"cuda"`` or another type without an index: that of the job, or
            ``"cpu"`` for groups over gloo beside it.
        mesh_shape: the size of each dim, the outermost first. Their product is the number of ranks
            in the mesh, at most the world size.
        mesh_dim_names: the name of each dim, any text. A name that no axis can have is an axis of
            the Mesh under another name: ``"TP-1"`` is ``TP_1``, and ``"0"`` is ``dim_0``.
        backend_override: a dim, by name or index, to a backend, to options of it, or to a tuple of
            both. Such a dim has groups of its own. ``"fake"`` groups communicate with nobody.
        joint: a name to the dims that it joins, in the order of the mesh:
            ``{"dp_cp": "dp_replicate dp_shard cp"}``. Absent standard axes have size 1.

    Raises:
        DeviceMeshError: if the shape, the names, the device type or an override is invalid, or the
            mesh is larger than the world. It is a SpecError and a RuntimeError, as torch's.
        SpecError: if ``joint`` is invalid.
        DisagreementError: if ranks request different meshes. Every rank raises it.
        RankTimeoutError: if ranks did not arrive in time.
        UnknownAxisError: if ``joint`` names a dim that the mesh does not have.
        LaunchError: if this process cannot join the job.

    Cost: as :func:`build_mesh`; 8 store operations per rank more with ``backend_override``.

    Example:
        ``init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"), joint={"all": "dp tp"})``
    """
    call = Call("init_device_mesh", (device_type, mesh_shape), {"mesh_dim_names": mesh_dim_names})
    job, world = current_job(), world_to_join()
    with announcing_failure(world, call):
        _check_device_type(device_type, job)
        request = _parse_request(mesh_shape, mesh_dim_names, joint, backend_override, world)
    job = job or join(world, None, device_type)
    twin = job.world.device is not None and job.world.device.type != device_type == "cpu"
    backend = "gloo" if twin and job.world.backend != "fake" else None
    facts = {**request.facts, "device": device_type}
    options = GroupOptions(backend, GroupTimeouts(job.timeout), facts=facts)
    job = job if backend is None else with_backend(job, backend)
    shared = cast("GroupRegistry | None", job.counts.shared)
    is_whole = request.plan.layout.num_ranks == job.world.world_size
    can_share = is_whole and shared is not None and shared.open_views
    registry = cast(GroupRegistry, shared) if can_share else GroupRegistry(call)
    proposal = MeshProposal(_without_overrides(request), job, options, registry, call)
    if job.arrival is not None:
        mesh = Mesh(*open_mesh_of_job(proposal, job.arrival))
    else:
        mesh = Mesh(proposal, open_groups(proposal))
    return _make_root(mesh, proposal, device_type, request)


def _parse_request(
    shape: object, names: object, joint: object, override: object, world: World
) -> RootRequest:
    """Return what the arguments ask for. Local."""
    sizes = [parse_integer(size) for size in shape] if isinstance(shape, ORDERED) else []
    if not sizes or isinstance(shape, str) or not all(size and size > 0 for size in sizes):
        line = f"mesh_shape is {shape!r}."
        raise DeviceMeshError(line, fix=f"the size of each dim, for example ({world.world_size},).")
    if names is None and joint is not None:
        line = "joint= needs the names of the dims."
        raise SpecError(line, fix="mesh_dim_names=..., one name for each dim.")
    dims = _check_dim_names(names, len(sizes)) if names is not None else None
    axis_of = _axes_of_dims(range(len(sizes)) if dims is None else dims)
    by_axis = dict(zip(axis_of.values(), cast("list[int]", sizes), strict=True))
    if hasattr(joint, "items"):  # else the check below refuses it
        joint = {n: [axis_of.get(a, a) for a in parse_axes(axes)] for n, axes in joint.items()}
    joined = {} if joint is None else parse_joint(joint, Layout.of(by_axis))
    plan = _plan(by_axis, [axes for axes in joined.values() if len(axes) > 1], world)
    return RootRequest(plan, dims, joined, _parse_overrides(override, axis_of))


def _check_dim_names(names: object, num_dims: int) -> tuple[str, ...]:
    """Return the names of the dims after a check of their number."""
    dims = (*names,) if isinstance(names, ORDERED) and not isinstance(names, str) else ()
    if len(dims) != num_dims or len({*dims}) != len(dims):
        reason = "Each mesh_dim_name must be unique."
        if len(dims) != num_dims:
            reason = "mesh_shape and mesh_dim_names should have same length!"
        line = f"mesh_dim_names is {names!r}, and mesh_shape has {num_dims} sizes."
        fix = "one name for each dim, each a different one."
        raise DeviceMeshError(line, f"torch says: {reason}", fix=fix)
    return dims


def _axes_of_dims(dims: Iterable[object]) -> dict[object, str]:
    """Return the axis of each dim: its own name, or one that is like it.

    Example:
        >>> _axes_of_dims(["dp", "TP-1", "TP_1", "class", "0"])
        {'dp': 'dp', 'TP-1': 'TP_1_2', 'TP_1': 'TP_1', 'class': 'dim_class', '0': 'dim_0'}
    """
    axis_of = {dim: "" if name_fault(dim) else str(dim) for dim in dims}
    for dim, axis in axis_of.items():
        if not axis:
            word = re.sub("[^0-9A-Za-z]+", "_", str(dim)).strip("_")
            name = like = f"dim_{word}".strip("_") if name_fault(word) else word
            number = 2
            while name in axis_of.values():
                name, number = f"{like}_{number}", number + 1
            axis_of[dim] = name
    return axis_of


def _plan(by_axis: dict[str, int], requested: list[Axes], world: World) -> GroupPlan:
    """Return the groups of the dims and of the axes that are joined. Pure."""
    order, num_ranks = [*by_axis], math.prod(by_axis.values())
    ranks = range(num_ranks) if num_ranks < world.world_size else None
    facts = world.world_size, world.size_evidence
    try:
        plan = plan_groups(by_axis, *facts, order=order, groups=requested, ranks=ranks)
        single = [(axis,) for axis in plan.layout.axes]
        asked = dict.fromkeys((plan.layout.axes, *single, *plan.requested, ()))
        plan = replace(plan, axis_sets=tuple(asked))
        check_orders(plan)
    except SpecError as error:
        evidence, fix = error.evidence, error.fix
        if error.num_ranks is not None:
            size = world.world_size
            fix = _fitting_shape(by_axis, size, error.num_ranks)
            evidence += (f"torch says: Mesh should not be bigger than default world size {size}.",)
        known = {"sizes": error.sizes, "world_size": error.world_size, "num_ranks": error.num_ranks}
        raise DeviceMeshError(error.summary, *evidence, fix=fix, **known) from None
    return plan


def _fitting_shape(sizes: Mapping[str, int], num_ranks: int, product: int) -> str:
    """Return a fix of a shape with another product: one other size, if possible that of data."""
    for axis in sorted(sizes, key=lambda axis: axis_role(axis) != "data"):
        size, rest = divmod(num_ranks * sizes[axis], product)
        if rest == 0:
            shape = tuple({**sizes, axis: size}.values())
            return f"mesh_shape={shape!r}, or start {count_noun(product, 'rank')}."
    return f"start {count_noun(product, 'rank')}."


def _without_overrides(request: RootRequest) -> GroupPlan:
    """Return a plan without the single axes that have groups of their own."""
    plan = request.plan
    special = {(axis,) for axis in request.overrides} - {plan.layout.axes}
    return replace(plan, axis_sets=tuple(axes for axes in plan.axis_sets if axes not in special))


def _parse_overrides(override: object, axis_of: Mapping[object, str]) -> Overrides:
    """Return the axis of each dim of a ``backend_override`` with its backend and options."""
    parsed: Overrides = {}
    dims = [*axis_of]
    fix = f"a dict from dim to backend, for example {{{dims[0]!r}: 'gloo'}}."
    if override is not None and not isinstance(override, Mapping):
        raise DeviceMeshError(f"backend_override is {override!r}.", fix=fix)
    for key, value in (override or {}).items():
        number = parse_integer(key)
        dim = dims[number] if number is not None and 0 <= number < len(dims) else key
        axis = axis_of.get(dim)
        if axis is None or axis in parsed:
            again = "again " * (axis in parsed)
            reason = f"Found invalid keys in backend_override: got {[key]!r}."
            if again:
                place = f"dim index {dims.index(dim)} and name {dim}"
                reason = f"Found redundant {place} in backend_override."
            line = f"backend_override names {key!r} {again}as a dim."
            raise DeviceMeshError(line, f"torch says: {reason}", fix=fix)
        if isinstance(value, str):
            parsed[axis] = value, None
        elif isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
            parsed[axis] = value
        else:
            parsed[axis] = None, value
    return parsed


def _check_device_type(device_type: object, job: Job | None) -> None:
    """Raise if a device type is neither that of the job nor ``"cpu"``. Local."""
    if not isinstance(device_type, str) or not device_type.isalpha():
        line = f"device_type is {device_type!r}."
        reason = "torch says: Device type with index is not supported."
        fix = 'the type of a device without its index, such as "cuda".'
        raise DeviceMeshError(line, reason, fix=fix)
    if job is None or job.world.backend == "fake" or device_type == "cpu":
        return
    kind = "cpu" if job.world.device is None else job.world.device.type
    if device_type != kind:
        line = f"device_type is {device_type!r}, and the device of this job is {kind!r}."
        raise DeviceMeshError(line, fix=f"init_device_mesh({kind!r}, ...).")


def _make_root(
    mesh: Mesh, proposal: MeshProposal, device_type: str, request: RootRequest
) -> DeviceMesh:
    """Return the DeviceMesh of a new mesh. Collective over the world if dims have overrides."""
    groups = mesh._groups  # noqa: SLF001  # of the mesh that this file has made
    layout, overrides = groups.plan.layout, request.overrides
    owner = Owner(mesh, proposal, groups)
    owner.on_all_ranks = True
    member = mesh.rank if mesh.inside else 0
    dims = [DimRequest(a, layout.peers(member, a).tolist(), *v) for a, v in overrides.items()]
    found = zip(overrides, provide_groups(owner, proposal.built_by, dims), strict=True)
    if not mesh.inside:
        grid = torch.from_numpy(layout.grid)
        root = device_mesh_outside(device_type, grid, request.names)
        own(root, owner)
        return root
    special = {(axis,): cast(dist.ProcessGroup, group) for axis, group in found}
    for axes, group in special.items():
        key = groups.plan.group_key(axes)
        if key and dist.get_backend(group) != "fake":  # then mesh.group(axis) is the same one
            groups.plan = replace(groups.plan, axis_sets=(*groups.plan.axis_sets, axes))
            cast("dict[Axes, Any]", groups.groups.by_key).setdefault(key, group)

    def group_of(*axes: str) -> dist.ProcessGroup:
        return special[axes] if axes in special else mesh.group(*axes)

    root = device_mesh(groups, group_of, device_type, None)
    if request.names != layout.axes:
        root = groups.root = copy_root(root, names=request.names, number=0)
    own(root, owner)
    add_joint(root, request.joint, groups)
    return root
