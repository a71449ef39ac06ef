"""Make torch's DeviceMesh from existing groups, after a check of their members.

``DeviceMesh.from_group`` checks only the number of groups. Here each group must hold exactly the
ranks of the layout, in that order, before torch receives it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ...core.arrays import Ints
from ...core.errors import SpecError
from ...core.grid.group_plan import Axes
from ...core.grid.layout import Layout
from ...core.grid.pattern import parse_axis_pattern

GroupOf = Callable[..., dist.ProcessGroup]


def device_mesh(
    layout: Layout, rank: int, group_of: GroupOf, device_type: str, pattern: str | None
) -> DeviceMesh:
    """Return a DeviceMesh over existing groups. Local; no group is created."""
    single = tuple((axis,) for axis in layout.axes)
    parts = single if pattern is None else parse_axis_pattern(pattern, layout.axes)
    names = tuple("_".join(part) for part in parts)
    groups = [group_of(*part) for part in parts]
    for part, group in zip(parts, groups, strict=True):
        check_members(part, group, layout.peers(rank, *part))
    if len(groups) == 1:
        return DeviceMesh.from_group(groups[0], device_type, mesh_dim_names=names)
    return DeviceMesh.from_group(
        groups,
        device_type,
        mesh=torch.from_numpy(sub_grid(layout, rank, parts)),
        mesh_dim_names=names,
    )


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
