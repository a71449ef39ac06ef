"""Names that people know from torch's DeviceMesh and from other meshes, on a :class:`meshkit.Mesh`.

A name with one meaning here works. Any other name raises an AttributeError with its counterpart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..core.axes import parse_axes
from ..core.call import Call
from ..core.errors import SpecError

if TYPE_CHECKING:
    from .group_registry import MeshGroups

SAME: dict[str, Callable[[Any], object]] = {  # DeviceMesh's names, as functions of a mesh
    "shape": lambda mesh: mesh.layout.shape,
    "ndim": lambda mesh: len(mesh.layout.axes),
    "mesh_dim_names": lambda mesh: mesh.layout.axes,
    "axis_names": lambda mesh: mesh.layout.axes,
    "device_type": lambda mesh: mesh.device.type,
    "get_rank": lambda mesh: lambda: mesh.rank,
    "get_group": lambda mesh: lambda *axes, mesh_dim=(): mesh.group(*axes, *parse_axes(mesh_dim)),
    "get_local_rank": lambda mesh: (
        lambda mesh_dim=None: mesh.group_rank(
            _only_axis(mesh.layout.axes) if mesh_dim is None else mesh_dim
        )
    ),
}
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
    "from_group": "meshkit.Mesh.from_groups(layout, groups)",
    "to_device_mesh": "mesh.device_mesh()",
    "devices": "mesh.device, the device of this rank, or mesh.layout.grid, all ranks",
    "global_batch": "mesh.batch(global_batch=..., micro_batch=...)",
    "sub_mesh": "mesh.device_mesh('dp'), or mesh.view(...)",
}
SHORT = {"_flatten": "flatten", "_get_root_mesh": "to_device_mesh"}


def _only_axis(axes: tuple[str, ...]) -> str:
    """Return the axis of a mesh that has one axis."""
    if len(axes) > 1:
        ways = [str(Call("mesh.get_local_rank", (axis,))) for axis in axes]
        line = f"mesh.get_local_rank() names no axis of {' '.join(axes)}."
        raise SpecError(line, fix=f"{', or '.join(ways)}.")
    return axes[0]


def find_attribute(mesh: object, name: str) -> object:
    """Return the value of a name that DeviceMesh has, too."""
    if name in SAME and "_groups" in vars(mesh):
        return SAME[name](mesh)
    counterpart = COUNTERPARTS.get(SHORT.get(name, name)) or _of_axis(vars(mesh), name)
    hint = f"; use {counterpart}" if counterpart else ""
    raise AttributeError(f"a Mesh has no attribute {name!r}{hint}.", name=name, obj=mesh)


def _of_axis(attributes: dict[str, Any], name: str) -> str:
    """Return the calls for an axis that is used as an attribute: ``mesh.dp``, ``mesh.dp_size``."""
    groups: MeshGroups | None = attributes.get("_groups")
    axis, _, what = name.partition("_")
    if groups is None or axis not in groups.plan.layout.axes:
        return ""
    calls = {
        "size": f"mesh.size({axis!r})",
        "rank": f"mesh.group_rank({axis!r})",
        "group": f"mesh.group({axis!r})",
        "mesh": f"mesh.device_mesh({axis!r})",
    }
    return calls.get(what, ", ".join(calls.values()))
