"""Gather and compare digests of the parameters of all ranks. Received bytes are never unpickled."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...core.data.parameter_check import (
    HEAD_BYTES,
    EqualAxes,
    ModelDigest,
    ParameterDigest,
    details_length,
    heads_conflict,
    parameter_conflict,
)
from ...core.grid.layout import Layout
from ...core.text import format_sizes
from ..group_registry import MeshGroups
from ..groups import gather_bytes
from .fingerprint import fingerprint

FSDP1 = "FullyShardedDataParallel"


def compare_parameters(
    mesh: MeshGroups, model: nn.Module, axes: str | tuple[str, ...] | None, device: torch.device
) -> None:
    """Compare the parameters of all ranks. See :meth:`meshkit.Mesh.check_parameters`."""
    layout, group = mesh.plan.layout, mesh.collective_group(())
    equal = EqualAxes.of(layout.sizes, axes)
    digest = digest_model(model, layout, mesh.rank, equal)
    heads = gather_bytes(digest.head(), HEAD_BYTES, group, device)
    if not heads_conflict(heads):
        return
    sizes = [details_length(head) for head in heads]
    rows = gather_bytes(digest.packed(), max(sizes), group, device)
    packed = [row[:size] for row, size in zip(rows, sizes, strict=True)]
    ranks = [int(rank) for rank in layout.grid.flat]  # in the order of the group
    models = dict(zip(ranks, map(ModelDigest.unpacked, packed), strict=True))
    if error := parameter_conflict(layout, equal, models):
        raise error


def digest_model(model: nn.Module, layout: Layout, rank: int, axes: EqualAxes) -> ModelDigest:
    """Return the digests of a model's parameters; with a fault as text if one is unreadable."""
    name = "the model"
    try:
        if any(type(module).__name__ == FSDP1 for module in model.modules()):
            return ModelDigest((), fault=f"{FSDP1} holds flat shards of the parameters")
        rows = []
        peers = [_coordinate_without(layout, rank, equal) for equal in (axes.dense, axes.experts)]
        for name, parameter in model.named_parameters():
            if hasattr(parameter, "ds_tensor"):
                return ModelDigest((), fault=f"{name} is partitioned by stage 3 of ZeRO")
            rows.append(_digest_parameter(name, parameter, layout, rank, axes))
        return ModelDigest(tuple(rows), tuple(dict.fromkeys(peers)))
    except Exception as error:  # the peers wait in the gather, so this rank must join it
        reason = (str(error).splitlines() or [""])[0][:100]
        return ModelDigest((), fault=f"{name} cannot be read ({type(error).__name__}: {reason})")


def _digest_parameter(
    name: str, parameter: nn.Parameter, layout: Layout, rank: int, axes: EqualAxes
) -> ParameterDigest:
    # Megatron-core and DeepSpeed mark the parameters of experts in this way
    is_expert = getattr(parameter, "allreduce", True) is False
    equal = axes.experts if is_expert else axes.dense
    kind = f"{str(parameter.dtype).removeprefix('torch.')} {tuple(parameter.shape)}"
    peers = share = _coordinate_without(layout, rank, equal)
    local: Any = parameter
    if _is_dtensor(parameter):
        kind += f" {' '.join(map(str, local.placements))}"
        replicas, part = _replicas(local)
        local = local.to_local()
        along = [axis for axis in layout.axes if replicas >= {*layout.peers(rank, axis).tolist()}]
        share = f"{_coordinate_without(layout, rank, (*equal, *along))}; {part}"
    return ParameterDigest(name, kind, peers, share, fingerprint(local), is_expert)


def _is_dtensor(parameter: Any) -> bool:  # noqa: ANN401  # without the import of 600 modules
    return hasattr(parameter, "placements") and hasattr(parameter, "device_mesh")


def _replicas(parameter: Any) -> tuple[set[int], str]:  # noqa: ANN401  # a DTensor
    """Return the ranks with the same part of a DTensor, and the part as text."""
    mesh, names = parameter.device_mesh, parameter.device_mesh.mesh_dim_names
    split = [dim for dim, kind in enumerate(parameter.placements) if not kind.is_replicate()]
    index = mesh.get_coordinate()
    select = tuple(index[dim] if dim in split else slice(None) for dim in range(mesh.ndim))
    part = {names[dim] if names else f"dim {dim}": index[dim] for dim in split}
    return {*mesh.mesh[select].flatten().tolist()}, format_sizes(part)


def _coordinate_without(layout: Layout, rank: int, axes: tuple[str, ...]) -> str:
    coordinate = layout.coordinate(rank)
    return format_sizes({axis: index for axis, index in coordinate.items() if axis not in axes})
