"""The norm of all gradients of a model on a mesh, and their clipping: one collective a call.

Each rank adds up the gradients that it counts, and an all-reduce gives the sum of all ranks, and
whether all have the same ``max_norm``. Some calls also compare the gradients that must be copies of
each other. All ranks must then take part, and NaN in the sum is how one rank asks the others,
without a second collective::

    rank 0    own sum 3.0, asks for a comparison    adds NaN    reads NaN    compares    adds 3.0
    rank 1    own sum 5.0                           adds 5.0    reads NaN    compares    adds 5.0

If a gradient itself is NaN or infinite, the sum is not finite either. The ranks then meet in the
same comparison, find nothing to compare, and the second sum is the true result: not finite.

A rank that refuses its arguments adds NaN too, and so all ranks raise. So do ranks whose call has
parts of sums, or is the first one of its kind, which all ranks compare (calls.py).

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
from ..data.checks import Named, announce_refusal, name_tied_parameters
from ..data.conflicts import Holdings
from ..errors import SpecError
from ..groups.registry import MeshGroups
from ..launch.of_one_process import OfOneProcess
from ..launch.tensors import is_dtensor, plain
from ..launch.torch_program import foreach_scale
from ..layout.axes import has_pipeline
from .calls import NormCall, compare_norm_calls, state_call
from .copies import Copy, Share, are_telling, by_kind, check_matches, compare_copies
from .shares import NormLayout, counts, parse_max_norm, parse_order
from .totals import (
    distinct,
    local_part,
    nonfinite_error,
    read_gradient,
    reduce_total,
    sum_parts,
    summed_placements,
    tie_names,
    total_of,
    wide_dtype,
)

ASKED = 100  # the first calls at which a rank asks for a comparison; later it asks every 100th call


class KnownLayout(NamedTuple):
    """The parsed layout of some names, and what earlier calls know of them."""

    layout: NormLayout
    shares: list[Share | None]  # of each parameter
    # names to the calls at which this rank has asked for a comparison; 0 after it
    asked: dict[tuple[str, ...], int]
    unmatched: list[str]  # the globs that match no name of this rank, until ranks compare them
    compared: set[object]  # the kinds of calls that all ranks have compared


class Gradients(NamedTuple):
    """The gradients of one call, as this rank holds them."""

    known: KnownLayout
    local: list[Tensor]  # all of them, to be scaled
    counted: list[Tensor]  # those that this rank counts; those of sums after the sum
    others: list[Tensor]  # those that another rank counts: a NaN in one of them counts too
    presumed: dict[str, Copy]  # those that must be copies along some axes
    pending: list[Copy]  # the parts of sums that are still to be added, by name


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
        SpecError: if the layout is invalid or does not fit a parameter, or if a gradient is sparse,
            or lies in ``main_grad`` while ``grad`` is None. On all ranks, if a glob matches no
            parameter of any rank, or if a gradient is no copy where its layout says nothing.
        DisagreementError: if another rank refuses its arguments, or ranks call with other options
            or layouts, or the parts of a sum do not fit.
        NonfiniteError: if ``error_if_nonfinite``, and the norm is not finite.

    Cost: one all-reduce of 72 bytes, whose result is read on the host. With ``+`` or partial
    DTensors, two more of 20 bytes, and those of the sums. The first call also compares the calls of
    all ranks, and sends plain gradients over their axes, once.

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
        *limit: object,
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the norm, and all local gradients. See :meth:`meshkit.Mesh.grad_norm`.

        ``limit`` is ``max_norm``, if the gradients are scaled after it.
        """
        group = self._mesh.collective_group(())
        try:
            most = parse_max_norm(*limit) if limit else None
            order, named = parse_order(norm_type), name_tied_parameters(parameters)
            call = NormCall(order, most, bool(error_if_nonfinite))
            read = self._read(named, layout, sizes, is_clipped=bool(limit))
            own = self._own_total(read, order)
        except Exception as error:  # the other ranks wait in the sum, so this one joins it
            nan = torch.full((), math.nan, dtype=torch.float64, device=self._device)
            reduce_total(nan, 2.0, group, None)
            self._vote([False, True, True], group)
            announce_refusal(self._mesh, error, self._device)
            raise
        asks = self._asks(read, own)
        is_asked = asks or bool(read.pending) or call.kind not in read.known.compared
        total = reduce_total(own * math.nan if is_asked else own, order, group, most)
        if total.is_nan:
            own = self._meet(read, own, call, group, named, asks=asks)
            total = reduce_total(own, order, group, most)
        if not total.is_alike:
            compare_norm_calls(self._mesh, self._state(read, call, named), self._device)
        norm = total.value if order in (1, math.inf) else total.value.pow(1 / order)
        if error_if_nonfinite and not norm.isfinite():
            raise nonfinite_error(norm, named)
        return norm.to(read.local[0].device if read.local else self._device), read.local

    @torch.no_grad()
    def clip(self, parameters: object, max_norm: object, *options: Any) -> Tensor:  # noqa: ANN401
        """Scale all gradients, and return their norm. See :meth:`meshkit.Mesh.clip_grad_norm`."""
        norm, local = self.measure(parameters, *options, max_norm)
        factor = (parse_max_norm(max_norm) / (norm + 1e-6)).clamp(max=1.0)
        for gradients in by_kind(distinct(local)):
            foreach_scale(gradients, factor)
        return norm

    def _read(self, named: Named, layout: object, sizes: object, *, is_clipped: bool) -> Gradients:
        """Return the local gradients, and the parts of sums. Local."""
        ties = tie_names(named)
        known = self._parse(layout, sizes, tuple(tuple(names) for names, _ in ties))
        read = Gradients(known, [], [], [], {}, [])
        for index, (names, parameter) in enumerate(ties):
            gradient = read_gradient(names[0], parameter, is_clipped=is_clipped)
            holder: Any = parameter if gradient is None else gradient
            is_plain = not is_dtensor(holder)
            if gradient is None and not is_plain and not known.layout.sums:
                continue
            place = () if is_plain else (holder.device_mesh, holder.placements)
            share = known.shares[index]
            form = parameter.shape, parameter.dtype
            if share is None or share.place != place or share.form != form:
                share = known.shares[index] = self._share(names, parameter, place, known.layout)
                known.asked.clear()
                known.compared.clear()
            if gradient is not None:
                local = local_part(gradient)
                read.local.append(local)
                if not share.counts:
                    read.others.append(local)
            elif share.sums:  # the other ranks wait for the sum
                local = torch.zeros_like(local_part(parameter))
            else:
                continue
            copy = Copy(holder, local, share)
            if share.copied:
                read.presumed[share.name] = copy
            if share.sums or share.whole:
                read.pending.append(copy)
            elif share.counts:
                read.counted.append(local)
        read.pending.sort(key=lambda copy: copy.share.name)  # in one order on all ranks
        return read

    def _own_total(self, read: Gradients, order: float) -> Tensor:
        """Return what this rank adds to the norm, or a number that is not finite. Local."""
        own = total_of(read.counted, order, self._device)
        rest = total_of(read.others, math.inf, self._device)
        return own.where(rest.isfinite(), own + rest)

    def _add_pending(self, read: Gradients) -> None:
        """Add up the parts of sums. Collective over their axes, and over partial DTensors."""
        sums: dict[tuple[str, ...], list[Copy]] = {}
        for copy in read.pending:
            if copy.share.whole:
                copy = copy._replace(local=sum_parts(copy.gradient, copy.share.whole))
            sums.setdefault(copy.share.sums, []).append(copy)
        for axes, copies in sorted(sums.items(), key=lambda pair: pair[0]):
            parts = [copy.local for copy in copies]
            for copy, total in zip(copies, self._sum_over(axes, parts), strict=True):
                if copy.share.counts:
                    read.counted.append(total)
                if copy.share.copied:
                    read.presumed[copy.share.name] = copy._replace(local=total)

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
        known = KnownLayout(parsed, [None] * len(names), {}, unmatched, set())
        return self._known.setdefault(key, known)

    def _share(
        self, names: Sequence[str], parameter: Tensor, place: tuple[Any, ...], layout: NormLayout
    ) -> Share:
        """Return the part of this rank in the norm of a parameter."""
        name = layout.known_as(names)
        shape, form = tuple(parameter.shape), (parameter.shape, parameter.dtype)
        shares = layout.shares(name, shape, is_plain=not is_dtensor(parameter))
        stated = shares.stated or frozenset()
        copied = tuple(axis for axis in self._axes if axis not in stated)
        share = Share(name, place, form, shares.stated is not None, stated, copied, copied)
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
        is_partial = any(kind.is_partial() for kind in placements)
        whole = summed_placements(placements) if is_partial else ()
        share = share._replace(counts=is_first, whole=whole, sums=shares.sums)
        return share.arranged(self._grid, self._rank, self._axes, members, whole or placements)

    def _sum_over(self, axes: tuple[str, ...], parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the sums over some axes. Collective over each axis."""
        wide = [part.flatten().to(self._device, wide_dtype(part)) for part in parts]
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

    def _meet(
        self,
        read: Gradients,
        own: Tensor,
        call: NormCall,
        group: dist.ProcessGroup,
        named: Named,
        *,
        asks: bool,
    ) -> Tensor:
        """Compare calls and copies, and add up the parts of sums, if a rank asks. Collective.

        Returns:
            what this rank adds to the norm, after sums.
        """
        known = read.known
        votes = [True, call.kind in known.compared, not asks]
        no_errors, all_old, no_asks = self._vote(votes, group)
        if not (no_errors and all_old):
            compare_norm_calls(self._mesh, self._state(read, call, named), self._device)
            known.compared.add(call.kind)
        if read.pending:
            self._add_pending(read)
            own = self._own_total(read, call.order)
        if not no_asks:
            self._compare(read, own, group, named)
        return own

    def _state(self, read: Gradients, call: NormCall, named: Named) -> Holdings:
        """Return what this rank calls with. Local."""
        layout = read.known.layout
        names = {tied[0]: layout.known_as(tied) for tied, _ in tie_names(named)}
        places = (p.grad if p.grad is not None else p for _, p in named)
        meshes = {x.device_mesh: None for x in places if is_dtensor(x)}
        members = [mesh.mesh.flatten().tolist() for mesh in meshes]
        return state_call(self._mesh, call, layout, names, read.pending, members)

    def _vote(self, votes: Sequence[bool], group: dist.ProcessGroup) -> list[bool]:
        """Return for each question whether all ranks say yes. Collective."""
        all_votes = torch.tensor(votes, dtype=torch.int32, device=self._device)
        dist.all_reduce(all_votes, dist.ReduceOp.MIN, group=group)
        return [bool(vote) for vote in all_votes.tolist()]

    def _compare(
        self, read: Gradients, own: Tensor, group: dist.ProcessGroup, named: Named
    ) -> None:
        """Compare globs without a match, and the gradients that must be copies. Collective.

        Gradients are compared if all are finite and not zero.
        """
        known, is_finite = read.known, bool(own.isfinite())
        is_telling = is_finite and are_telling(read.presumed)
        is_ready, is_matched = self._vote([is_telling, not known.unmatched], group)
        if not is_matched:
            check_matches(self._mesh, known.unmatched, [name for name, _ in named], self._device)
            known.unmatched.clear()
        if is_ready:
            compare_copies(self._mesh, read.presumed, known.layout, self._device)
            known.asked[tuple(read.presumed)] = 0
