"""Make torch's DeviceMesh from existing groups, after a check of their members.

``DeviceMesh.from_group`` checks only the number of groups. Here each group must hold exactly the
ranks of the layout, in that order, before torch receives it. All DeviceMeshes of one mesh are
slices of one root over all its ranks: FSDP2 and tensor parallelism of one model need one root.
Several dims out of nesting order are a root of their own: torch refuses to slice such a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..core.axes import Names
from ..core.errors import SpecError
from ..core.group_plan import Axes
from ..core.layout import Layout, parse_axis_pattern
from ..core.text import Ints
from ..launch.torch_internals import can_slice, slice_device_mesh
from .group_registry import MeshGroups


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
    if not can_slice() or not (len(parts) == 1 or nests):
        return _make_root(layout, mesh.rank, parts, groups, device_type)
    if mesh.root is None:
        whole = groups if parts == single else [group_of(*part) for part in single]
        mesh.root = _make_root(layout, mesh.rank, single, whole, device_type)
    if parts == single:
        return mesh.root
    return slice_device_mesh(mesh.root, dims, groups)


def _make_root(
    layout: Layout,
    rank: int,
    parts: tuple[Axes, ...],
    groups: Sequence[dist.ProcessGroup],
    device_type: str,
) -> DeviceMesh:
    """Return a DeviceMesh that is no slice of another one, over this rank's row of the grid."""
    names = tuple("_".join(part) for part in parts)
    if len(groups) == 1:
        return DeviceMesh.from_group(groups[0], device_type, mesh_dim_names=names)
    row = layout.peers(rank, *(axis for part in parts for axis in part))
    grid = torch.from_numpy(row.reshape([layout.size(*part) for part in parts]))
    return DeviceMesh.from_group([*groups], device_type, mesh=grid, mesh_dim_names=names)


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
