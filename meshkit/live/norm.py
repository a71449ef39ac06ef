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
ASKED = 100  # the first calls at which a rank asks for a comparison; later it asks every 100th call


class Share(NamedTuple):
    """The part of this rank in the norm of one parameter."""

    place: tuple[Any, ...]  # the DeviceMesh and the placements of a DTensor
    num_dims: int
    counts: bool
    is_presumed: bool  # whether the gradient counts as a copy because no layout says anything
    sums: tuple[str, ...] = ()  # axes along which a layout says that ranks have parts of a sum
    whole: tuple[Any, ...] = ()  # the placements after the sum that a partial DTensor needs


class Gradients(NamedTuple):
    """The gradients of one call, as this rank holds them."""

    local: list[Tensor]  # all of them, to be scaled
    counted: list[Tensor]  # those that this rank counts, after sums
    others: list[Tensor]  # those that another rank counts: a NaN in one of them counts too
    presumed: dict[str, Tensor]  # those that must be copies because no layout says anything


class GradientNorms(OfOneProcess):
    """The norms of gradients on one mesh."""

    def __init__(self, mesh: MeshGroups, device: torch.device) -> None:
        self._mesh, self._device = mesh, device
        self._grid, self._rank = mesh.plan.layout, mesh.rank
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
                if share.is_presumed:
                    read.presumed[names[0]] = local
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
            return Share(place, num_dims, is_counted, not shares.is_stated, shares.sums)
        device_mesh, placements = place
        members, index = device_mesh.mesh.flatten().tolist(), device_mesh.get_coordinate()
        if outside := [rank for rank in members if rank not in self._grid]:
            line = f"{name} is a DTensor over rank {outside[0]}, which is not in {self._grid!r}."
            raise SpecError(line, fix="call this on a mesh that has all ranks of the DTensor.")
        pairs = zip(index, placements, strict=True)
        copies = [n for n, kind in pairs if kind.is_replicate() or kind.is_partial()]
        is_first = counts(self._grid, self._rank, shares.own, members) and not any(copies)
        whole = _whole(placements) if any(kind.is_partial() for kind in placements) else ()
        return Share(place, num_dims, is_first, False, shares.sums, whole)

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

    def _asks(self, presumed: Mapping[str, Tensor], own: Tensor) -> bool:
        """Return whether this rank asks all ranks to compare copies. Local."""
        calls = self._asked.get(names := tuple(presumed), 1)
        if not presumed or not calls or self._grid.num_ranks == 1:
            return False
        self._asked[names] = calls + 1
        is_time = calls <= ASKED or calls % ASKED == 0
        return is_time and _none_is_zero(presumed) and bool(own.isfinite())

    def _compare(
        self, presumed: Mapping[str, Tensor], own: Tensor, group: dist.ProcessGroup
    ) -> None:
        """Compare the gradients that must be copies, if all are finite and not zero. Collective.

        The error is the same on all ranks.
        """
        ready = (own.isfinite() & _none_is_zero(presumed)).int()
        dist.all_reduce(ready, dist.ReduceOp.MIN, group=group)
        if not ready.item():
            return
        grid, at = self._grid, self._grid.coordinate(self._rank)
        stage = format_sizes({axis: n for axis, n in at.items() if has_pipeline([axis])})
        forms = (Row(stage, n, f"{g.dtype} {tuple(g.shape)}") for n, g in presumed.items())
        held = gather_conflicting(self._mesh, Holdings(tuple(forms), (stage,)), self._device)
        for row, contents in find_conflicts(held).items():
            raise form_error(grid, row.name, contents)
        axes = [axis for axis in grid.axes if grid.sizes[axis] > 1 and not has_pipeline([axis])]
        faults = [fault for axis in axes for fault in self._differing(axis, presumed)]
        fault = Holdings((), (), "".join(faults[:1]))
        for holdings in gather_conflicting(self._mesh, fault, self._device).values():
            if holdings.fault:
                raise differing_error(*json.loads(holdings.fault))
        self._asked[tuple(presumed)] = 0

    def _differing(self, axis: str, presumed: Mapping[str, Tensor]) -> list[str]:
        """Return the gradients that are not those of coordinate 0 of an axis. Collective over it.

        Each is returned as the arguments of its error, in JSON.
        """
        group, faults = self._mesh.get((axis,)), []
        first = int(self._grid.peers(self._rank, axis)[0])
        for names, parts in _buckets(presumed):
            flat = torch.cat(parts).to(self._device)
            dist.broadcast(flat, first, group=group)
            for name, own, other in zip(
                names, parts, torch.split(flat, [*map(len, parts)]), strict=True
            ):
                copy = other.double()
                gap = float((own.to(copy) - copy).norm() / copy.norm())
                if gap > TOLERANCE:
                    ranks = f"{first} and {self._rank}"
                    reason = f"Those of ranks {ranks} differ by {gap:.2g} of its norm."
                    faults.append(json.dumps([name, axis, presumed[name].ndim, reason]))
        return faults


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


def _none_is_zero(gradients: Mapping[str, Tensor]) -> bool:
    """Return whether each gradient has an element that is not 0."""
    kinds = _by_kind([gradient for gradient in gradients.values() if gradient.numel()])
    return all(bool(torch.stack(foreach_norms(kind, math.inf)).all()) for kind in kinds)


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
