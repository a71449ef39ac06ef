"""Names that people know from torch's DeviceMesh and from other meshes, on a :class:`meshkit.Mesh`.

A name with one meaning here works. Any other name raises an AttributeError with its counterpart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core.axes import parse_axes
from ..core.call import Call
from ..core.errors import SpecError

COUNTERPARTS = {
    "mesh": "mesh.layout.grid, the ranks as a numpy array",
    "axes": "mesh.layout.axes",
    "sizes": "mesh.layout.sizes",
    "ranks": "mesh.layout.ranks",
    "grid": "mesh.layout.grid",
    "num_ranks": "mesh.size(), the ranks of the mesh",
    "world_size": "mesh.size(), the ranks of the mesh, or dist.get_world_size(), those of the job",
    "get_coordinate": "mesh.coordinate, a dict from axis to index",
    "coordinates": "mesh.coordinate, a dict from axis to index",
    "local_rank": "mesh.group_rank(axis), or meshkit.init().local_rank, the index on this node",
    "global_rank": "mesh.rank",
    "get_all_groups": "mesh.group(axis), one axis at a time",
    "groups": "mesh.group(axis), and print(mesh.groups_report())",
    "get_process_group": "mesh.group(axis)",
    "process_group": "mesh.group(), the group of the whole mesh",
    "flatten": "mesh.group('dp sp'), or mesh.device_mesh('(dp sp)')",
    "_flatten": "mesh.group('dp sp'), or mesh.device_mesh('(dp sp)')",
    "from_group": "meshkit.Mesh.from_groups(layout, groups)",
    "to_device_mesh": "mesh.device_mesh()",
    "_get_root_mesh": "mesh.device_mesh()",
    "devices": "mesh.device, the device of this rank, or mesh.layout.grid, all ranks",
    "global_batch": "mesh.batch(global_batch=..., micro_batch=...)",
    "sub_mesh": "mesh.device_mesh('dp'), or mesh.view(...)",
}


def find_attribute(owner: object, name: str) -> object:
    """Return the value of a name that DeviceMesh has, too; else raise with its counterpart."""
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

    same: dict[str, Callable[[], object]] = {
        "shape": lambda: mesh.layout.shape,
        "ndim": lambda: len(axes),
        "mesh_dim_names": lambda: axes,
        "axis_names": lambda: axes,
        "device_type": lambda: mesh.device.type,
        "get_rank": lambda: lambda: mesh.rank,
        "get_group": lambda: lambda *dims, mesh_dim=(): mesh.group(*dims, *parse_axes(mesh_dim)),
        "get_local_rank": lambda: get_local_rank,
    }
    if name in same and groups is not None:
        return same[name]()
    axis, _, what = name.partition("_")
    calls = {"size": "size", "rank": "group_rank", "group": "group", "mesh": "device_mesh"}
    calls = {what: calls[what]} if what in calls else calls
    of_axis = [f"mesh.{call}({axis!r})" for call in calls.values()] if axis in axes else []
    counterpart = COUNTERPARTS.get(name) or ", ".join(of_axis)
    hint = f"; use {counterpart}" if counterpart else ""
    raise AttributeError(f"a Mesh has no attribute {name!r}{hint}.", name=name, obj=mesh)
