"""The global sizes of dims: those that the caller gives, and those of a local shape."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ..call import parse_integer
from ..errors import SpecError
from ..layout.sequence import SequencePlan
from ..synonyms import ARGUMENTS
from ..text import count_noun, format_sizes
from .move import Coordinate, Cut, GivenSizes, Sizes, count_parts
from .pattern import DOTS, Pattern, Side, expand_dots


def merge_dim_sizes(sizes: GivenSizes | None, dims: GivenSizes) -> GivenSizes:
    """Return the sizes of a mapping and those given by keyword."""
    if not sizes:
        return dims
    if not isinstance(sizes, Mapping):
        fix = 'sizes={"to": 4096}, for example.'
        raise SpecError(f"sizes is {sizes!r}, not a mapping.", fix=fix)
    for name in sizes.keys() & dims.keys():
        summary = f"the size of {name} is in sizes= and given by keyword."
        raise SpecError(summary, fix="one of the two sizes.")
    return {**sizes, **dims}


def parse_layout_sizes(sizes: object, sides: Iterable[Side]) -> dict[str, int]:
    """Return the checked sizes of dims of the sides of a layout; one size for each name of a dim.

    Raises:
        SpecError: if ``sizes`` is no mapping of dims of these sides to whole numbers of 0 or more.
    """
    names = dict.fromkeys(dim.name for side in sides for dim in side.dims if dim.name != DOTS)
    if not isinstance(sizes, Mapping | None):
        fix = 'sizes={"qkv": 3}, for example.'
        raise SpecError(f"sizes is {sizes!r}, not a mapping.", fix=fix)
    numbers = {}
    for name, size in (sizes or {}).items():
        if name not in names:
            known = ", ".join(names)
            fix = f"sizes of {known}." if known else "leave out sizes."
            raise SpecError(f"the layout has no dim {name}.", fix=fix)
        number = parse_integer(size)
        if number is None or number < 0:
            fix = f"sizes={{{name!r}: 3}}, for example."
            raise SpecError(f"the size of {name} is {size!r}.", fix=fix)
        numbers[name] = number
    return numbers


def check_sizes_known(tensor: str, side: Side, given: Collection[str]) -> None:
    """Raise if the sizes of several dims in one pair of brackets are unknown."""
    for entry in side.entries:
        unknown = [dim.name for dim in entry if dim.name not in given]
        if len(unknown) > 1:
            example = ", ".join(f"{name!r}: 64" for name in unknown[1:])
            raise SpecError(
                f"{tensor}: the sizes of {' and '.join(unknown)} are unknown.",
                f"The side is {str(side)!r}.",
                fix=f"global sizes of all but one of them, such as sizes={{{example}}}.",
            )


def split_dim_sizes(
    pattern: Pattern, sizes: Mapping[str, object]
) -> tuple[dict[str, int], dict[str, SequencePlan]]:
    """Return the sizes given by keyword as ints, in pattern order, and the plans among them."""
    names = [dim.name for dim in pattern.left.dims]
    plans, numbers = {}, {}
    for name, size in sizes.items():
        if name not in names:
            known = ", ".join(n for n in names if n != DOTS)
            summary = f"the pattern has no dim {name}."
            fix = f"sizes of {known}." if known else f"leave out {name}."
            if ARGUMENTS.get(name) == "op" and isinstance(size, str):
                fix = f"op={size!r}, an option of mesh.redistribute."
            raise SpecError(summary, fix=fix)
        if isinstance(size, SequencePlan):
            plans[name] = size
        number = size.length if isinstance(size, SequencePlan) else parse_integer(size)
        if number is None or number < 0:
            raise SpecError(f"the size of {name} is {size!r}.", fix=f"{name}=4096, for example.")
        numbers[name] = number
    return {name: numbers[name] for name in names if name in numbers}, plans


def sizes_on_left(
    pattern: Pattern, axes: Sizes, sizes: Sizes, plans: Mapping[str, SequencePlan]
) -> dict[str, int]:
    """Return the given sizes, with the padding of plans whose dims the left side cuts."""
    cut = {dim.name for dim in pattern.left.dims if count_parts(dim, axes) > 1}
    return {**sizes, **{name: plans[name].padded for name in plans.keys() & cut}}


def infer_dim_sizes(
    pattern: Pattern,
    axes: Sizes,
    coordinate: Coordinate,
    shape: Sequence[int],
    given: Sizes,
    *,
    is_dtensor: bool = False,
    is_state: bool = False,
) -> tuple[Pattern, dict[str, int]]:
    """Return the pattern without ellipsis and the global sizes, from a local shape.

    The parts of a state on the right side may differ in size, as its target states their shapes.
    """
    pattern = expand_to(pattern, len(shape), f"The shape is {tuple(shape)}.")
    sizes: dict[str, int] = {}
    for entry, local in zip(pattern.left.entries, shape, strict=True):
        unknown = [dim for dim in entry if dim.name not in given]
        known = 1
        for dim in entry:
            if dim.name in given:
                sizes[dim.name] = given[dim.name]
                cut = Cut((given[dim.name],), (dim.axes,), tuple(axes.items()), is_dtensor)
                known *= cut.shape(coordinate)[0]
        if len(unknown) > 1:
            names = [dim.name for dim in unknown]
            raise SpecError(
                f"the sizes of {' and '.join(names)} are unknown.",
                f"Together they have {local} elements on this rank.",
                fix="global sizes of all but one of them: "
                f"{', '.join(f'{name}=64' for name in names[1:])}.",
            )
        if local != known if not unknown else (local % known if known else local):
            if not entry:
                summary = f"the dim 1 has {local} elements on this rank."
                raise SpecError(summary, fix="a name for the dim.")
            text = " ".join(map(str, entry))
            raise SpecError(
                f"{text} has {local} elements on this rank, and {format_sizes(sizes)} gives "
                f"{known}.",
                f"This rank is at {format_sizes(coordinate)}. Sizes by keyword are global.",
                fix="the global size of the dim, or no size if it divides.",
            )
        for dim in unknown:
            sizes[dim.name] = count_parts(dim, axes) * (local // known if known else 0)
    if not is_state:
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


def _check_divides(pattern: Pattern, axes: Sizes, sizes: Sizes, given: Collection[str]) -> None:
    """Check that the cuts of the right side divide the dims whose size was not given."""
    for dim in pattern.right.dims:
        size, parts = sizes[dim.name], count_parts(dim, axes)
        if dim.name in given or size % parts == 0:
            continue
        product = " x ".join(f"{axis} {axes[axis]}" for axis in dim.axes)
        equals = f" = {parts}" if len(dim.axes) > 1 else ""
        above = -(-size // parts) * parts
        nearest = " or ".join(str(n) for n in (above - parts, above) if n)
        if size and parts % size == 0:  # fewer heads of keys and values than ranks, for example
            nearest += f" (heads of k and v may be repeated {parts // size} times first, "
            nearest += "by repeat_interleave)"
        uneven = f"{dim.name}={size} by keyword, which allows parts of different sizes"
        summary = f"{dim.name} is {size}, which is not a multiple of {product}{equals}."
        raise SpecError(summary, fix=f"{dim.name} of {nearest}, or {uneven}.")
