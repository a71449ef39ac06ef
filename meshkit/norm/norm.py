"""The norm of all gradients of a model on a mesh, and their clipping: one collective a call.

Each rank adds up the gradients that it counts, and an all-reduce of one float64 gives the sum of
all ranks. Some calls also compare the gradients that must be copies of each other. All ranks must
then take part, and NaN in the sum is how one rank asks the others, without a second collective::

    rank 0    own sum 3.0, asks for a comparison    adds NaN    reads NaN    compares    adds 3.0
    rank 1    own sum 5.0                           adds 5.0    reads NaN    compares    adds 5.0

If a gradient itself is NaN or infinite, the sum is not finite either. The ranks then meet in the
same comparison, find nothing to compare, and the second sum is the true result: not finite.

A plain parameter is a copy on each rank, and a DTensor along each axis that its DeviceMesh lacks,
except along a pipeline, unless the layout says something else. ``o/tp``: each rank has a part.
``+tp``: the ranks have parts of a sum, which is added first, as that of a partial DTensor is.
``=tp`` and ``*tp``: copies, as along axes without a mark. Tied weights say ``=pp`` on every stage
that holds them. An axis that the mesh lacks has size 1. An axis of unknown role needs a mark. A
copy on any rank that is not finite makes the norm so. A gradient that two parameters share is
scaled once.

A gradient is no copy along an axis if it is missing there, or differs by more than 1e-3 of its
norm. The ranks look at this once, at the first call at which no plain gradient without a layout is
all zero. A DTensor is looked at along the axes that its DeviceMesh lacks; along all axes, if its
ranks are only a part of an axis, and then it is made whole for it. The look sends each such
gradient once over each axis. As long as a plain gradient without a layout is all zero, such as that
of an unused expert, the first 100 calls take two all-reduces more each, and then every 100th call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ..call import quotes_call
from ..data.checks import Named, name_tied_parameters
from ..errors import NonfiniteError, SpecError
from ..groups.registry import MeshGroups
from ..launch.of_one_process import OfOneProcess
from ..launch.tensors import check_writable, is_dtensor, plain
from ..launch.torch_program import foreach_norms, foreach_scale
from ..layout.axes import has_pipeline
from .copies import OTHER, Copy, Share, are_telling, by_kind, check_matches, compare_copies
from .shares import NormLayout, counts, parse_max_norm, parse_order

ASKED = 100  # the first calls at which a rank asks for a comparison; later it asks every 100th call


class KnownLayout(NamedTuple):
    """The parsed layout of some names, and what earlier calls know of them."""

    layout: NormLayout
    shares: list[Share | None]  # of each parameter
    # names to the calls at which this rank has asked for a comparison; 0 after it
    asked: dict[tuple[str, ...], int]
    unmatched: list[str]  # the globs that match no name of this rank, until ranks compare them


class Gradients(NamedTuple):
    """The gradients of one call, as this rank holds them."""

    known: KnownLayout
    local: list[Tensor]  # all of them, to be scaled
    counted: list[Tensor]  # those that this rank counts, after sums
    others: list[Tensor]  # those that another rank counts: a NaN in one of them counts too
    presumed: dict[str, Copy]  # those that must be copies along some axes


class NormedMesh(Protocol):
    """A mesh whose gradients have norms."""

    @property
    def _norms(self) -> GradientNorms:
        """The norms of gradients on this mesh."""


@quotes_call("mesh.grad_norm", by_name=("parameters",))
def grad_norm(  # noqa: D417  # self
    self: NormedMesh,
    parameters: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, Any]],
    norm_type: float = 2.0,
    *,
    layout: Mapping[str, str] | None = None,
    error_if_nonfinite: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> torch.Tensor:
    """Return the norm of all gradients of a model, as one process would compute it.

    Collective over the mesh, pipelines included. Gradients are final: every reduction has been
    done. A DTensor says how it is cut; a plain parameter is a copy on each rank, unless
    ``layout`` says something else. :mod:`meshkit.norm.norm` has the rules.

    Args:
        parameters: a module, or names and parameters, as in ``model.named_parameters()``. A
            parameter without a gradient adds 0.
        norm_type: the order of the norm, above 0; it may be ``float("inf")``.
        layout: a glob of names to one side of a pattern, as in ``{"*.experts.*": "e/ep o i"}``.
            The first glob that matches counts.
        error_if_nonfinite: whether an infinite norm, or NaN, raises on all ranks.
        sizes: sizes of dims of the layout, as in :meth:`whole_state`; a norm needs none.

    Returns:
        float64 (), on the device of the gradients; the same bits on every rank.

    Raises:
        SpecError: if the layout is invalid or does not fit a parameter. On all ranks, if a glob
            matches no parameter of any rank, or if a gradient is no copy where its layout says
            nothing.
        NonfiniteError: if ``error_if_nonfinite``, and the norm is not finite.

    Cost: one all-reduce of 8 bytes, whose result is read on the host; one more for each axis of
    ``+`` and each partial DTensor. The first call also sends plain gradients over their axes,
    once.

    Example:
        >>> linear = torch.nn.Linear(2, 2)
        >>> linear(torch.ones(1, 2)).sum().backward()
        >>> mesh.grad_norm(linear)
        tensor(2.4495, dtype=torch.float64)
    """
    return self._norms.measure(parameters, norm_type, layout, error_if_nonfinite, sizes)[0]


@quotes_call("mesh.clip_grad_norm", by_name=("parameters",))
def clip_grad_norm(  # noqa: D417  # self
    self: NormedMesh,
    parameters: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, Any]],
    max_norm: float,
    norm_type: float = 2.0,
    *,
    layout: Mapping[str, str] | None = None,
    error_if_nonfinite: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> torch.Tensor:
    """Scale all gradients so that their norm is at most ``max_norm``; return their norm before.

    Collective over the mesh. Each local gradient is multiplied in place by ``min(1, max_norm /
    (norm + 1e-6))``, as ``torch.nn.utils.clip_grad_norm_`` does. All else is as in
    :meth:`grad_norm`. After an error all gradients are unchanged.

    Args:
        parameters: as in :meth:`grad_norm`.
        max_norm: the largest norm, 0 or more; ``float("inf")`` changes nothing.
        norm_type: as in :meth:`grad_norm`.
        layout: as in :meth:`grad_norm`.
        error_if_nonfinite: as in :meth:`grad_norm`. Without it, an infinite norm makes finite
            gradients 0, and NaN makes all of them NaN.
        sizes: as in :meth:`grad_norm`.

    Raises:
        SpecError: also if a gradient cannot be changed in place: it is expanded, or an
            inference tensor outside inference mode.

    Cost: as :meth:`grad_norm`, and one pass over the gradients.

    Example:
        >>> linear = torch.nn.Linear(2, 2)
        >>> linear(torch.ones(1, 2)).sum().backward()
        >>> mesh.clip_grad_norm(linear, 1.0), mesh.grad_norm(linear)
        (tensor(2.4495, dtype=torch.float64), tensor(1.0000, dtype=torch.float64))
    """
    options = norm_type, layout, error_if_nonfinite, sizes
    return self._norms.clip(parameters, max_norm, *options)


class GradientNorms(OfOneProcess):
    """The norms of gradients on one mesh."""

    def __init__(self, mesh: MeshGroups, device: torch.device) -> None:
        self._mesh, self._device = mesh, device
        self._grid, self._rank = mesh.plan.layout, mesh.rank
        sizes = self._grid.sizes  # the axes along which ranks may hold copies
        self._axes = tuple(a for a, size in sizes.items() if size > 1 and not has_pipeline([a]))
        self._known: dict[Any, KnownLayout] = {}  # by the layout and the names of a call

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
        total = _reduce(own * math.nan if self._asks(read, own) else own, order, group)
        if total.isnan():
            self._compare(read, own, group, named)
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
        for gradients in by_kind(_distinct(local)):
            foreach_scale(gradients, factor)
        return norm

    def _read(self, named: Named, layout: object, sizes: object) -> Gradients:
        """Return the local gradients, after the sums that a layout or a placement asks for."""
        ties = _tie(named)
        known = self._parse(layout, sizes, tuple(tuple(names) for names, _ in ties))
        read = Gradients(known, [], [], [], {})
        sums: dict[tuple[str, ...], list[Copy]] = {}
        for index, (names, parameter) in enumerate(ties):
            gradient: Any = parameter.grad
            is_plain = gradient is None or not is_dtensor(gradient)
            place = () if is_plain else (gradient.device_mesh, gradient.placements)
            share = known.shares[index]
            if share is None or share.place != place or share.num_dims != parameter.ndim:
                share = known.shares[index] = self._share(names, parameter, place, known.layout)
                known.asked.clear()
            if gradient is not None:
                local = gradient if is_plain else gradient.to_local()
                read.local.append(local)
                if not share.counts:
                    read.others.append(local)
            elif share.sums:  # the other ranks wait for the sum
                local = torch.zeros_like(parameter)
            else:
                continue
            part = _sum_parts(gradient, share.whole) if share.whole else local
            copy = Copy(parameter if gradient is None else gradient, part, share)
            if share.sums:
                sums.setdefault(share.sums, []).append(copy)
            else:
                _add(read, copy)
        for axes, parts in sums.items():
            totals = self._sum_over(axes, [copy.local for copy in parts])
            for copy, total in zip(parts, totals, strict=True):
                _add(read, copy._replace(local=total))
        return read

    def _parse(
        self, layout: object, sizes: object, names: tuple[tuple[str, ...], ...]
    ) -> KnownLayout:
        """Return the parsed layout, and what earlier calls with these names know of each."""
        given = (tuple(x.items()) if isinstance(x, Mapping) else x for x in (layout, sizes))
        key = (*given, names)
        try:
            return self._known[key]
        except (KeyError, TypeError):  # TypeError: a value without a hash is no str
            parsed = NormLayout.of(self._grid.sizes, {} if layout is None else layout, sizes)
        unmatched = parsed.unmatched([name for tied in names for name in tied])
        return self._known.setdefault(key, KnownLayout(parsed, [None] * len(names), {}, unmatched))

    def _share(
        self, names: Sequence[str], parameter: Tensor, place: tuple[Any, ...], layout: NormLayout
    ) -> Share:
        """Return the part of this rank in the norm of a parameter."""
        name = layout.known_as(names)
        shape, num_dims = tuple(parameter.shape), parameter.ndim
        shares = layout.shares(name, shape, is_plain=not is_dtensor(parameter))
        stated = shares.stated or frozenset()
        copied = tuple(axis for axis in self._axes if axis not in stated)
        share = Share(name, place, num_dims, shares.stated is not None, stated, copied, copied)
        if not place:
            is_counted = counts(self._grid, self._rank, shares.own)
            return share._replace(counts=is_counted, sums=shares.sums)
        device_mesh, placements = place
        members, index = device_mesh.mesh.flatten().tolist(), device_mesh.get_coordinate()
        if outside := [rank for rank in members if rank not in self._grid]:
            line = f"{name} is a DTensor over rank {outside[0]}, which is not in {self._grid!r}."
            raise SpecError(line, fix="call this on a mesh that has all ranks of the DTensor.")
        pairs = zip(index, placements, strict=True)
        copies = [n for n, kind in pairs if kind.is_replicate() or kind.is_partial()]
        is_first = counts(self._grid, self._rank, shares.own, members) and not any(copies)
        whole = _whole(placements) if any(kind.is_partial() for kind in placements) else ()
        share = share._replace(counts=is_first, whole=whole)
        return self._arrange(share, shares.sums, members, whole or placements)

    def _arrange(
        self, share: Share, sums: Sequence[str], members: Sequence[int], placements: Sequence[Any]
    ) -> Share:
        """Return the share of a DTensor, with how its ranks lie on the axes that it has.

        A layout says nothing about the axes that it has.
        """
        grid, rank = self._grid, self._rank
        cut = [axis for axis in grid.axes if {*members} & {*grid.peers(rank, axis)} != {rank}]
        stated = share.stated - ({*sums} & {*cut})
        copied = tuple(axis for axis in self._axes if axis not in stated)
        along = tuple(axis for axis in copied if axis not in cut)
        box = grid.peers(rank, *cut).tolist() if cut else [rank]
        arrangement = OTHER * bool(copied)
        if sorted(members) == sorted(box):
            places = {member: place for place, member in enumerate(box)}
            order = [places[member] for member in members] if members != box else "in order"
            arrangement = f"{along} {placements} {order}" * bool(along)
            copied *= bool(along)
        return share._replace(
            stated=stated,
            copied=copied,
            along=along,
            arrangement=arrangement,
            sums=tuple(axis for axis in sums if axis not in cut),
        )

    def _sum_over(self, axes: tuple[str, ...], parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the sums over some axes. Collective over each axis."""
        wide = [part.flatten().to(self._device, _wide(part)) for part in parts]
        flat = plain(torch.cat(wide))  # complex if one of them is
        for axis in axes:
            dist.all_reduce(flat, group=self._mesh.get((axis,)))
        return torch.split(flat, [part.numel() for part in parts])

    def _asks(self, read: Gradients, own: Tensor) -> bool:
        """Return whether this rank asks all ranks to compare copies, or the globs. Local."""
        if read.known.unmatched:
            return True
        asked = read.known.asked
        calls = asked.get(names := tuple(read.presumed), 1)
        if not names or not calls or self._grid.num_ranks == 1:
            return False
        asked[names] = calls + 1
        is_time = calls <= ASKED or calls % ASKED == 0
        return is_time and are_telling(read.presumed) and bool(own.isfinite())

    def _compare(
        self, read: Gradients, own: Tensor, group: dist.ProcessGroup, named: Named
    ) -> None:
        """Compare globs without a match, and the gradients that must be copies. Collective.

        Gradients are compared if all are finite and not zero.
        """
        known, is_finite = read.known, bool(own.isfinite())
        states = [is_finite and are_telling(read.presumed), not known.unmatched]
        ready = torch.tensor(states, dtype=torch.int32, device=self._device)
        dist.all_reduce(ready, dist.ReduceOp.MIN, group=group)
        is_ready, is_matched = ready.tolist()
        if not is_matched:
            check_matches(self._mesh, known.unmatched, [name for name, _ in named], self._device)
            known.unmatched.clear()
        if is_ready:
            compare_copies(self._mesh, read.presumed, known.layout, self._device)
            known.asked[tuple(read.presumed)] = 0


def _add(read: Gradients, copy: Copy) -> None:
    """Add a gradient, after sums, to those that this rank counts or compares."""
    if copy.share.counts:
        read.counted.append(copy.local)
    if copy.share.copied:
        read.presumed[copy.share.name] = copy


def _tie(named: Named) -> list[tuple[list[str], Any]]:
    """Return each parameter with all its names."""
    ties: dict[int, tuple[list[str], Any]] = {}
    for name, parameter in named:
        ties.setdefault(id(parameter), ([], parameter))[0].append(name)
    return [*ties.values()]


def _local(gradient: Any) -> Tensor:  # noqa: ANN401
    """Return the local tensor of a gradient, which is no copy."""
    local: Tensor = gradient.to_local() if is_dtensor(gradient) else gradient
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


def _total(counted: Sequence[Tensor], order: float, device: torch.device) -> Tensor:
    """Return the sum of the powers of all elements, or the largest element: float64 ()."""
    kinds = by_kind([tensor for tensor in counted if tensor.numel()])
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
