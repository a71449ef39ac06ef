"""Compare tensors on meshes with those of one rank, and word the differences. Pure.

A tensor is put together from the parts of the ranks as one side of a pattern says. Along every
other axis ranks must hold equal copies. Which axis is to blame is decided over all meshes: an
axis that a mesh has on which the tensor is right is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import DisagreementError, SpecError, format_error
from ..layout.axes import data_axes, has_pipeline
from ..layout.layout import Layout
from ..redistribute.dim_sizes import check_sizes_known, parse_layout_sizes
from ..redistribute.move import Cut
from ..redistribute.pattern import (
    Dim,
    Side,
    drop_axes,
    expand_dots,
    first_match,
    parse_pattern,
    parse_side,
)
from ..text import count_noun, format_sizes, group_by, name_ranks
from .causes import TOLERANCE, Array, Copies, Fit, distances, find_fits

ROUNDING = 1e-12  # a smaller relative error of float64 is not the same on every processor
FLOOR = 1e-6  # of the largest value of all tensors; smaller differences are relative to it

Parts = Mapping[int, Array | None]  # rank -> its part; None stands for zeros
Tensors = Mapping[str, Parts]  # name -> the parts of the ranks that return it


class NumbersError(DisagreementError, AssertionError):
    """Numbers of a mesh that are not those of one rank."""


@dataclass(frozen=True)
class Difference:
    """A tensor that is not that of one rank, or a step that did not end.

    Attributes:
        mesh: the mesh, as the caller wrote it.
        name: the name of the tensor; "" for a step that did not end.
        axes: the axes to blame; several if they could not be told apart, or only act together.
        cause: ``"scaled"``, ``"missing sum"``, ``"missing mean"``, ``"one part"``, ``"order"``,
            ``"padding"`` or ``"unknown"``; for a step ``"raised"`` or ``"hung"``.
        factor: the tensor divided by that of one rank, if it is scaled; else None.
        text: the lines of the report: the evidence, and the fix if it is known.
    """

    mesh: str
    name: str
    axes: tuple[str, ...]
    cause: str
    factor: float | None
    text: str


@dataclass(frozen=True)
class Held:
    """The tensors of one mesh, those of one rank, and how they are cut."""

    mesh: str
    layout: Layout
    tensors: Tensors
    one: Mapping[str, Array | None]


@dataclass(frozen=True)
class Rules:
    """The layout and the reduction of tensors by the globs of their names."""

    layout: Mapping[str, str]
    reduce: Mapping[str, str]
    sizes: Any = None  # of dims in brackets

    def __post_init__(self) -> None:
        parse_layout_sizes(self.sizes, map(parse_side, self.layout.values()))
        for glob, how in self.reduce.items():
            if how not in ("avg", "sum"):
                raise SpecError(f"reduce={{{glob!r}: {how!r}}}.", fix='"avg" or "sum".')

    def side_of(self, name: str, layout: Layout, ndim: int) -> Side | None:
        """Return the side of a tensor, without the axes that the mesh does not have."""
        text = first_match(self.layout, name)
        if text is None:
            return None
        pattern = drop_axes(parse_pattern(f"{text} -> {text}"), layout.axes)
        side = expand_dots(pattern, ndim - len(pattern.left.entries) + 1).left
        if len(side.entries) != ndim:
            line = f"{name} has {count_noun(ndim, 'dim')}, and {text!r} has {len(side.entries)}."
            raise SpecError(line, fix="one name for each dim, or ... for several.")
        if any(dim.axes for entry in side.entries for dim in entry[1:]):
            check_sizes_known(name, side, self.sizes or {})
        return side


@dataclass
class _Cells:
    """The parts of a tensor by the indices of their ranks along some axes, which become fewer."""

    axes: list[str]
    cells: dict[tuple[int, ...], Array]

    def merge(self, axis: str, join: str, dim: int = 0) -> None:
        """Replace the cells along an axis by one."""
        place = self.axes.index(axis)
        cells = ((key[:place] + key[place + 1 :], self.cells[key]) for key in sorted(self.cells))
        groups = group_by(cells)
        self.axes.remove(axis)
        self.cells.clear()
        for key, group in groups.items():
            total = np.concatenate(group, dim) if join == "/" else np.asarray(sum(group))
            self.cells[key] = total / len(group) if join == "avg" else total

    def join(
        self, name: str, dim: int, entry: Sequence[Dim], given: Mapping[str, int], layout: Layout
    ) -> None:
        """Join the parts of a dim; a cut inside brackets makes it several dims meanwhile."""
        is_inner = any(part.axes for part in entry[1:])
        parts = entry if is_inner else entry[:1]
        for key, shape in self._split(name, dim, parts, given, layout) if is_inner else ():
            x = self.cells[key]
            self.cells[key] = x.reshape(*x.shape[:dim], *shape, *x.shape[dim + 1 :])
        for number, part in enumerate(parts):
            for axis in reversed(part.axes):
                self.merge(axis, "/", dim + number)
        for key, x in self.cells.items() if is_inner else ():
            end = dim + len(parts)
            self.cells[key] = x.reshape(*x.shape[:dim], math.prod(x.shape[dim:end]), *x.shape[end:])

    def _split(
        self, name: str, dim: int, entry: Sequence[Dim], given: Mapping[str, int], layout: Layout
    ) -> list[tuple[tuple[int, ...], list[int]]]:
        """Return the sizes of the dims of a pair of brackets for each part.

        The size of at most one dim is not given. A part without elements does not show it.
        """
        axes = tuple(layout.sizes.items())
        free = {axis for part in entry if part.name not in given for axis in part.axes}
        shapes, sizes_of_free = [], dict[tuple[int, ...], int]()
        for key, x in self.cells.items():
            at = dict(zip(self.axes, key, strict=True))
            known = {
                part.name: int(Cut((given[part.name],), (part.axes,), axes).shape(at)[0])
                for part in entry
                if part.name in given
            }
            place, share = (*(at[axis] for axis in sorted(free)),), math.prod(known.values())
            if share:
                sizes_of_free.setdefault(place, x.shape[dim] // share)
            shapes.append((key, place, known))
        split = []
        for key, place, known in shapes:
            sizes = [known.get(part.name, sizes_of_free.get(place, 0)) for part in entry]
            size = self.cells[key].shape[dim]
            if math.prod(sizes) != size:
                text = " ".join(map(str, entry))
                at = dict(zip(self.axes, key, strict=True))
                raise SpecError(
                    f"{name}: ({text}) has {size} elements at {format_sizes(at)}, and the given "
                    f"sizes make {math.prod(sizes)}.",
                    fix="other sizes=, or another side.",
                )
            split.append((key, sizes))
        return split


def gather_copies(name: str, parts: Parts, one: Array, layout: Layout, rules: Rules) -> Copies:
    """Return the copies of a tensor on a mesh, put together from the parts of its ranks."""
    arrays = [part for part in parts.values() if part is not None]
    zeros = np.zeros_like(arrays[0] if arrays else one)
    side = rules.side_of(name, layout, zeros.ndim) if arrays else None
    types = side.types if side else {}
    cells = {
        tuple(layout.coordinate(rank).values()): zeros if part is None else part
        for rank, part in parts.items()
        if all(
            layout.coordinate(rank)[axis] == kind.holder or layout.size(axis) == 1
            for axis, kind in types.items()
            if kind.symbol == "@"
        )
    }
    joined = _Cells(list(layout.axes), cells)
    for dim, entry in enumerate(side.entries if side else ()):
        joined.join(name, dim, entry, rules.sizes or {}, layout)
    how = first_match(rules.reduce, name)
    reduced = [axis for axis in data_axes(layout.sizes) if how and axis not in types]
    for axis in [*(axis for axis, kind in types.items() if kind.symbol == "+"), *reduced]:
        joined.merge(axis, how if how and axis in reduced else "+")
    held = [axis for axis, kind in types.items() if kind.symbol == "@"]
    for axis in [axis for axis in joined.axes if layout.size(axis) == 1 or axis in held]:
        joined.merge(axis, "+")
    sizes = {axis: size for axis, size in layout.sizes.items() if size > 1}
    entries = side.entries if side else ((),) * max(one.ndim, zeros.ndim)
    cuts = [tuple(a for dim in entry[:1] for a in dim.axes if a in sizes) for entry in entries]
    cuts += [()] * (one.ndim - len(cuts))
    return Copies(sizes, tuple(joined.axes), cells, tuple(cuts))


def lacking_ranks(layout: Layout, holders: Iterable[int]) -> list[int]:
    """Return the ranks that must hold a tensor and do not; stages of a pipeline have their own."""
    stages = [axis for axis in layout.axes if has_pipeline([axis])]

    def stage(rank: int) -> tuple[int, ...]:
        return tuple(layout.coordinate(rank)[axis] for axis in stages)

    held = {*holders}
    holding = {stage(rank) for rank in held}
    return [r for r in range(layout.num_ranks) if r not in held and stage(r) in holding]


@dataclass(frozen=True)
class Verdict:
    """The comparison of one tensor on one mesh with the tensor of one rank. No fit: it is equal."""

    run: Held
    name: str
    residual: float
    fits: tuple[Fit, ...] = ()
    evidence: str = ""

    @property
    def long_axes(self) -> tuple[str, ...]:
        """The axes of the mesh that are longer than 1."""
        return tuple(axis for axis, size in self.run.layout.sizes.items() if size > 1)

    @property
    def suspects(self) -> tuple[Fit, ...]:
        """The hypotheses, those that name no axis once for each axis of the mesh."""
        axes, fits = self.long_axes, self.fits
        named = ((fit.axes and [fit]) or [fit._replace(axes=(a,)) for a in axes] for fit in fits)
        return tuple(fit for some in named for fit in some)


@np.errstate(invalid="ignore", over="ignore")  # inf and NaN are compared like other numbers
def judge(run: Held, name: str, floor: float, rules: Rules) -> Verdict:
    """Return the comparison of a tensor on one mesh."""
    parts = run.tensors.get(name, {})
    absent = lacking_ranks(run.layout, parts) if parts else [*range(run.layout.num_ranks)]
    unknown = (Fit(9, "unknown", ()),)
    if absent:
        return Verdict(run, name, np.inf, unknown, f"{name_ranks(absent)} did not return it.")
    if name not in run.one:
        return Verdict(run, name, np.inf, unknown, "one rank did not return it.")
    given = [part for part in [run.one[name], *parts.values()] if part is not None]
    one = run.one[name]
    if one is None:
        one = np.zeros_like(given[0]) if given else np.zeros(())
    copies = gather_copies(name, parts, one, run.layout, rules)
    worst = copies.worst(one, floor)
    if worst <= TOLERANCE:
        return Verdict(run, name, worst)
    fits = find_fits(copies, one, floor) or unknown
    return Verdict(run, name, worst, tuple(fits), _largest_difference(copies, one))


def find_differences(runs: Sequence[Held], rules: Rules) -> Report:
    """Return the report of the tensors of all meshes."""
    verdicts = []
    for run in runs:
        arrays = [x[np.isfinite(x)] for x in run.one.values() if x is not None]
        floor = FLOOR * max((np.abs(x).max(initial=0) for x in arrays), default=0.0)
        names = dict.fromkeys([*run.one, *run.tensors])
        verdicts += [judge(run, name, floor, rules) for name in names]
    differences = [
        _explain(verdict, [v for v in verdicts if v.name == verdict.name and v is not verdict])
        for verdict in verdicts
        if verdict.fits
    ]
    right = [verdict.residual for verdict in verdicts if not verdict.fits]
    meshes = dict.fromkeys(run.mesh for run in runs)
    names = dict.fromkeys(verdict.name for verdict in verdicts)
    return Report(tuple(meshes), tuple(names), tuple(differences), max(right, default=0.0))


def _largest_difference(copies: Copies, one: Array) -> str:
    """Return where a copy differs most, with both values."""
    shapes = {cell.shape: None for cell in copies.cells.values()}
    if [*shapes] != [one.shape]:
        is_part = all(
            len(shape) == one.ndim
            and all(small <= size for small, size in zip(shape, one.shape, strict=True))
            for shape in shapes
        )
        of = "a part of that of one rank," if is_part else "that of one rank is"
        return f"its shape is {' or '.join(map(str, shapes))}, {of} {one.shape}."
    errors = {key: distances(cell, one) for key, cell in copies.cells.items()}
    key = max(errors, key=lambda key: float(errors[key].max(initial=0)))
    index = np.unravel_index(int(errors[key].argmax()), one.shape)
    where = f" at {[int(i) for i in index]}" if one.ndim else ""
    place = format_sizes(dict(zip(copies.axes, key, strict=True)))
    ranks = f" on the rank with {place}" if place else ""
    value, wanted = copies.cells[key][index], one[index]
    return f"the largest difference is{where}{ranks}: {value:.6g}, on one rank {wanted:.6g}."


def _narrow(verdict: Verdict, others: Sequence[Verdict]) -> list[Fit]:
    """Return the preferred hypotheses that agree with the other meshes.

    Three filters come one after the other. One that would leave no hypothesis is skipped. First, no
    axis of the hypothesis is on a mesh on which the tensor is right. Second, each mesh on which the
    tensor is wrong has one of its axes. Third, the same hypothesis holds on these meshes.
    """
    fits = [*verdict.suspects]
    right = {axis for other in others if not other.fits for axis in other.long_axes}
    wrong = [other for other in others if other.fits]

    def claims(fit: Fit, other: Verdict) -> bool:
        axes = {*fit.axes} & {*other.long_axes}
        return any(f.cause == fit.cause and {*f.axes} == axes for f in other.suspects)

    fits = [fit for fit in fits if not {*fit.axes} & right] or fits
    fits = [f for f in fits if all({*f.axes} & {*other.long_axes} for other in wrong)] or fits
    fits = [fit for fit in fits if all(claims(fit, other) for other in wrong)] or fits
    best = min((fit.priority, len(fit.axes)) for fit in fits)
    return [fit for fit in fits if (fit.priority, len(fit.axes)) == best]


def _explain(verdict: Verdict, others: Sequence[Verdict]) -> Difference:
    """Return the difference with the cause that fits best over all meshes."""
    fits = _narrow(verdict, others) if verdict.suspects else [Fit(9, "unknown", ())]
    fit = fits[0]
    axes = tuple(dict.fromkeys(axis for some in fits for axis in some.axes))
    named = " or ".join(" and ".join(some.axes) for some in fits)
    lines, fix = _describe(fit, named, verdict)
    headline = f"{verdict.name} on {verdict.run.mesh} is not that of one rank."
    text = format_error(headline, *lines, fix=fix)
    return Difference(verdict.run.mesh, verdict.name, axes, fit.cause, fit.factor, text)


def _describe(fit: Fit, axes: str, verdict: Verdict) -> tuple[list[str], str]:
    """Return the evidence for a cause, and a fix or ""."""
    if fit.cause == "scaled":
        return _describe_scale(fit, axes, verdict.name)
    if fit.cause.startswith("missing"):
        return _describe_parts(fit, axes, verdict.name)
    if fit.cause == "unknown":
        evidence = verdict.evidence[:1].upper() + verdict.evidence[1:]
        blame = f"The cause is unknown; {axes} may be to blame."
        fix = f"give layout= if {verdict.name} is cut." if "a part of" in evidence else ""
        return [evidence, *([blame] if axes else [])], fix
    if fit.cause == "one part" and "own block" in fit.detail:
        return [fit.detail], f"give layout= if {verdict.name} is cut, or all-gather it over {axes}."
    return [fit.detail, *([f"The mistake is over {axes}."] if axes else [])], ""


def _describe_scale(fit: Fit, axes: str, name: str) -> tuple[list[str], str]:
    size, factor = fit.detail.format(f"the size of {axes}"), fit.factor or 0.0
    line = f"It is {factor:.6g} times that of one rank ({_precision(fit.error)}): {size}."
    if "root" in fit.detail:
        counted = f"The squares are counted once for each rank of {axes}."
        return [line, counted], "mesh.grad_norm(model) counts each part once."
    if factor > 1:
        return [line], f"leave out a sum over {axes}, or divide by the size."
    fix = f"leave out a division by the size of {axes}, or a mean in place of a sum"
    # more data ranks run fewer micro batches each
    is_accumulated = name.startswith("grad") and data_axes(dict.fromkeys(fit.axes, 2))
    weight = "; in an accumulation, (loss * micro.weight).backward()" if is_accumulated else ""
    return [line], f"{fix}{weight}."


def _describe_parts(fit: Fit, axes: str, name: str) -> tuple[list[str], str]:
    is_gradient, how = name.startswith("grad"), fit.cause.removeprefix("missing ")
    noun, place = ("gradients", "backward") if is_gradient else ("values", "forward")
    times = "" if fit.factor is None else f"{fit.factor:.6g} times "
    lines = [
        f"Ranks of {axes} hold different {noun}; "
        f"their {how} is {times}that of one rank ({_precision(fit.error)}).",
        f"An all-reduce over {axes} is missing in the {place}.",
    ]
    if how == "mean" or (is_gradient and {*fit.axes} <= {*data_axes(dict.fromkeys(fit.axes, 1))}):
        group = ", ".join(f'"{axis}"' for axis in fit.axes)
        return lines, f"the {how} of the {noun} over mesh.group({group})."
    symbols = "=*" if is_gradient else "+="
    before, after = (" ".join(symbol + axis for axis in fit.axes) for symbol in symbols)
    where = " where the weight is used" if is_gradient else ""
    return lines, f'"... {before} -> ... {after}"{where}.'


def _precision(error: float) -> str:
    """Return a relative error as text, without a figure that another processor rounds otherwise."""
    return f"to {error:.0e}" if error > ROUNDING else "up to rounding"


@dataclass(frozen=True)
class Report:
    """The result of a comparison.

    Attributes:
        meshes: the meshes, as the caller wrote them.
        names: the names of the tensors that were compared.
        differences: the tensors that differ, and the steps that did not end.
        rounding: the largest residual of the tensors that are those of one rank.
    """

    meshes: tuple[str, ...]
    names: tuple[str, ...]
    differences: tuple[Difference, ...]
    rounding: float = 0.0

    @property
    def _known_first(self) -> list[Difference]:
        return sorted(self.differences, key=lambda row: row.cause == "unknown")

    def __str__(self) -> str:
        """Return the first difference with a known cause in full, and a line for each other one.

        An error in one layer makes other gradients wrong too, and those have no simple cause.
        """
        count = f"{count_noun(len(self.names), 'tensor')} on {count_noun(len(self.meshes), 'mesh')}"
        if not self.differences:
            return f"{count}: all are those of one rank ({_precision(self.rounding)})."
        first, *others = self._known_first
        lines = [f"  {_line(difference)}" for difference in others]
        return "\n".join([first.text, *(["Also:"] if lines else []), *lines])

    def raise_if_different(self) -> None:
        """Raise the report as an error, if a tensor differs or a step did not end.

        Raises:
            NumbersError: an AssertionError and a :class:`meshkit.DisagreementError`.
        """
        if not self.differences:
            return
        first, *others = self._known_first
        summary, *evidence = map(str.strip, first.text.splitlines())
        fix = evidence.pop().removeprefix("Fix: ") if "\n  Fix: " in first.text else ""
        raise NumbersError(summary, *evidence, *(f"Also {_line(row)}." for row in others), fix=fix)


def _line(difference: Difference) -> str:
    """Return a difference in one line."""
    if not difference.name:
        return difference.text.splitlines()[0].rstrip(".")
    over = f" over {' or '.join(difference.axes)}" if difference.axes else ""
    factor = f" by {difference.factor:.6g}" if difference.factor is not None else ""
    return f"{difference.mesh}: {difference.name}: {difference.cause}{factor}{over}"
