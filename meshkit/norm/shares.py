"""Norm: the rank that counts a gradient, so that each element of a model counts once.

Each rank holds a part of every gradient, or a copy of it. The rank with coordinate 0 along all axes
that hold copies counts its own. With ``"o/tp i"`` on dp=2 tp=2 these are two::

            tp=0     tp=1
    dp=0    counts   counts     cut along tp: each rank has its own part
    dp=1    -        -          a copy along dp

The stages of a pipeline have their own parameters, unless a layout says ``=pp``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from ..call import either, is_number
from ..data.conflicts import Row, axes_along_which, content_lines
from ..errors import CALL, DisagreementError, MeshkitError, SpecError
from ..layout.axes import axis_role, check_axes_exist, closest_axes, has_pipeline, unknown_axes
from ..layout.layout import Layout
from ..redistribute.dim_sizes import parse_layout_sizes
from ..redistribute.pattern import DOTS, Dim, Side, first_match, parse_layout
from ..synonyms import STANDARD
from ..text import count_noun

NO_SIDE = Side(())
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Shares(NamedTuple):
    """The axes along which ranks do not hold copies of a gradient."""

    own: frozenset[str]  # each rank has a part of its own
    sums: tuple[str, ...] = ()  # the ranks have the parts of a sum
    stated: frozenset[str] | None = (
        None  # the axes that its side of the layout names, if it has one
    )


@dataclass(frozen=True)
class NormLayout:
    """The sides by which a user says how plain parameters are cut."""

    sizes: Mapping[str, int]  # the axes of the mesh
    sides: Mapping[str, Side]  # a glob of names to a side of a pattern; the first match counts

    @classmethod
    def of(cls, sizes: Mapping[str, int], layout: object, given: object = None) -> NormLayout:
        """Return the parsed layout; ``given`` are sizes of dims, which change no norm."""
        sides = parse_layout(layout)
        parse_layout_sizes(given, sides.values())
        for glob, side in sides.items():
            _check_side(sizes, glob, side)
        return cls(sizes, sides)

    @property
    def stated(self) -> list[frozenset[str]]:
        """The axes that each side names."""
        return [frozenset(side.types) for side in self.sides.values()]

    @property
    def sums(self) -> list[tuple[str, ...]]:
        """The axes along which each side that has a sum adds it, on this mesh."""
        sums = (self._summed(side) for side in self.sides.values())
        return [axes for axes in dict.fromkeys(sums) if axes]

    def _summed(self, side: Side) -> tuple[str, ...]:
        """Return the axes along which the ranks have the parts of a sum."""
        kinds = side.types.items()
        return tuple(a for a, kind in kinds if kind.symbol == "+" and self.sizes.get(a, 1) > 1)

    def apart(self, stated: Collection[str]) -> list[str]:
        """Return the axes along which ranks need not hold equal gradients."""
        return [axis for axis in self.sizes if axis in stated or has_pipeline([axis])]

    def unmatched(self, names: Collection[str]) -> list[str]:
        """Return the globs that match no name, which another rank may have."""
        return [g for g in self.sides if not any(fnmatchcase(name, g) for name in names)]

    def known_as(self, names: Sequence[str]) -> str:
        """Return that name of a tied parameter which the first matching glob has, or the first."""
        matching = (name for glob in self.sides for name in names if fnmatchcase(name, glob))
        return next(matching, names[0])

    def shares(self, name: str, shape: tuple[int, ...], *, is_plain: bool) -> Shares:
        """Return the axes along which ranks hold no copies of a gradient."""
        glob = next((glob for glob in self.sides if fnmatchcase(name, glob)), None)
        side = NO_SIDE if glob is None else self.sides[glob]
        if glob is not None:
            _check_shape(name, shape, glob, side)
        unknown = [axis for axis in unknown_axes(self.sizes) if axis not in side.types]
        if unknown and is_plain:  # a DTensor is a copy over axes that its mesh lacks
            raise _unknown_role_error(self.sizes, unknown[0], name, len(shape))
        own = [axis for axis in self.sizes if has_pipeline([axis])]
        for axis, kind in side.types.items():
            own = [other for other in own if other != axis] + [axis] * (kind.symbol == "/")
        stated = None if glob is None else frozenset(side.types)
        return Shares(frozenset(own), self._summed(side), stated)


def counts(layout: Layout, rank: int, own: Collection[str], members: Iterable[int] = ()) -> bool:
    """Return whether a rank counts its gradient.

    It does if its coordinate is 0 along every axis that is not in ``own``. ``members`` are the
    ranks that hold a DTensor, of which the DTensor itself chooses.
    """
    at = {axis: n if axis in own else 0 for axis, n in layout.coordinate(rank).items()}
    return layout.rank(**at) in {rank, *members}


def parse_order(norm_type: object) -> float:
    """Return the order of a norm, above 0."""
    is_text = isinstance(norm_type, str) and norm_type.strip().lower() in ("inf", "infinity")
    order = float(norm_type) if is_number(norm_type) or is_text else 0.0  # type: ignore[arg-type]
    if not order > 0:
        fix = "norm_type=2.0, or another number above 0, or float('inf')."
        raise SpecError(f"norm_type is {norm_type!r}.", fix=fix)
    return order


def parse_max_norm(max_norm: object) -> float:
    """Return the largest norm, 0 or more."""
    if is_number(max_norm) and float(max_norm) >= 0:  # type: ignore[arg-type]
        return float(max_norm)  # type: ignore[arg-type]
    raise SpecError(f"max_norm is {max_norm!r}, not a number of 0 or more.", fix="max_norm=1.0.")


def differing_error(
    layout: NormLayout, name: str, axis: str, num_dims: int, *reasons: str, is_whole: bool = False
) -> SpecError:
    """Return the error of a gradient that counts as a copy, and differs over an axis.

    ``is_whole`` says that it is a DTensor whose ranks are not all ranks of some axes.
    """
    ways = _sides(name, axis, num_dims, layout.sides)
    if is_whole:  # a sum over an axis would add the parts of one tensor
        ways[-1] = "call this on a mesh or view that has the axes of its DeviceMesh"
    return SpecError(
        f"the gradient of {name} differs over {axis}.",
        *reasons,
        f"No layout says how it is cut over {axis}, so each rank of {axis} must hold a copy of it.",
        fix=either(*ways),
        axis=axis,
    )


def form_error(
    grid: Layout, layout: NormLayout, name: str, forms: Mapping[int, str], *, is_whole: bool = False
) -> SpecError:
    """Return the error of a gradient that is missing on a rank, or has another shape there.

    A form is a dtype, a blank and a shape, with DTensor if it is one, or ``missing``.
    """
    form = next(form for form in forms.values() if " " in form)
    num_dims = len(re.findall(r"\d+", form.partition(" ")[2]))
    axis = axes_along_which(grid, forms)[0]
    lines = (f"{line}." for line in content_lines(grid, forms))
    return differing_error(layout, name, axis, num_dims, *lines, is_whole=is_whole)


def unequal_error(grid: Layout, row: Row, contents: Mapping[int, str]) -> DisagreementError:
    """Return the error of ranks whose calls differ: an option, a side, or the parts of a sum."""
    noun = row.ranks.partition(" ")[0]
    if noun == "sum":
        summary = f"the gradient of {row.name} cannot be added up: {row.ranks}."
        fix = f"a gradient of {row.name} in one shape on these ranks; where its parameter has no "
        fix += "gradient it counts as zeros, and a DTensor needs equal placements."
    elif noun == "layout":
        summary, fix = f"ranks give other layouts for {row.name}.", "one layout on all ranks."
    else:
        summary, fix = f"ranks call this with another {row.name}.", f"one {row.name} on all ranks."
    return DisagreementError(
        f"{CALL}: {summary}",
        *(f"{line}." for line in content_lines(grid, contents)),
        fix=fix,
        requests=dict(contents),
    )


def main_grad_error(name: str) -> SpecError:
    """Return the error of a parameter whose gradient lies beside ``grad``."""
    return SpecError(
        f"{name} has main_grad, as in Megatron, and no grad.",
        "The norm is that of p.grad of each parameter p.",
        fix="t = torch.empty_like(p.main_grad), t.grad = p.main_grad, and {name: t} in place of "
        "{name: p} for each such p.",
    )


def sparse_error(name: str, kind: str) -> SpecError:
    """Return the error of a gradient whose numbers do not lie at their places in memory."""
    return SpecError(
        f"the gradient of {name} is a {kind} tensor.",
        fix="p.grad = p.grad.to_dense() for this parameter p, or sparse=False in its Embedding.",
    )


def _sides(name: str, axis: str, num_dims: int, sides: Mapping[str, Side] = {}) -> list[str]:
    """Return the layouts that say that ranks of an axis hold no copies, beside what one says."""
    side = first_match(sides, name) or Side(tuple(map(Dim, LETTERS[:num_dims])))

    def layout(text: str) -> str:
        entry = f"{name!r}: {text!r}"
        if name in sides:  # the entry replaces it
            return f"layout={{**layout, {entry}}}"
        is_matched = first_match(sides, name) is not None  # the first glob that matches counts
        return f"layout={{{entry}{', **layout' * is_matched}}}"

    cut = f"{layout(str(_cut(side, axis)))} if each rank has a part of it"
    sums = f"{layout(f'{side} +{axis}'.strip())} if the ranks have parts of a sum"
    return [cut] * bool(num_dims) + [sums]


def _cut(side: Side, axis: str) -> Side:
    """Return a side whose first named dim is also cut along an axis."""
    named = next((dim for dim in side.dims if dim.name != DOTS), None)
    if named is None:
        items = [*side.items]
        if Dim("1") in items:
            items.remove(Dim("1"))
        return Side((Dim(LETTERS[0], (axis,)), *items))
    longer = Dim(named.name, (*named.axes, axis))
    return side.rewrite(lambda item: [longer if item == named else item])


def _unknown_role_error(sizes: Mapping[str, int], axis: str, name: str, num_dims: int) -> SpecError:
    roles = ", ".join(f"{axis} {axis_role(axis)}" for axis in sizes)
    copies = f"{' '.join(LETTERS[:num_dims])} ={axis}".strip()
    return SpecError(
        f"nothing says whether ranks along {axis} hold copies of {name}.",
        f"The roles of the axes, by their names: {roles}.",
        fix=either(f"layout={{{name!r}: {copies!r}}} for copies", *_sides(name, axis, num_dims)),
        axis=axis,
    )


def _check_side(sizes: Mapping[str, int], glob: str, side: Side) -> None:
    """Check that a side says how a parameter is cut over the axes of a mesh."""
    misspelt = [a for a in side.types if a not in STANDARD and closest_axes(a, [*sizes])]
    try:
        check_axes_exist(misspelt, tuple(sizes))  # any other axis that the mesh lacks has size 1
    except MeshkitError as error:
        raise error.but(summary=f"layout[{glob!r}] is {str(side)!r}: {error.summary}") from None
    for mark in side.marks:
        if mark.type.symbol == "@":
            raise SpecError(
                f"layout[{glob!r}] has {mark}; a norm takes cuts, copies and sums.",
                fix=f"={mark.axis} for copies, or o/{mark.axis} if each rank has its own.",
                axis=mark.axis,
            )
        if mark.type.symbol == "+" and has_pipeline([mark.axis]):
            raise SpecError(
                f"layout[{glob!r}] has {mark}, and stages of a pipeline have other parameters.",
                fix=f"={mark.axis}, after the gradients of tied weights are summed.",
                axis=mark.axis,
            )


def _check_shape(name: str, shape: tuple[int, ...], glob: str, side: Side) -> None:
    """Check that a side has the dims of a parameter."""
    entries = side.entries
    dots = [dim.name for dim in side.dims].count(DOTS)
    if len(entries) != len(shape) if not dots else len(entries) - 1 > len(shape):
        raise SpecError(
            f"{name} has {count_noun(len(shape), 'dim')}, and layout[{glob!r}] = {str(side)!r} "
            f"has {len(entries) - dots}{' or more' * dots}.",
            f"The shape on this rank is {shape}.",
            fix="a name for each dim of the parameter, or ... for several.",
        )
    if dots:
        return
    for index, (entry, size) in enumerate(zip(entries, shape, strict=True)):
        if not entry and size != 1:
            raise SpecError(
                f"dim {index} of {name} has {size} elements on this rank, and "
                f"layout[{glob!r}] = {str(side)!r} says 1.",
                fix="a name for the dim.",
            )
