"""Translate a side of a pattern into the placements of a DTensor, and back. Pure.

::

    side        placement     placement of the gradient
    s/a         Shard(i)      Shard(i)        i is the index of s
    +a          Partial()     Replicate()
    *a          Replicate()   Partial()
    =a          Replicate()   Replicate()

A DTensor has no place for the difference between ``*`` and ``=``. It is in the ``grad_placements``
of ``to_local``. The parts of a DTensor are those of ``torch.chunk``, so use even sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from ..call import quotes_call
from ..errors import SpecError
from ..layout.axes import check_axes_exist, parse_axes
from ..redistribute.pattern import DOTS, Side, parse_pattern

Axes = str | Iterable[str]
Placements = tuple[Placement, ...]


@quotes_call("placements")
def placements(side: str, axes: Axes, *, op: str = "sum") -> Placements:
    """Return the placement along each axis of a DeviceMesh for one side of a pattern. Pure.

    Args:
        side: one side of a pattern, such as ``"b s/sp d =tp"``, with a name for each dim.
        axes: the axes of the DeviceMesh, the outermost first: its ``mesh_dim_names``.
        op: the reduction of ``+``.

    Returns:
        A placement for each axis. An axis that the side does not name is ``Replicate()``.

    Raises:
        SpecError: if no placement says it: ``@``, ``...``, a cut inside brackets that is not at
            their beginning, or a dim that an inner axis cuts before an outer one.
        UnknownAxisError: if the side names an axis that is not among them.

    Example:
        >>> placements("b/dp s/tp d", "dp tp")
        (Shard(dim=0), Shard(dim=1))
    """
    parsed, names = parse_pattern(f"{side} -> {side}").left, parse_axes(axes)
    return _placements(parsed, names, op)


@quotes_call("grad_placements")
def grad_placements(side: str, axes: Axes) -> Placements:
    """Return the placements of the gradient for one side of a pattern. Pure.

    Args:
        side: as in :func:`placements`.
        axes: as in :func:`placements`.

    Returns:
        The ``grad_placements`` for ``DTensor.to_local``: those of the side with ``+`` and ``*``
        exchanged.

    Raises:
        SpecError: as :func:`placements`.
        UnknownAxisError: as :func:`placements`.

    Example:
        >>> grad_placements("b s *tp", "dp tp")
        (Replicate(), Partial(sum))
    """
    return _placements(parse_pattern(f"{side} -> {side}").mirror.left, parse_axes(axes), "sum")


@quotes_call("side")
def side(
    placements: Sequence[Placement],
    axes: Axes,
    dims: str,
    *,
    grad_placements: Sequence[Placement] | None = None,
) -> str:
    """Return the side of a pattern for the placements of a DTensor. Pure.

    Args:
        placements: a placement for each axis.
        axes: the axes of the DeviceMesh, the outermost first: its ``mesh_dim_names``.
        dims: the names of the dims, such as ``"b s d"``.
        grad_placements: the placements of the gradient. They say whether ``Replicate()`` is ``*``
            or ``=``; None is ``=`` for each of them.

    Raises:
        SpecError: if a pattern does not say it: a placement of another kind, another reduction than
            the sum, or a dim that does not exist.

    Example:
        >>> side([Shard(0), Replicate()], "dp tp", "b s d")
        'b/dp s d =tp'
    """
    names, entries = parse_axes(axes), dims.split()
    gradients = placements if grad_placements is None else grad_placements
    if not len(names) == len(placements) == len(gradients):
        counts = f"{len(placements)} placements, {len(gradients)} of gradients"
        line = f"{len(names)} axes have {counts}."
        raise SpecError(line, fix="one placement for each axis.")
    marks = []
    for axis, placement, gradient in zip(names, placements, gradients, strict=True):
        if type(placement) is Shard and -len(entries) <= placement.dim < len(entries):
            entries[placement.dim] += f"/{axis}"
        else:
            marks.append(_mark(placement, gradient) + axis)
    return " ".join([*entries, *marks])


def _mark(placement: Placement, gradient: Placement) -> str:
    """Return the symbol of a placement that cuts no dim."""
    if isinstance(placement, Replicate):
        return "*" if isinstance(gradient, Partial) else "="
    if isinstance(placement, Partial) and placement.reduce_op == "sum":
        return "+"
    line = f"no pattern with these dims says {placement}."
    raise SpecError(line, fix="Shard(dim) of a dim that exists, Replicate() or Partial().")


def _placements(side: Side, axes: tuple[str, ...], op: str) -> Placements:
    check_axes_exist([*side.types], axes)
    places: dict[str, Placement] = {}
    for mark in side.marks:
        if mark.type.symbol == "@":
            line = f"no placement says {mark}, a tensor on one rank of {mark.axis}."
            raise SpecError(line, fix=f"={mark.axis}, after mesh.redistribute.")
        places[mark.axis] = Partial(op) if mark.type.symbol == "+" else Replicate()
    for index, entry in enumerate(side.entries):
        for number, dim in enumerate(entry):
            present = [axis for axis in dim.axes if axis in axes]  # an absent one has size 1
            ordered = sorted(present, key=axes.index)
            if present != ordered:
                line = f"a DTensor cuts {dim.name} by {ordered[0]} first, as in its DeviceMesh."
                raise SpecError(line, fix="/".join([dim.name, *ordered]) + ".")
            if dim.name == DOTS:
                raise SpecError("... has no number of dims.", fix="a name for each dim.")
            if number and dim.axes:
                line = f"no placement says {dim}, which is inside a dim of the tensor."
                raise SpecError(line, fix=f"a side with {dim.name} outside the brackets.")
            places |= dict.fromkeys(dim.axes, Shard(index))
    return tuple(places.get(axis, Replicate()) for axis in axes)
