"""Make torch's DeviceMesh from existing groups, after a check of their members.

``DeviceMesh.from_group`` checks only the number of groups. Here each group must hold exactly the
ranks of the layout, in that order, before torch receives it. All DeviceMeshes of one mesh are
slices of one root over all its ranks: FSDP2 and tensor parallelism of one model need one root.
Several dims out of nesting order are a root of their own: torch refuses to slice such a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..core.axes import Names
from ..core.errors import SpecError
from ..core.group_plan import Axes
from ..core.layout import Layout, parse_axis_pattern
from ..core.ranks import Strides
from ..core.text import Ints
from ..launch.torch_internals import can_slice, slice_device_mesh
from .group_registry import MeshGroups

GroupOf = Callable[..., dist.ProcessGroup]


def device_mesh(
    mesh: MeshGroups, group_of: GroupOf, device_type: str, pattern: Names | None
) -> DeviceMesh:
    """Return a slice of the root DeviceMesh of a mesh. Local; no group is created."""
    layout = mesh.plan.layout
    single = tuple((axis,) for axis in layout.axes)
    parts = single if pattern is None else parse_axis_pattern(pattern, layout.axes)
    groups = [group_of(*part) for part in parts]
    for part, group in zip(parts, groups, strict=True):
        check_members(part, group, layout.peers(mesh.rank, *part))
    dims = {"_".join(part): layout.strides(*part) for part in parts}
    if not can_slice() or not (len(parts) == 1 or _is_descending(dims.values())):
        return _make_root(layout, mesh.rank, parts, groups, device_type)
    if mesh.root is None:
        whole = groups if parts == single else [group_of(*part) for part in single]
        mesh.root = _make_root(layout, mesh.rank, single, whole, device_type)
    if parts == single:
        return mesh.root
    return slice_device_mesh(mesh.root, dims, groups)


def _is_descending(dims: Iterable[Strides]) -> bool:
    """Return whether the dims nest in their order, without which torch slices no mesh again."""
    strides = [stride for steps in dims for _, stride in steps]
    return strides == sorted(strides, reverse=True)


def _make_root(
    layout: Layout,
    rank: int,
    parts: tuple[Axes, ...],
    groups: Sequence[dist.ProcessGroup],
    device_type: str,
) -> DeviceMesh:
    """Return a DeviceMesh that is no slice of another one."""
    names = tuple("_".join(part) for part in parts)
    if len(groups) == 1:
        return DeviceMesh.from_group(groups[0], device_type, mesh_dim_names=names)
    grid = torch.from_numpy(sub_grid(layout, rank, parts))
    return DeviceMesh.from_group([*groups], device_type, mesh=grid, mesh_dim_names=names)


def sub_grid(layout: Layout, rank: int, parts: tuple[Axes, ...]) -> Ints:
    """Return the ranks with this rank's coordinate on all other axes, one array axis per part."""
    flat = tuple(axis for part in parts for axis in part)
    return layout.peers(rank, *flat).reshape([layout.size(*part) for part in parts])


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
