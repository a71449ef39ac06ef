"""DeviceMesh and DTensor in torch's private API: slices, dims made later, and the cache.

================================  =====  ====================================================
feature                           since  test
================================  =====  ====================================================
``_mesh_layout._FlatLayout``      2.13   tests/groups/test_device_mesh.py
groups of a later dim of a mesh   none   tests/groups/test_device_mesh.py
description of a group            none   tests/mesh/test_dims_as_torch.py
================================  =====  ====================================================
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from ..errors import MeshkitError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

MADE_BY = "meshkit"  # an attribute of a root DeviceMesh: the owner of its groups

# torch calls the method with these arguments, and newer versions with more of them
GROUPS_METHOD = "_init_process_groups"
GROUPS_PARAMETERS = ("layout", "rank_map", "mesh_dim_names", "backend_override")


class DimRequest(NamedTuple):
    """A dim of a DeviceMesh for which torch requests a group."""

    name: str
    ranks: list[int]  # of this rank's group, in order; on a rank outside, of the first group
    backend: str | None  # None is that of the default group
    options: object  # of the backend; None are its defaults


def can_slice() -> bool:
    """Return whether a dim of a sliced DeviceMesh can join several dims of the root.

    Local. Below torch 2.13 each DeviceMesh is its own root.
    """
    from torch.distributed.device_mesh import DeviceMesh

    with suppress(ImportError):
        from torch.distributed._mesh_layout import _FlatLayout  # noqa: F401

        return hasattr(DeviceMesh, "_concatenate")
    return False


def slice_device_mesh(
    root: DeviceMesh,
    dims: Mapping[str, tuple[tuple[int, int], ...]],
    groups: Sequence[dist.ProcessGroup],
) -> DeviceMesh:
    """Return a slice of a root over existing groups. torch's own slicing would make groups."""
    from torch.distributed._mesh_layout import _FlatLayout, _MeshLayout
    from torch.distributed.device_mesh import DeviceMesh

    flat = [
        _FlatLayout(tuple(size for size, _ in steps), tuple(stride for _, stride in steps))
        if steps
        else _FlatLayout(1, 0)
        for steps in dims.values()
    ]
    sliced = DeviceMesh(
        root.device_type,
        mesh_dim_names=tuple(dims),
        _init_backend=False,
        _layout=_MeshLayout(flat),
        _rank_map=root._rank_map,
        _root_mesh=root,
    )
    sliced._dim_group_names = [group.group_name for group in groups]
    root._pg_registry.update({group.group_name: group for group in groups})
    return sliced


def root_of(device_mesh: DeviceMesh) -> DeviceMesh:
    """Return the DeviceMesh of which another one is a slice, or a DeviceMesh itself. Local."""
    return device_mesh._get_root_mesh()


def serve_groups(
    serve: Callable[[Any, str, list[DimRequest]], list[dist.ProcessGroup | None]],
) -> None:
    """Let a function return the groups of each later dim of a DeviceMesh that meshkit has made.

    Local, and harmless to repeat. torch makes the groups of ``_flatten`` and ``_unflatten`` in one
    private method. It is replaced once. For any other DeviceMesh it does what it did.
    """
    from torch.distributed.device_mesh import DeviceMesh

    make_groups: Any = getattr(DeviceMesh, GROUPS_METHOD, None)
    if hasattr(make_groups, "serve"):
        return
    known = make_groups is not None and tuple(inspect.signature(make_groups).parameters)[:4]
    if known != GROUPS_PARAMETERS:
        raise MeshkitError(
            f"torch {torch.__version__} makes the groups of a DeviceMesh in another way than the "
            "versions that meshkit knows, 2.11 to 2.15.",
            f"DeviceMesh.{GROUPS_METHOD} does not take {', '.join(GROUPS_PARAMETERS)}.",
            fix="a torch from 2.11 to 2.15; or build_mesh, and a newer meshkit for this torch.",
        )

    def init_process_groups(
        self: DeviceMesh,
        layout: Any,  # noqa: ANN401
        rank_map: torch.Tensor,
        names: Sequence[str] | None,
        override: Sequence[tuple[str | None, object]],
        *more: object,
    ) -> list[str]:
        owner = vars(root_of(self)).get(MADE_BY)
        if not owner:  # also of an unpickled DeviceMesh, whose owner is an empty set
            names_of_groups: list[str] = make_groups(layout, rank_map, names, override, *more)
            return names_of_groups
        dims = [
            DimRequest(str(name), _own_row(layout, dim, rank_map), *override[dim])
            for dim, name in enumerate(names or map("dim_{}".format, range(len(layout))))
        ]
        flattens = not hasattr(self, "_dim_group_names")  # the DeviceMesh is just being made
        groups = serve(owner, "_flatten" if flattens else "_unflatten", dims)
        return [group.group_name for group in groups if group is not None]  # none outside

    init_process_groups.serve = serve  # type: ignore[attr-defined]
    setattr(DeviceMesh, GROUPS_METHOD, init_process_groups)
    _describe_groups(DeviceMesh)


def _describe_groups(device_mesh: type[DeviceMesh]) -> None:
    """Let ``get_group`` describe a group by the dim that is asked, as torch does. Local.

    Dims with equal groups share one here, which has one description at a time.
    """
    get_group = device_mesh.get_group

    @functools.wraps(get_group)
    def get_described(self: DeviceMesh, mesh_dim: int | str | None = None) -> dist.ProcessGroup:
        group: dist.ProcessGroup = get_group(self, mesh_dim)
        if torch.compiler.is_compiling() or group is dist.group.WORLD:
            return group
        if vars(root_of(self)).get(MADE_BY):
            names, dim = self.mesh_dim_names, 0 if mesh_dim is None else mesh_dim
            name = dim if isinstance(dim, str) else names[dim] if names else f"dim_{dim}"
            group._set_group_desc(f"mesh_{name}")
        return group

    device_mesh.get_group = get_described  # type: ignore[method-assign]


def _own_row(layout: Any, dim: int, rank_map: torch.Tensor) -> list[int]:  # noqa: ANN401
    """Return the ranks along a dim that include this rank, in order; outside, the first ones."""
    flat = layout[dim]
    nested = type(layout)([flat]) if can_slice() else flat.nest()
    rows = nested.remap_to_tensor(rank_map).reshape(-1, flat.numel())
    own = (rows == dist.get_rank()).any(dim=1)
    ranks: list[int] = (rows[own] if own.any() else rows)[0].tolist()
    return ranks


def device_mesh_outside(
    device_type: str, ranks: torch.Tensor, names: tuple[str, ...] | None
) -> DeviceMesh:
    """Return the DeviceMesh of a rank that is not in it: it has no coordinate and no group."""
    from torch.distributed.device_mesh import DeviceMesh

    root = DeviceMesh(device_type, ranks, mesh_dim_names=names, _init_backend=False)
    root._dim_group_names = []
    return root


def join_dims(root: DeviceMesh, name: str, axes: tuple[str, ...], group: dist.ProcessGroup) -> None:
    """Give a root a name for several of its dims together, over an existing group. Local."""
    if axes:
        root[axes]._flatten(name)
    elif name not in root._flatten_mapping:  # only axes that the root does not have
        root._flatten_mapping[name] = slice_device_mesh(root, {name: ()}, [group])


def copy_root(root: DeviceMesh, *, names: tuple[str, ...] | None, number: int) -> DeviceMesh:
    """Return a copy of a root DeviceMesh, with other names, that compares unequal to others.

    torch compares two DeviceMeshes by their ranks and not by their groups, also in the caches of
    DTensor. Two meshes over the same ranks with groups of their own would then be taken for one. A
    copy with a ``number`` therefore carries ranks behind the true ones, which no dim uses::

        number 0    [0, 1, 2, 3]
        number 2    [0, 1, 2, 3, -2, -2, -2, -2]

    Slices of the copy carry them too, so they also compare unequal.
    """
    from torch.distributed.device_mesh import DeviceMesh

    # a whole number of grids, since torch tiles the ranks by the layout
    others = torch.full((root._rank_map.numel() * bool(number),), -number, dtype=torch.int)
    remade = DeviceMesh(
        root.device_type,
        mesh_dim_names=names,
        _init_backend=False,
        _layout=root._layout,
        _rank_map=torch.cat([root._rank_map, others]),
    )
    remade._dim_group_names = root._dim_group_names
    remade._pg_registry = dict(root._pg_registry)
    return remade


def clear_dtensor_cache() -> None:
    """Clear DTensor's cache, which may hold destroyed groups. Local; a no-op without DTensor.

    The key of the cache ignores the groups, so equal DeviceMeshes share an entry. A later mesh over
    the same ranks would get the groups of an earlier one, and fail.
    """
    tensor = sys.modules.get("torch.distributed.tensor")
    if tensor is not None:  # torch's own function is in a module that takes long to import
        with suppress(AttributeError):
            tensor.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
            torch._C._clear_DTensor_sharding_propagator_cache()
