"""The comparison of gradients that count as copies, so that a wrong norm is refused.

A gradient is a copy along each axis that no layout mentions and that does not cut its DTensor. It
is compared with that of coordinate 0 of the axis. DTensors are compared in one of two ways::

    DeviceMesh           ranks of a mesh dp=4    compared
    all ranks of axes    [0 1 2 3]               the parts of each rank, along the other axes
    any other ranks      [0 2] and [1 3]         the whole tensors, along all axes
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..data.checks import gather_conflicting
from ..data.conflicts import Holdings, Row, find_conflicts
from ..groups.registry import MeshGroups
from ..launch.tensors import plain
from ..launch.torch_program import foreach_norms
from ..layout.layout import Layout
from ..redistribute.pattern import check_globs
from ..text import format_sizes, group_by
from .shares import NormLayout, differing_error, form_error

TOLERANCE = 1e-3  # the largest difference of two copies, relative to their norm
BUCKET = 2**22  # elements that are sent at once to be compared
ARRANGED = "arranged"  # the class of all ranks, which compare how the ranks of DTensors lie
OTHER = "other ranks"  # the arrangement of a DTensor whose ranks are not all ranks of some axes


class Share(NamedTuple):
    """The part of this rank in the norm of one parameter."""

    name: str
    place: tuple[Any, ...]  # the DeviceMesh and the placements of a DTensor
    form: tuple[torch.Size, torch.dtype]  # of the parameter
    is_matched: bool  # whether a layout mentions it
    stated: frozenset[str]  # axes of which a layout says how ranks hold it
    copied: tuple[str, ...]  # the other axes, along which it must be a copy
    along: tuple[str, ...]  # those of them that the DeviceMesh of a DTensor lacks
    arrangement: str = ""  # of the ranks of a DTensor on the axes that it has
    counts: bool = False
    sums: tuple[str, ...] = ()  # axes along which a layout says that ranks have parts of a sum
    whole: tuple[Any, ...] = ()  # the placements after the sum that a partial DTensor needs

    def arranged(
        self,
        grid: Layout,
        rank: int,
        axes: Sequence[str],
        members: Sequence[int],
        placements: Sequence[Any],
    ) -> Share:
        """Return the share of a DTensor, with how its ranks lie on the axes that it has.

        A layout says nothing about the axes that it has. Along ``axes`` ranks may hold copies.
        """
        cut = [axis for axis in grid.axes if {*members} & {*grid.peers(rank, axis)} != {rank}]
        stated = self.stated - ({*self.sums} & {*cut})
        copied = tuple(axis for axis in axes if axis not in stated)
        along = tuple(axis for axis in copied if axis not in cut)
        box = grid.peers(rank, *cut).tolist() if cut else [rank]
        arrangement = OTHER * bool(copied)
        if sorted(members) == sorted(box):
            places = {member: place for place, member in enumerate(box)}
            order = [places[member] for member in members] if members != box else "in order"
            arrangement = f"{along} {placements} {order}" * bool(along)
            copied *= bool(along)
        return self._replace(
            stated=stated,
            copied=copied,
            along=along,
            arrangement=arrangement,
            sums=tuple(axis for axis in self.sums if axis not in cut),
        )


class Copy(NamedTuple):
    """A gradient that must be a copy along some axes."""

    gradient: Any
    local: Tensor  # after sums
    share: Share


def check_matches(
    mesh: MeshGroups, unmatched: Sequence[str], names: Sequence[str], device: torch.device
) -> None:
    """Check that each glob of a layout matches a name of a parameter on some rank. Collective."""
    own = Holdings((), (), json.dumps(unmatched) * bool(unmatched))
    globs = [json.loads(h.fault or "[]") for h in gather_conflicting(mesh, own, device).values()]
    check_globs([g for g in unmatched if all(g in others for others in globs)], names, "parameter")


def compare_copies(
    mesh: MeshGroups, copies: Mapping[str, Copy], layout: NormLayout, device: torch.device
) -> None:
    """Compare gradients that must be copies. Collective over the mesh.

    Raises:
        SpecError: if one of them differs over an axis, or is missing on a rank; on all ranks.
    """
    grid = mesh.plan.layout
    held = gather_conflicting(mesh, _list_forms(grid, mesh.rank, copies, layout), device)
    conflicts = find_conflicts(held)
    whole = {row.name for row in conflicts if row.ranks == ARRANGED}
    whole |= {row.name for h in held.values() for row in h.rows if row.content == OTHER}
    for row, contents in conflicts.items():
        if row.ranks != ARRANGED:
            raise form_error(grid, layout, row.name, contents, is_whole=row.name in whole)
    whole |= {name for name, copy in copies.items() if copy.share.arrangement == OTHER}
    axes = [axis for axis in grid.axes if any(axis in c.share.copied for c in copies.values())]
    faults = [x for axis in axes for x in _differing(mesh, axis, copies, whole, device)]
    fault = Holdings((), (), "".join(faults[:1]))
    for holdings in gather_conflicting(mesh, fault, device).values():
        if holdings.fault:
            name, axis, num_dims, is_whole, *reasons = json.loads(holdings.fault)
            raise differing_error(layout, name, axis, num_dims, *reasons, is_whole=is_whole)


def _list_forms(
    grid: Layout, rank: int, copies: Mapping[str, Copy], layout: NormLayout
) -> Holdings:
    """Return the dtype and the whole shape of each copy, and the arrangements of DTensors.

    Ranks with equal coordinates along the stated axes must have it.
    """
    at = grid.coordinate(rank)

    def class_of(stated: Collection[str]) -> str:
        own = layout.apart(stated)
        return format_sizes({axis: n for axis, n in at.items() if axis in own})

    rows = []
    for name, (gradient, _, share) in copies.items():
        if share.copied:
            kind = " DTensor" * bool(share.place)
            form = f"{gradient.dtype} {tuple(gradient.shape)}{kind}"
            rows.append(Row(class_of(share.stated), name, form))
        if share.arrangement:  # no rank must have it
            rows.append(Row(ARRANGED, name, share.arrangement))
    classes = dict.fromkeys(map(class_of, [(), *layout.stated]))
    return Holdings(tuple(rows), tuple(classes))


def _differing(
    mesh: MeshGroups,
    axis: str,
    copies: Mapping[str, Copy],
    whole: Collection[str],
    device: torch.device,
) -> Iterator[str]:
    """Yield the gradients that are not those of coordinate 0 of an axis. Collective over it.

    Each is the arguments of its error, in JSON.
    """
    rank, first = mesh.rank, int(mesh.plan.layout.peers(mesh.rank, axis)[0])
    compared = {
        name: copy
        for name, copy in sorted(copies.items())  # in one order on all ranks
        if axis in (copy.share.copied if name in whole else copy.share.along)
    }
    squares: dict[str, Tensor] = {}  # of the norm of the difference, and of the norm: (2,)
    for names, parts in _buckets(compared, whole):
        flat = torch.cat(parts).to(device)
        dist.broadcast(flat, first, group=mesh.get((axis,)))
        others = torch.split(flat, [*map(len, parts)])
        for name, own, other in zip(names, parts, others, strict=True):
            wide = other.double()
            norms = (own.to(wide) - wide).norm(), wide.norm()
            squares[name] = torch.stack(norms).square()
    added = _add_parts(compared, squares, whole)
    for name, copy in copies.items():
        gap, norm = added.get(name, (0.0, 1.0))
        if (ratio := math.sqrt(gap / norm) if norm else gap * math.inf) > TOLERANCE:
            reason = f"Those of ranks {first} and {rank} differ by {ratio:.2g} of its norm."
            yield json.dumps([name, axis, copy.gradient.ndim, name in whole, reason])


def _add_parts(
    copies: Mapping[str, Copy], squares: Mapping[str, Tensor], whole: Collection[str]
) -> dict[str, list[float]]:
    """Return the squares of whole gradients. Collective over the ranks of each DTensor."""
    places = ((() if n in whole else copy.share.place[:1], n) for n, copy in copies.items())
    by_place: dict[Any, list[str]] = group_by(places)
    added: dict[str, list[float]] = {}
    for place, names in by_place.items():
        total = torch.stack([squares[name] for name in names])  # (num_names, 2)
        for device_mesh in place:  # none for plain gradients
            total = total.to(device_mesh.device_type)
            for group in device_mesh.get_all_groups():
                dist.all_reduce(total, group=group)
        added.update(zip(names, total.tolist(), strict=True))
    return added


def _buckets(
    copies: Mapping[str, Copy], whole: Collection[str]
) -> Iterator[tuple[list[str], list[Tensor]]]:
    """Yield names and flat gradients of one dtype, some at a time. Collective for whole ones."""
    names: list[str] = []
    parts: list[Tensor] = []
    size = 0
    for name, (gradient, local, share) in copies.items():
        flat = plain(gradient.full_tensor() if name in whole and share.place else local)
        flat = (torch.view_as_real(flat) if flat.is_complex() else flat).flatten()
        if parts and (flat.dtype != parts[0].dtype or size + len(flat) > BUCKET):
            yield names, parts
            names, parts, size = [], [], 0
        names, parts, size = [*names, name], [*parts, flat], size + len(flat)
    if parts:
        yield names, parts


def are_telling(copies: Mapping[str, Copy]) -> bool:
    """Return whether a comparison shows whether the gradients are copies.

    No plain gradient that no layout mentions may be all zero, nor all other ones together.
    """
    strict: list[Tensor] = []
    others: list[Tensor] = []
    for _, local, share in copies.values():
        (others if share.place or share.is_matched else strict).append(local)
    largest = _largest(others)
    return bool(_largest(strict).all()) and (not len(largest) or bool(largest.any()))


def _largest(tensors: Sequence[Tensor]) -> Tensor:
    """Return the largest magnitude of each tensor that has elements: float64 (num_tensors,)."""
    kinds = by_kind([tensor for tensor in tensors if tensor.numel()])
    norms = [torch.stack(foreach_norms(kind, math.inf)).double().cpu() for kind in kinds]
    return torch.cat(norms) if norms else torch.zeros(0)


def by_kind(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the tensors by device and dtype."""
    if len({tensor.dtype for tensor in tensors}) * len({t.device for t in tensors}) <= 1:
        return [[*tensors]] * bool(tensors)
    return [*group_by(((tensor.device, tensor.dtype), tensor) for tensor in tensors).values()]
