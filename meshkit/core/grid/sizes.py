"""Sizes of axes: check what users write, put the axes in order, and infer the size that is -1.

::

    sizes tp=4 sp=2, 64 ranks     dp=-1 sp=2 tp=4     dp = 64 / (2 * 4) = 8
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Set

from ..call import Call, changes, either
from ..errors import CALL, SpecError
from ..text import article, count_noun, format_sizes
from ..validate import parse_integer
from .axis_names import STANDARD, check_names, closest_axis, parse_axes
from .foreign_names import check_options, guess_size
from .nested_experts import (
    dense_mesh_and_view,
    describe_divided,
    divide_data_axis,
    use_divided,
)
from .roles import axis_role

Order = str | Iterable[str] | None

MAX_RANKS = 2**31  # of a layout, so that every number made of ranks fits int64
MAX_PLANNED_RANKS = 2**21  # what looks at every rank takes more than a few seconds for more
STANDARD_AXES = frozenset(STANDARD)  # their names need no check


def check_sizes(
    sizes: Mapping[str, object], *, inferable: bool = False, any_name: bool = False
) -> dict[str, int]:
    """Return the sizes as plain ints, each 1 or more, or -1, after a check of the names."""
    if not any_name and not (sizes and sizes.keys() <= STANDARD_AXES):
        check_options(sizes, ())
        check_names(sizes, inferable=inferable)
    return {
        name: size
        if type(size) is int and size >= 1  # the usual case
        else _parse_size(name, sizes)
        for name, size in sizes.items()
    }


def _parse_size(name: str, sizes: Mapping[str, object]) -> int:
    size = sizes[name]
    number = parse_integer(size)
    if number is not None and (number >= 1 or number == -1):
        return number
    text = str(size) if number is not None else f"{size!r}, {article(type(size).__name__)}"
    fix = f"{name}={guess_size(size)}." if size is not None else f"leave out {name}."
    if axis_role(name) == "unknown" and not isinstance(size, int | float | str):
        fix = f"leave out {name}, if it is no axis."  # probably an option
    raise SpecError(
        f"the size of {name} is {text}.",
        "A size is an int of 1 or more, or -1.",
        "1 switches an axis off, and -1 infers one size from the number of ranks.",
        fix=fix,
        sizes=dict(sizes),
    )


def check_one_inferred(sizes: Mapping[str, int], given: Collection[str] | None = None) -> None:
    """Check that at most one size is -1: of two, only the product could be inferred."""
    unknown = [name for name, size in sizes.items() if size == -1]
    if len(unknown) > 1:
        first = next((name for name in unknown if given is None or name in given), unknown[0])
        ones = {name: 1 for name in unknown if name != first}
        hint = "; dp is inferred if it is left out." if "dp" in unknown else "."
        raise SpecError(
            f"{CALL} leaves the sizes of {' and '.join(unknown)} open.",
            f"Only one size can be inferred{hint}",
            fix=f"{changes(**{first: -1}, **ones)}.",
            sizes=dict(sizes),
        )


def check_complete(sizes: Mapping[str, int]) -> None:
    """Check that no size is -1, and that a layout may have so many ranks."""
    if -1 in sizes.values():
        check_one_inferred(sizes)
        unknown = next(name for name, size in sizes.items() if size == -1)
        num_ranks = -2 * math.prod(sizes.values())  # a multiple of the known sizes
        example = Call("factor_world", (num_ranks,), {**sizes, "order": " ".join(sizes)})
        fix = f"{example}, which infers it from a number of ranks."
        raise SpecError(f"there is nothing to infer {unknown} from.", fix=fix, sizes=dict(sizes))
    check_num_ranks(math.prod(sizes.values()), sizes)


def check_num_ranks(num_ranks: int, sizes: Mapping[str, object]) -> None:
    """Check that a layout may have so many ranks."""
    if num_ranks > MAX_RANKS:
        line = f"{CALL} has more than {MAX_RANKS} ranks."
        raise SpecError(line, fix="smaller sizes.", sizes=dict(sizes))


def check_num_planned(num_ranks: int) -> None:
    """Raise SpecError if a plan that looks at every rank would take too long. Local."""
    if num_ranks > MAX_PLANNED_RANKS:
        fix = f"at most {MAX_PLANNED_RANKS} ranks."
        raise SpecError(f"{num_ranks} ranks are too many.", fix=fix)


def merge_sizes(sizes: object, axes: Mapping[str, object]) -> Mapping[str, object]:
    """Return the sizes given as a mapping, such as a config, with those given by keyword."""
    if sizes is not None and not isinstance(sizes, Mapping):
        raise SpecError(
            f"sizes is {article(type(sizes).__name__)}.",
            fix='axes by keyword, such as dp=4, sp=2, or as a dict: {"dp": 4, "sp": 2}.',
        )
    mapping: Mapping[str, object] = sizes or {}
    repeated = sorted(mapping.keys() & axes.keys())
    if repeated:
        raise SpecError(f"{CALL} gives {repeated[0]} twice.", fix=f"give {repeated[0]} once.")
    return {**mapping, **axes}


def read_sizes(
    sizes: object, axes: Mapping[str, object], order: Order
) -> tuple[Mapping[str, object], Order]:
    """Return the sizes given as a mapping with those given by keyword, and the order of the axes.

    The axes of a mapping nest as written if one of their names is not standard, and such an axis
    needs no position. By keyword it needs one, since it may be a misspelt option.
    """
    if sizes is None:
        return axes, order
    merged = merge_sizes(sizes, axes)
    if order is not None or not axes.keys() <= STANDARD_AXES:
        return merged, order
    mapping = [name for name in merged if name not in axes]
    written = [*mapping, *sorted(axes, key=STANDARD.index)]
    if {*mapping} <= STANDARD_AXES:
        check_standard_order({name: merged[name] for name in mapping}, as_mapping=True)
        return merged, None
    nested = {name: merged[name] for name in written}
    check_standard_order(nested, as_mapping=True)
    return nested, written


def ordered_sizes(
    sizes: Mapping[str, object], order: Order, num_ranks: int | None = None
) -> dict[str, int]:
    """Return the checked sizes with dp, the outermost axis first, before the -1 is inferred."""
    if not sizes.keys() <= STANDARD_AXES:
        check_options(sizes, () if order is not None else sizes)
    inferable = "dp" in sizes or order is not None
    checked = check_sizes(sizes, inferable=inferable) if sizes else {}  # no sizes: dp alone
    return order_axes(checked, order, num_ranks=num_ranks)


def order_axes(
    sizes: Mapping[str, int],
    order: Order,
    *,
    num_ranks: int | None = None,
) -> dict[str, int]:
    """Return the sizes with dp, the outermost axis first."""
    if order is None:
        if not sizes.keys() <= STANDARD_AXES:
            raise _no_position_error(sizes, num_ranks)
        names: tuple[str, ...] = tuple(n for n in STANDARD if n in sizes or n == "dp")
    else:
        names = _parse_order(order, sizes)
        _check_order(sizes, names, num_ranks)
    ordered = {name: sizes.get(name, -1) for name in names}
    if [*ordered.values()].count(-1) > 1:
        check_one_inferred(ordered, sizes)
    return ordered


def view_sizes(sizes: Mapping[str, int], order: Order) -> dict[str, int]:
    """Return the sizes of a view, the outermost axis first: as written, or in ``order``."""
    if order is not None:
        return order_axes(sizes, order)
    check_standard_order(sizes)
    return dict(sizes)


def check_standard_order(sizes: Mapping[str, object], *, as_mapping: bool = False) -> None:
    """Check that the standard axes among the sizes are written in the standard order."""
    written = [name for name in sizes if name in STANDARD]
    standard = sorted(written, key=STANDARD.index)
    if written == standard:
        return
    remaining = iter(standard)
    names = [next(remaining) if name in STANDARD else name for name in sizes]
    reordered = {name: sizes[name] for name in names}
    keywords = format_sizes(reordered, ", ")
    raise SpecError(
        f"{' '.join(written)} is not the standard order, {' '.join(standard)}.",
        "These axes nest in the order in which they are written, the outermost first.",
        fix=f"{keywords}; or order={' '.join(sizes)!r}, if it is intended.",
        sizes=dict(sizes),
    )


def _parse_order(order: object, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes of an order, without absent standard axes, which have size 1."""
    if isinstance(order, Iterable) and not isinstance(order, Set):  # a set has no order
        names = parse_axes(order)
        absent = STANDARD_AXES - sizes.keys() - {"dp"}
        return tuple(name for name in names if name not in absent) if sizes else names
    fix = "for example order='dp tp'."
    raise SpecError(f"order is {order!r}, {article(type(order).__name__)}.", fix=fix)


def _no_position_error(sizes: Mapping[str, int], num_ranks: int | None) -> SpecError:
    """Return the error for the first axis without a position in the standard order."""
    unknown = [name for name in sizes if name not in STANDARD]
    suggestions = {name: _axis_of_equal_role(name) for name in unknown}
    renamed = {new: sizes[name] for name, new in suggestions.items() if new and new not in sizes}
    name, change = unknown[0], changes(**renamed)
    position = _order_fix(sizes, " ".join(sizes), num_ranks)
    return SpecError(
        f"the axis {name} has no standard position.",
        f"The standard order is {' '.join(STANDARD)}, the outermost axis first.",
        "An axis of another name may be a misspelt option, unless order= names it.",
        fix=f"{f'did you mean {change}? Or ' * (len(renamed) == len(unknown))}"
        f"give its position: {position}.",
        sizes=dict(sizes),
        axis=name,
        axes=STANDARD,
        suggestion=suggestions[name],
    )


def _axis_of_equal_role(name: str) -> str | None:
    """Return the standard axis that a name is close to, unless the name has another role."""
    axis = closest_axis(name, STANDARD)
    roles = ("unknown", axis_role(axis)) if axis else ()
    return axis if axis_role(name) in roles else None


def _order_fix(sizes: Mapping[str, int], order: str, num_ranks: int | None) -> str:
    """Return the call with another order; words if its sizes do not fit the ranks then."""
    names = order.split()
    is_open = -1 in sizes.values() or any(name not in sizes for name in names)
    if num_ranks is None or is_open or math.prod(sizes.values()) == num_ranks:
        return f"order={order!r}"
    return f"order={order!r}, with sizes whose product is {num_ranks}"


def _check_order(sizes: Mapping[str, int], names: tuple[str, ...], num_ranks: int | None) -> None:
    """Check that the order names each axis once."""
    if names:
        check_names(names)
    unsized = [n for n in names if n not in sizes and n != "dp"]
    missing = [n for n in sizes if n not in names]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if names and not (unsized or missing or repeated):
        return
    evidence = [] if names else ["order names no axis."]
    evidence += [f"{n} is in order but has no size." for n in unsized]
    evidence += [f"{n} has a size but is not in order." for n in missing]
    evidence += [f"{n} appears twice in order." for n in repeated]
    valid = " ".join(dict.fromkeys([n for n in names if n not in unsized] + missing))
    fix = f"{_order_fix(sizes, valid, num_ranks)}."
    if not valid:  # no size is given at all
        sized = f"a size for each axis of order, as in {unsized[0]}=2." if unsized else ""
        fix = sized or "leave out order."
    raise SpecError("order does not match the sizes.", *evidence, fix=fix, sizes=dict(sizes))


def infer_sizes(
    sizes: Mapping[str, int],
    num_ranks: int,
    evidence: str,
    *,
    owner: str = "the world",
    can_start: bool = True,
) -> dict[str, int]:
    """Return the sizes with the -1 replaced, so that their product is ``num_ranks``."""
    if [*sizes.values()].count(-1) > 1:
        check_one_inferred(sizes)
    known = math.prod(size for size in sizes.values() if size != -1)
    unknown = next((name for name, size in sizes.items() if size == -1), None)
    if unknown is not None and num_ranks % known == 0:
        return {**sizes, unknown: num_ranks // known}
    if unknown is None and num_ranks == known:
        return dict(sizes)
    product = " x ".join(f"{name} {size}" for name, size in sizes.items() if size != -1)
    divided = divide_data_axis(sizes, num_ranks)
    need = count_noun(known, "rank") if unknown is None else f"a multiple of {known} ranks"
    ways = [use_divided(sizes, divided)] if divided else []
    ways += dense_mesh_and_view(sizes, divided) if divided and can_start else []
    ways += [*_start_other_ranks(sizes, known, num_ranks)] if can_start else []
    if not divided:
        ways += [*_change_one_size(sizes, known, num_ranks, can_start=can_start)]
    raise SpecError(
        f"{CALL} needs {need}, {owner} has {num_ranks}.",
        f"{product} = {known}; {evidence}.",
        *([describe_divided(sizes, divided)] if divided else []),
        fix=either(*(ways or [f"sizes whose product is {num_ranks}"])),
        sizes=dict(sizes),
        world_size=num_ranks,
        num_ranks=known,
    )


def _start_other_ranks(sizes: Mapping[str, int], known: int, num_ranks: int) -> list[str]:
    """Return the fix that starts the nearest numbers of ranks that fit the sizes."""
    below = num_ranks // known * known
    fitting = [n for n in (below, below + known) if n] if -1 in sizes.values() else [known]
    noun = "rank" if fitting == [1] else "ranks"
    return [f"start {' or '.join(map(str, fitting))} {noun}"]


def _change_one_size(
    sizes: Mapping[str, int], known: int, num_ranks: int, *, can_start: bool
) -> list[str]:
    """Return the fix that infers dp; without dp, and if no ranks can be started, another axis."""
    if -1 in sizes.values():
        return []
    candidates = ["dp"] if "dp" in sizes else [] if can_start else [*sizes]
    for axis in candidates:
        size, remainder = divmod(num_ranks * sizes[axis], known)
        if remainder == 0:
            change = f"leave out {axis}" if can_start else f"{axis}=-1"
            return [f"{change}, which gives {axis}={size}"]
    return []
