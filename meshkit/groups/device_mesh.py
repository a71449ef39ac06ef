"""Make torch's DeviceMesh from existing groups, after a check of their members.

``DeviceMesh.from_group`` checks only the number of groups. Here each group must hold exactly the
ranks of the layout, in that order, before torch receives it. All DeviceMeshes of one mesh are
slices of one root over all its ranks: FSDP2 and tensor parallelism of one model need one root.
Several dims out of nesting order are a root of their own: torch refuses to slice such a slice.

Below torch 2.13, and for dims out of nesting order, slice one result instead of making two:
``device_mesh("(dp sp) tp")["tp"]``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..call import Call
from ..errors import SpecError
from ..launch.torch_meshes import can_slice, copy_root, slice_device_mesh
from ..launch.world import World
from ..layout.axes import Names, parse_axes
from ..layout.group_plan import Axes
from ..layout.layout import Layout
from ..layout.names import parse_axis_pattern
from ..synonyms import MESH_CALLS, axis_hint, closest_names
from ..text import Ints
from .registry import MeshGroups


def device_mesh(
    mesh: MeshGroups,
    group_of: Callable[..., dist.ProcessGroup],
    device_type: str,
    pattern: Names | None,
) -> DeviceMesh:
    """Return a slice of the root DeviceMesh of a mesh. Local; no group is created."""
    layout = mesh.plan.layout
    single = tuple((axis,) for axis in layout.axes)
    parts = single if pattern is None else parse_axis_pattern(pattern, layout.axes)
    groups = [group_of(*part) for part in parts]
    for part, group in zip(parts, groups, strict=True):
        check_members(part, group, layout.peers(mesh.rank, *part))
    dims = {"_".join(part): layout.strides(*part) for part in parts}
    strides = [stride for steps in dims.values() for _, stride in steps]
    nests = strides == sorted(strides, reverse=True)  # else torch slices no mesh again
    number = mesh.registry.number
    if mesh.root is None and (can_slice() or parts == single):
        whole = groups if parts == single else [group_of(*part) for part in single]
        mesh.root = _make_root(layout, mesh.rank, single, whole, device_type, number)
    if parts == single and mesh.root is not None:
        return mesh.root
    if mesh.root is None or not can_slice() or not (len(parts) == 1 or nests):
        return _make_root(layout, mesh.rank, parts, groups, device_type, number)
    return slice_device_mesh(mesh.root, dims, groups)


def _make_root(
    layout: Layout,
    rank: int,
    parts: tuple[Axes, ...],
    groups: Sequence[dist.ProcessGroup],
    device_type: str,
    number: int,
) -> DeviceMesh:
    """Return a DeviceMesh that is no slice of another one, over this rank's row of the grid."""
    names = tuple("_".join(part) for part in parts)
    if len(groups) == 1:
        root = DeviceMesh.from_group(groups[0], device_type, mesh_dim_names=names)
    else:
        row = layout.peers(rank, *(axis for part in parts for axis in part))
        grid = torch.from_numpy(row.reshape([layout.size(*part) for part in parts]))
        root = DeviceMesh.from_group([*groups], device_type, mesh=grid, mesh_dim_names=names)
    return copy_root(root, names=names, number=number) if number else root


def check_members(
    part: Axes,
    group: dist.ProcessGroup,
    row: Ints,
    *,
    fix: str = "use the groups of this mesh only.",
) -> None:
    """Raise if a group does not hold exactly these ranks in this order."""
    axes = " ".join(part) or "the whole mesh"
    try:
        members = dist.get_process_group_ranks(group)
    except (KeyError, ValueError) as error:
        raise SpecError(f"the group over {axes} has been destroyed.", fix=fix) from error
    if members != row.tolist():
        raise SpecError(
            f"the group over {axes} does not hold the ranks of the layout.",
            f"The group holds {members}; the layout has {row.tolist()}.",
            fix=fix,
        )


def find_attribute(owner: object, name: str) -> object:
    """Return the value of a name that DeviceMesh has, too; else raise with what may be meant."""
    mesh: Any = owner
    groups = vars(mesh).get("_groups")  # None while the mesh is made
    axes: tuple[str, ...] = () if groups is None else groups.plan.layout.axes

    def get_local_rank(mesh_dim: str | None = None) -> int:
        if mesh_dim is None and len(axes) > 1:
            ways = ", or ".join(str(Call("mesh.get_local_rank", (axis,))) for axis in axes)
            line = f"mesh.get_local_rank() names no axis of {' '.join(axes)}."
            raise SpecError(line, fix=f"{ways}.")
        group_rank: int = mesh.group_rank(axes[0] if mesh_dim is None else mesh_dim)
        return group_rank

    def get_rank(*mesh_dims: str) -> int:
        if mesh_dims:
            call, own = (Call(f"mesh.{way}", mesh_dims) for way in ("get_rank", "get_local_rank"))
            line = "mesh.get_rank() is the global rank, as in torch, and takes no axis."
            raise SpecError(line, fix=f"{own}.").quote(call)
        global_rank: int = mesh.rank
        return global_rank

    same: dict[str, Callable[[], object]] = {
        "shape": lambda: mesh.layout.shape,
        "ndim": lambda: len(axes),
        "mesh_dim_names": lambda: axes,
        "axis_names": lambda: axes,
        "device_type": lambda: mesh.device.type,
        "get_rank": lambda: get_rank,
        "get_group": lambda: lambda *dims, mesh_dim=(): mesh.group(*dims, *parse_axes(mesh_dim)),
        "get_local_rank": lambda: get_local_rank,
    }
    if name in same and groups is not None:
        return same[name]()
    text = f"a Mesh has no attribute {name!r}"
    if axes and not name.startswith("_") and (hint := _hint(name, axes, [*same, *dir(mesh)])):
        raise AttributeError(f"{text}; {hint}")  # without its name, as Python would guess another
    raise AttributeError(text, name=name, obj=mesh)


def _hint(name: str, axes: tuple[str, ...], names: Sequence[str]) -> str:
    """Return what an unknown attribute of a mesh may mean; "" if nothing is known."""
    if hint := axis_hint(name, axes):
        return hint
    if name in World.__dataclass_fields__:
        of_mesh = ", mesh.size() that of the mesh" if name == "world_size" else ""
        return f"meshkit.init().{name} is that of the job{of_mesh}"
    function = getattr(dist, name, None)
    if inspect.isfunction(function) and "group" in [*inspect.signature(function).parameters][1:]:
        return f"use torch.distributed.{name}(..., group=mesh.group({axes[0]!r}))"
    meant = [call for call, others in MESH_CALLS.items() if name in others.split()]
    public = [known for known in names if not known.startswith("_")]
    meant += [f"mesh.{n}" for n in public if n.startswith(name) and "_" not in n]  # coord
    closest = meant[:1] or [f"mesh.{known}" for known in closest_names(name, public, 0.75)]
    return f"did you mean {' or '.join(closest)}?" if closest else ""
