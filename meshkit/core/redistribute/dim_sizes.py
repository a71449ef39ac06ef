"""The global sizes of dims: those that a caller gives, and those of a local tensor."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from ..errors import SpecError
from ..sequence import SequencePlan
from ..text import count_noun, format_sizes
from ..validate import parse_integer
from .cut import Coordinate, Cut
from .move import Sizes
from .pattern import DOTS, Dim, Pattern, expand_dots


def split_sizes(
    pattern: Pattern, sizes: Mapping[str, object]
) -> tuple[dict[str, int], dict[str, SequencePlan]]:
    """Return the sizes given by keyword as ints, and the sequence plans among them."""
    names = [dim.name for dim in pattern.left.dims]
    plans, numbers = {}, {}
    for name, size in sizes.items():
        if name not in names:
            known = ", ".join(n for n in names if n != DOTS)
            summary = f"the pattern has no dim {name}."
            fix = f"sizes of {known}." if known else f"leave out {name}."
            raise SpecError(summary, fix=fix)
        if isinstance(size, SequencePlan):
            plans[name] = size
        number = size.length if isinstance(size, SequencePlan) else parse_integer(size)
        if number is None or number < 0:
            raise SpecError(f"the size of {name} is {size!r}.", fix=f"{name}=4096, for example.")
        numbers[name] = number
    return numbers, plans


def sizes_on_left(
    pattern: Pattern, axes: Sizes, sizes: Sizes, plans: Mapping[str, SequencePlan]
) -> dict[str, int]:
    """Return the given sizes, with the padding of plans whose dims the left side cuts."""
    cut = {dim.name for dim in pattern.left.dims if math.prod(axes[axis] for axis in dim.axes) > 1}
    return {**sizes, **{name: plans[name].padded for name in plans.keys() & cut}}


def infer_sizes(
    pattern: Pattern,
    axes: Sizes,
    coordinate: Coordinate,
    shape: Sequence[int],
    given: Mapping[str, int],
) -> tuple[Pattern, dict[str, int]]:
    """Return the pattern without ellipsis and the global sizes, from a local shape."""
    pattern = expand_to(pattern, len(shape), f"The shape is {tuple(shape)}.")
    sizes: dict[str, int] = {}
    for entry, local in zip(pattern.left.entries, shape, strict=True):
        unknown = [dim for dim in entry if dim.name not in given]
        known = 1
        for dim in entry:
            if dim.name in given:
                sizes[dim.name] = given[dim.name]
                cut = Cut((given[dim.name],), (dim.axes,), tuple(axes.items()))
                known *= cut.shape(coordinate)[0]
        if len(unknown) > 1:
            raise _unknown_size_error([dim.name for dim in unknown], local)
        if local != known if not unknown else (local % known if known else local):
            raise _local_size_error(entry, local, known, sizes, coordinate)
        for dim in unknown:
            parts = math.prod(axes[axis] for axis in dim.axes)
            sizes[dim.name] = parts * (local // known if known else 0)
    _check_divides(pattern, axes, sizes, given)
    return pattern, sizes


def expand_to(pattern: Pattern, num_dims: int, *evidence: str) -> Pattern:
    """Return the pattern with as many dims as a local tensor has."""
    dots = [dim.name for dim in pattern.left.dims].count(DOTS)
    missing = num_dims - len(pattern.left.entries)
    if dots and missing >= -1:
        return expand_dots(pattern, missing + 1)
    if missing:
        wanted = len(pattern.left.entries)
        raise SpecError(
            f"the tensor has {count_noun(num_dims, 'dim')}, and the left side {wanted - dots}"
            f"{' or more' * bool(dots)}.",
            *evidence,
            fix="one name for each dim of the tensor on the left side, or ... for several.",
        )
    return pattern


def _unknown_size_error(names: Sequence[str], local: int) -> SpecError:
    others = ", ".join(f"{name}=64" for name in names[1:])
    return SpecError(
        f"the sizes of {' and '.join(names)} are unknown.",
        f"Together they have {local} elements on this rank.",
        fix=f"global sizes of all but one of them: {others}.",
    )


def _local_size_error(
    entry: Sequence[Dim],
    local: int,
    known: int,
    sizes: Sizes,
    coordinate: Coordinate,
) -> SpecError:
    if not entry:
        return SpecError(f"the dim 1 has {local} elements on this rank.", fix="a name for the dim.")
    text = " ".join(map(str, entry))
    return SpecError(
        f"{text} has {local} elements on this rank, and {format_sizes(sizes)} gives {known}.",
        f"This rank is at {format_sizes(coordinate)}. Sizes by keyword are global.",
        fix="the global size of the dim, or no size if it divides.",
    )


def _check_divides(pattern: Pattern, axes: Sizes, sizes: Sizes, given: Collection[str]) -> None:
    """Check that the cuts of the right side divide the dims whose size was not given."""
    for dim in pattern.right.dims:
        size, parts = sizes[dim.name], math.prod(axes[axis] for axis in dim.axes)
        if dim.name in given or size % parts == 0:
            continue
        product = " x ".join(f"{axis} {axes[axis]}" for axis in dim.axes)
        equals = f" = {parts}" if len(dim.axes) > 1 else ""
        above = -(-size // parts) * parts
        nearest = " or ".join(str(n) for n in (above - parts, above) if n)
        uneven = f"{dim.name}={size} by keyword, which allows parts of different sizes"
        summary = f"{dim.name} is {size}, which is not a multiple of {product}{equals}."
        raise SpecError(summary, fix=f"{dim.name} of {nearest}, or {uneven}.")
