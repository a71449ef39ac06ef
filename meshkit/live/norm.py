"""The norm of all gradients of a model on a mesh, and their clipping: one collective a call.

Each rank adds up the gradients that it counts, and an all-reduce of one float64 gives the sum of
all ranks. A rank that wants the ranks to compare copies takes part with NaN. If the sum is NaN, all
ranks compare, unless a gradient is not finite, and then sum anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..core.axes import has_pipeline
from ..core.compare import Holdings, Row, find_conflicts
from ..core.errors import NonfiniteError, SpecError
from ..core.norm import NormLayout, counts, differing_error, form_error, parse_max_norm, parse_order
from ..core.text import format_sizes
from ..launch.torch_internals import foreach_norms, foreach_scale
from .copies import OfOneProcess
from .data.checks import Named, gather_conflicting, name_tied_parameters
from .group_registry import MeshGroups
from .memory import check_writable, plain

TOLERANCE = 1e-3  # the largest difference of two copies, relative to their norm
BUCKET = 2**22  # elements that are sent at once to be compared
ARRANGED = " arranged"  # the end of the class of ranks that compare arrangements
ASKED = 100  # the first calls at which a rank asks for a comparison; later it asks every 100th call


class Share(NamedTuple):
    """The part of this rank in the norm of one parameter."""

    place: tuple[Any, ...]  # the DeviceMesh and the placements of a DTensor
    num_dims: int
    counts: bool
    copied: tuple[str, ...]  # axes along which it counts as a copy because no layout says anything
    arrangement: str = ""  # of the ranks of a DTensor; copies are compared if it is equal on all
    sums: tuple[str, ...] = ()  # axes along which a layout says that ranks have parts of a sum
    whole: tuple[Any, ...] = ()  # the placements after the sum that a partial DTensor needs


class Copy(NamedTuple):
    """A gradient that counts as a copy because no layout says anything."""

    gradient: Any
    local: Tensor
    share: Share


class Gradients(NamedTuple):
    """The gradients of one call, as this rank holds them."""

    local: list[Tensor]  # all of them, to be scaled
    counted: list[Tensor]  # those that this rank counts, after sums
    others: list[Tensor]  # those that another rank counts: a NaN in one of them counts too
    presumed: dict[str, Copy]  # those that must be copies because no layout says anything


class GradientNorms(OfOneProcess):
    """The norms of gradients on one mesh."""

    def __init__(self, mesh: MeshGroups, device: torch.device) -> None:
        self._mesh, self._device = mesh, device
        self._grid, self._rank = mesh.plan.layout, mesh.rank
        sizes = self._grid.sizes  # the axes along which ranks may hold copies
        self._axes = tuple(a for a, size in sizes.items() if size > 1 and not has_pipeline([a]))
        # the layout and the names of a call to what was parsed, and to the share of each parameter
        self._known: dict[Any, tuple[NormLayout, list[Share | None]]] = {}
        # names to the calls at which this rank has asked for a comparison; 0 after it
        self._asked: dict[tuple[str, ...], int] = {}

    @torch.no_grad()
    def measure(
        self,
        parameters: object,
        norm_type: object,
        layout: object,
        error_if_nonfinite: bool,
        sizes: object,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the norm, and all local gradients. See :meth:`meshkit.Mesh.grad_norm`."""
        group = self._mesh.collective_group(())
        order, named = parse_order(norm_type), name_tied_parameters(parameters)
        read = self._read(named, layout, sizes)
        own = _total(read.counted, order, self._device)
        rest = _total(read.others, math.inf, self._device)
        own = own.where(rest.isfinite(), own + rest)
        total = _reduce(own * math.nan if self._asks(read.presumed, own) else own, order, group)
        if total.isnan():
            self._compare(read.presumed, own, group)
            total = _reduce(own, order, group)
        norm = total if order in (1, math.inf) else total.pow(1 / order)
        if error_if_nonfinite and not norm.isfinite():
            raise _nonfinite_error(norm, named)
        return norm.to(read.local[0].device if read.local else self._device), read.local

    @torch.no_grad()
    def clip(self, parameters: object, max_norm: object, *options: Any) -> Tensor:  # noqa: ANN401
        """Scale all gradients, and return their norm. See :meth:`meshkit.Mesh.clip_grad_norm`."""
        most, named = parse_max_norm(max_norm), name_tied_parameters(parameters)
        for name, parameter in named:
            if parameter.grad is not None:
                fix = "p.grad = p.grad.clone() for this parameter p."
                check_writable(_local(parameter.grad), f"the gradient of {name}", fix)
        norm, local = self.measure(named, *options)
        factor = (most / (norm + 1e-6)).clamp(max=1.0)
        for gradients in _by_kind(_distinct(local)):
            foreach_scale(gradients, factor)
        return norm

    def _read(self, named: Named, layout: object, sizes: object) -> Gradients:
        """Return the local gradients, after the sums that a layout or a placement asks for."""
        ties = _tie(named)
        parsed, shares = self._parse(layout, sizes, tuple(tuple(names) for names, _ in ties))
        read = Gradients([], [], [], {})
        sums: dict[tuple[str, ...], list[tuple[Tensor, bool]]] = {}
        for index, (names, parameter) in enumerate(ties):
            gradient: Any = parameter.grad
            is_plain = gradient is None or not _is_dtensor(gradient)
            place = () if is_plain else (gradient.device_mesh, gradient.placements)
            share = shares[index]
            if share is None or share.place != place or share.num_dims != parameter.ndim:
                share = shares[index] = self._share(names, parameter, place, parsed)
            if gradient is not None:
                local = gradient if is_plain else gradient.to_local()
                read.local.append(local)
                if not share.counts:
                    read.others.append(local)
                if share.copied or share.arrangement:
                    read.presumed[names[0]] = Copy(gradient, local, share)
            elif share.sums:  # the other ranks wait for the sum
                local = torch.zeros_like(parameter)
            else:
                continue
            part = _sum_parts(gradient, share.whole) if share.whole else local
            if share.sums:
                sums.setdefault(share.sums, []).append((part, share.counts))
            elif share.counts:
                read.counted.append(part)
        for axes, parts in sums.items():
            read.counted.extend(self._sum_over(axes, parts))
        return read

    def _parse(
        self, layout: object, sizes: object, names: tuple[tuple[str, ...], ...]
    ) -> tuple[NormLayout, list[Share | None]]:
        """Return the parsed layout, and what earlier calls with these names know of each."""
        given = (tuple(x.items()) if isinstance(x, Mapping) else x for x in (layout, sizes))
        key = (*given, names)
        try:
            return self._known[key]
        except (KeyError, TypeError):  # TypeError: a value without a hash is no str
            parsed = NormLayout.of(self._grid.sizes, {} if layout is None else layout, sizes)
        parsed.check_names([name for tied in names for name in tied])
        return self._known.setdefault(key, (parsed, [None] * len(names)))

    def _share(
        self, names: Sequence[str], parameter: Tensor, place: tuple[Any, ...], layout: NormLayout
    ) -> Share:
        """Return the part of this rank in the norm of a parameter."""
        name = layout.known_as(names)
        shape, num_dims = tuple(parameter.shape), parameter.ndim
        shares = layout.shares(name, shape, is_plain=not _is_dtensor(parameter))
        if not place:
            is_counted = counts(self._grid, self._rank, shares.own)
            copied = () if shares.is_stated else self._axes
            return Share(place, num_dims, is_counted, copied, sums=shares.sums)
        device_mesh, placements = place
        members, index = device_mesh.mesh.flatten().tolist(), device_mesh.get_coordinate()
        if outside := [rank for rank in members if rank not in self._grid]:
            line = f"{name} is a DTensor over rank {outside[0]}, which is not in {self._grid!r}."
            raise SpecError(line, fix="call this on a mesh that has all ranks of the DTensor.")
        pairs = zip(index, placements, strict=True)
        copies = [n for n, kind in pairs if kind.is_replicate() or kind.is_partial()]
        is_first = counts(self._grid, self._rank, shares.own, members) and not any(copies)
        whole = _whole(placements) if any(kind.is_partial() for kind in placements) else ()
        looks = not whole and not shares.is_stated
        copied, arrangement = self._arrange(members, placements) if looks else ((), "")
        return Share(place, num_dims, is_first, copied, arrangement, shares.sums, whole)

    def _arrange(
        self, members: Sequence[int], placements: Sequence[Any]
    ) -> tuple[tuple[str, ...], str]:
        """Return the axes that the ranks of a DTensor lack, and how the ranks lie on the others."""
        grid, rank = self._grid, self._rank
        cut = [axis for axis in self._axes if {*members} & {*grid.peers(rank, axis)} != {rank}]
        copied = tuple(axis for axis in self._axes if axis not in cut)
        box = grid.peers(rank, *cut).tolist() if cut else [rank]
        if not copied:
            return (), ""
        if sorted(members) != sorted(box):
            return (), "other ranks"
        places = {member: place for place, member in enumerate(box)}
        order = [places[member] for member in members] if members != box else "in order"
        return copied, f"{copied} {placements} {order}"

    def _sum_over(
        self, axes: tuple[str, ...], parts: Sequence[tuple[Tensor, bool]]
    ) -> list[Tensor]:
        """Return the sums over some axes that this rank counts. Collective over each axis."""
        wide = [part.flatten().to(self._device, _wide(part)) for part, _ in parts]
        flat = plain(torch.cat(wide))  # complex if one of them is
        for axis in axes:
            dist.all_reduce(flat, group=self._mesh.get((axis,)))
        sums = torch.split(flat, [part.numel() for part, _ in parts])
        return [total for total, (_, is_counted) in zip(sums, parts, strict=True) if is_counted]

    # ------------------------------------------------------------------ the comparison of copies

    def _asks(self, presumed: Mapping[str, Copy], own: Tensor) -> bool:
        """Return whether this rank asks all ranks to compare copies. Local."""
        calls = self._asked.get(names := tuple(presumed), 1)
        if not presumed or not calls or self._grid.num_ranks == 1:
            return False
        self._asked[names] = calls + 1
        is_time = calls <= ASKED or calls % ASKED == 0
        return is_time and _are_telling(presumed) and bool(own.isfinite())

    def _compare(self, presumed: Mapping[str, Copy], own: Tensor, group: dist.ProcessGroup) -> None:
        """Compare the gradients that must be copies, if all are finite and not zero. Collective.

        The error is the same on all ranks.
        """
        ready = (own.isfinite() & _are_telling(presumed)).int()
        dist.all_reduce(ready, dist.ReduceOp.MIN, group=group)
        if not ready.item():
            return
        grid, at = self._grid, self._grid.coordinate(self._rank)
        stage = format_sizes({axis: n for axis, n in at.items() if has_pipeline([axis])})
        held = gather_conflicting(self._mesh, _list_forms(presumed, stage), self._device)
        conflicts = find_conflicts(held)
        apart = {(row.ranks, row.name) for row in conflicts}  # of all stages
        for row, contents in conflicts.items():
            if not row.ranks.endswith(ARRANGED) and (row.ranks + ARRANGED, row.name) not in apart:
                raise form_error(grid, row.name, contents)
        copies = {n: c for n, c in presumed.items() if (stage + ARRANGED, n) not in apart}
        faults = [fault for axis in self._axes for fault in self._differing(axis, copies)]
        fault = Holdings((), (), "".join(faults[:1]))
        for holdings in gather_conflicting(self._mesh, fault, self._device).values():
            if holdings.fault:
                raise differing_error(*json.loads(holdings.fault))
        self._asked[tuple(presumed)] = 0

    def _differing(self, axis: str, presumed: Mapping[str, Copy]) -> list[str]:
        """Return the gradients that are not those of coordinate 0 of an axis. Collective over it.

        Each is returned as the arguments of its error, in JSON.
        """
        first = int(self._grid.peers(self._rank, axis)[0])
        copies = {n: copy for n, copy in presumed.items() if axis in copy.share.copied}
        squares: dict[str, Tensor] = {}  # of the norm of the difference, and of the norm: (2,)
        for names, parts in _buckets({name: copy.local for name, copy in copies.items()}):
            flat = torch.cat(parts).to(self._device)
            dist.broadcast(flat, first, group=self._mesh.get((axis,)))
            others = torch.split(flat, [*map(len, parts)])
            for name, own, other in zip(names, parts, others, strict=True):
                copy = other.double()
                norms = (own.to(copy) - copy).norm(), copy.norm()
                squares[name] = torch.stack(norms).square()
        faults = []
        for name, (gap, norm) in _add_parts(copies, squares).items():
            if (ratio := math.sqrt(gap / norm) if norm else gap * math.inf) > TOLERANCE:
                reason = (
                    f"Those of ranks {first} and {self._rank} differ by {ratio:.2g} of its norm."
                )
                faults.append(json.dumps([name, axis, copies[name].gradient.ndim, reason]))
        return faults


def _list_forms(presumed: Mapping[str, Copy], stage: str) -> Holdings:
    """Return the dtype and the whole shape of each copy, and the arrangements of DTensors."""
    rows = []
    for name, (gradient, _, share) in presumed.items():
        if share.copied:
            kind = " DTensor" * bool(share.place)
            rows.append(Row(stage, name, f"{gradient.dtype} {tuple(gradient.shape)}{kind}"))
        if share.arrangement:  # in a class of its own, in which no rank must have it
            rows.append(Row(stage + ARRANGED, name, share.arrangement))
    return Holdings(tuple(rows), (stage,))


def _add_parts(copies: Mapping[str, Copy], squares: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Return the squares of whole gradients. Collective over the ranks of each DTensor."""
    by_place: dict[Any, list[str]] = {}
    for name, copy in copies.items():
        by_place.setdefault(copy.share.place[:1], []).append(name)
    added: dict[str, list[float]] = {}
    for place, names in by_place.items():
        total = torch.stack([squares[name] for name in names])  # (num_names, 2)
        for device_mesh in place:  # none for plain gradients
            total = total.to(device_mesh.device_type)
            for group in device_mesh.get_all_groups():
                dist.all_reduce(total, group=group)
        added.update(zip(names, total.tolist(), strict=True))
    return added


def _tie(named: Named) -> list[tuple[list[str], Any]]:
    """Return each parameter with all its names."""
    ties: dict[int, tuple[list[str], Any]] = {}
    for name, parameter in named:
        ties.setdefault(id(parameter), ([], parameter))[0].append(name)
    return [*ties.values()]


def _is_dtensor(tensor: Any) -> bool:  # noqa: ANN401
    """Return whether a tensor is a DTensor, without the import of 600 modules."""
    return type(tensor) not in (Tensor, nn.Parameter) and hasattr(type(tensor), "placements")


def _local(gradient: Any) -> Tensor:  # noqa: ANN401
    """Return the local tensor of a gradient, which is no copy."""
    local: Tensor = gradient.to_local() if _is_dtensor(gradient) else gradient
    return local


def _whole(placements: Sequence[Any]) -> tuple[Any, ...]:
    """Return the placements of a partial DTensor after its sum."""
    from torch.distributed.tensor import Replicate  # there is a DTensor, so it is imported

    return tuple(Replicate() if kind.is_partial() else kind for kind in placements)


def _sum_parts(gradient: Any, placements: tuple[Any, ...]) -> Tensor:  # noqa: ANN401
    """Return the local part of a partial DTensor after its sum, in 64 bits a number. Collective."""
    from torch.distributed.tensor import DTensor

    wide = DTensor.from_local(
        gradient.to_local().to(_wide(gradient)),
        gradient.device_mesh,
        gradient.placements,
        run_check=False,
        shape=gradient.shape,
        stride=gradient.stride(),
    )
    whole: Tensor = wide.redistribute(placements=placements).to_local()
    return whole


def _wide(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which parts of a gradient are added up."""
    return torch.complex128 if tensor.is_complex() else torch.float64


def _distinct(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors, each memory once: two parameters may share a gradient."""
    places = {(t.data_ptr(), t.shape, t.stride()) if t.numel() else id(t): t for t in tensors}
    return [*places.values()]


def _by_kind(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the tensors by device and dtype."""
    if len({tensor.dtype for tensor in tensors}) * len({t.device for t in tensors}) <= 1:
        return [[*tensors]] * bool(tensors)
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return [*kinds.values()]


def _total(counted: Sequence[Tensor], order: float, device: torch.device) -> Tensor:
    """Return the sum of the powers of all elements, or the largest element: float64 ()."""
    kinds = _by_kind([tensor for tensor in counted if tensor.numel()])
    norms = [torch.stack(foreach_norms(k, order, joined=True)).to(device) for k in kinds]
    if not norms:
        return torch.zeros((), dtype=torch.float64, device=device)
    every = torch.cat(norms)
    return every.max() if order == math.inf else every.pow(order).sum()


def _reduce(own: Tensor, order: float, group: dist.ProcessGroup) -> Tensor:
    """Return the sum, or the largest, of all ranks; NaN if one of them has NaN. Collective."""
    total = own.abs()  # a NaN without a sign
    if order != math.inf:
        dist.all_reduce(total, group=group)
    else:  # the bits of numbers of 0 or more have their order, and NaN is the largest
        dist.all_reduce(total.view(torch.int64), dist.ReduceOp.MAX, group=group)
    return total


def _are_telling(copies: Mapping[str, Copy]) -> bool:
    """Return whether no plain gradient is all zero, nor all parts of DTensors together."""
    plains = _largest([copy.local for copy in copies.values() if not copy.share.place])
    parts = _largest([copy.local for copy in copies.values() if copy.share.place])
    return bool(plains.all()) and (not len(parts) or bool(parts.any()))


def _largest(tensors: Sequence[Tensor]) -> Tensor:
    """Return the largest magnitude of each tensor that has elements: float64 (num_tensors,)."""
    kinds = _by_kind([tensor for tensor in tensors if tensor.numel()])
    norms = [torch.stack(foreach_norms(kind, math.inf)).double().cpu() for kind in kinds]
    return torch.cat(norms) if norms else torch.zeros(0)


def _buckets(gradients: Mapping[str, Tensor]) -> Iterator[tuple[list[str], list[Tensor]]]:
    """Yield names and flat gradients of one dtype, some at a time."""
    names: list[str] = []
    parts: list[Tensor] = []
    size = 0
    for name, gradient in gradients.items():
        flat = plain(gradient)
        flat = (torch.view_as_real(flat) if flat.is_complex() else flat).flatten()
        if parts and (flat.dtype != parts[0].dtype or size + len(flat) > BUCKET):
            yield names, parts
            names, parts, size = [], [], 0
        names, parts, size = [*names, name], [*parts, flat], size + len(flat)
    if parts:
        yield names, parts


def _nonfinite_error(norm: Tensor, named: Named) -> NonfiniteError:
    """Return the error of a norm that is infinite or not a number."""
    gradients = ((names[0], p.grad) for names, p in _tie(named) if p.grad is not None)
    names = [name for name, gradient in gradients if not _local(gradient).isfinite().all()]
    more = f", nor are {len(names) - 1} others" * (len(names) > 1)
    where = f"{names[0]} is not finite on this rank{more}." if names else ""
    return NonfiniteError(
        f"the norm of the gradients is {norm.item()}.",
        where or "On this rank all gradients are finite.",
        fix="skip this step; all ranks raise this.",
    )
