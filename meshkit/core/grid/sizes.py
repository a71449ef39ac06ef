"""Sizes of axes: check what users write, put the axes in order, and infer the size that is -1.

::

    sizes tp=4 sp=2, 64 ranks     dp=-1 sp=2 tp=4     dp = 64 / (2 * 4) = 8
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ..call import Call
from ..errors import CALL, Change, Fix, SpecError, join_fixes
from ..text import article, count_noun, format_sizes
from ..validate import parse_integer
from .axis_names import STANDARD, check_names, closest_axis, parse_axes

MAX_RANKS = 2**63 - 1  # the largest int64
STANDARD_AXES = frozenset(STANDARD)  # their names need no check


def check_sizes(
    sizes: Mapping[str, object], *, inferable: bool = False, any_name: bool = False
) -> dict[str, int]:
    """Return the sizes as plain ints, each 1 or more, or -1, after a check of the names."""
    if not any_name and not (sizes and sizes.keys() <= STANDARD_AXES):
        check_names(sizes, inferable=inferable)
    return {
        name: size
        if type(size) is int and size >= 1  # the usual case
        else _parse_size(name, sizes, inferable=inferable)
        for name, size in sizes.items()
    }


def _parse_size(name: str, sizes: Mapping[str, object], *, inferable: bool) -> int:
    size = sizes[name]
    number = parse_integer(size)
    if number is not None and (number >= 1 or number == -1):
        return number
    text = str(size) if number is not None else f"{size!r}, {article(type(size).__name__)}"
    raise SpecError(
        f"the size of {name} is {text}.",
        "A size is an int of 1 or more, or -1 for the one to be inferred.",
        fix=(Change(**{name: _guess_size(sizes, size, inferable=inferable)}), "."),
        sizes=dict(sizes),
    )


def _guess_size(sizes: Mapping[str, object], size: object, *, inferable: bool) -> int:
    """Return 4 for ``"4"`` and 4.0; for other values -1 if that can be inferred, or else 1."""
    try:
        number = 0 if isinstance(size, bool) else int(float(size))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = 0
    return number if number >= 1 else (-1 if inferable and -1 not in sizes.values() else 1)


def check_one_inferred(sizes: Mapping[str, int]) -> None:
    """Check that at most one size is -1: of two, only the product could be inferred."""
    unknown = [name for name, size in sizes.items() if size == -1]
    if len(unknown) > 1:
        first, *others = unknown
        hint = "; dp is inferred if it is left out." if "dp" in unknown else "."
        raise SpecError(
            f"{CALL} leaves the sizes of {' and '.join(unknown)} open.",
            f"Only one size can be inferred{hint}",
            fix=(Change(**{first: -1}, **dict.fromkeys(others, 1)), "."),
            sizes=dict(sizes),
        )


def check_complete(sizes: Mapping[str, int]) -> None:
    """Check that no size is -1, and that int64 can hold the product."""
    if -1 in sizes.values():
        check_one_inferred(sizes)
        unknown = next(name for name, size in sizes.items() if size == -1)
        num_ranks = -2 * math.prod(sizes.values())  # a multiple of the known sizes
        example = Call("factor_world", (num_ranks,), {**sizes, "order": " ".join(sizes)})
        fix = f"{example}, which infers it from a number of ranks."
        raise SpecError(f"there is nothing to infer {unknown} from.", fix=fix, sizes=dict(sizes))
    check_num_ranks(math.prod(sizes.values()), sizes)


def check_num_ranks(num_ranks: int, sizes: Mapping[str, object]) -> None:
    """Check that int64 can hold the number of ranks."""
    if num_ranks > MAX_RANKS:
        line = f"{CALL} has more ranks than int64 can hold."
        raise SpecError(line, fix="smaller sizes.", sizes=dict(sizes))


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


def ordered_sizes(sizes: Mapping[str, object], order: str | Iterable[str] | None) -> dict[str, int]:
    """Return the checked sizes with dp, the outermost axis first, before the -1 is inferred."""
    inferable = "dp" in sizes or order is not None
    checked = check_sizes(sizes, inferable=inferable) if sizes else {}  # no sizes: dp alone
    return order_axes(checked, order)


def order_axes(
    sizes: Mapping[str, int], order: str | Iterable[str] | None, *, can_add_dp: bool = True
) -> dict[str, int]:
    """Return the sizes with dp, the outermost axis first.

    Example:
        >>> order_axes({"tp": 2, "pp": 4}, None), order_axes({"tp": 2}, "tp dp")
        ({'pp': 4, 'dp': -1, 'tp': 2}, {'tp': 2, 'dp': -1})
    """
    if order is None:
        if not sizes.keys() <= STANDARD_AXES:
            raise _no_position_error(sizes)
        names: tuple[str, ...] = tuple(n for n in STANDARD if n in sizes or n == "dp")
    else:
        names = _parse_order(order)
        _check_order(sizes, names, can_add_dp=can_add_dp)
    ordered = {name: sizes.get(name, -1) for name in names}
    if [*ordered.values()].count(-1) > 1:
        check_one_inferred(ordered)
    return ordered


def view_sizes(sizes: Mapping[str, int], order: str | Iterable[str] | None) -> dict[str, int]:
    """Return the sizes of a view, the outermost axis first: as written, or in ``order``."""
    if order is not None:
        return order_axes(sizes, order, can_add_dp=False)
    written = [name for name in sizes if name in STANDARD]
    standard = sorted(written, key=STANDARD.index)
    if written != standard:
        remaining = iter(standard)
        names = [next(remaining) if name in STANDARD else name for name in sizes]
        reordered = format_sizes({name: sizes[name] for name in names}, ", ")
        raise SpecError(
            f"{' '.join(written)} is not the standard order, {' '.join(standard)}.",
            "A view keeps the order in which its axes are written, the outermost first.",
            fix=(f"{reordered}; or ", Change(order=" ".join(sizes)), ", if it is intended."),
            sizes=dict(sizes),
        )
    return dict(sizes)


def _parse_order(order: object) -> tuple[str, ...]:
    if isinstance(order, Iterable):
        return parse_axes(order)
    fix = ("for example ", Change(order="dp tp"), ".")
    raise SpecError(f"order is {order!r}, {article(type(order).__name__)}.", fix=fix)


def _no_position_error(sizes: Mapping[str, int]) -> SpecError:
    """Return the error for the first axis without a position in the standard order."""
    name = next(name for name in sizes if name not in STANDARD)
    suggestion = closest_axis(name, STANDARD)
    dp = () if -1 in sizes.values() else ("dp",)
    order = " ".join(dict.fromkeys((*dp, *sizes)))
    hint = f"did you mean {suggestion}? Or " if suggestion else ""
    return SpecError(
        f"the axis {name} has no standard position.",
        f"The standard order is {' '.join(STANDARD)}, the outermost axis first.",
        fix=(f"{hint}give its position: ", Change(order=order), "."),
        sizes=dict(sizes),
        axis=name,
        axes=STANDARD,
        suggestion=suggestion,
    )


def _check_order(sizes: Mapping[str, int], names: tuple[str, ...], *, can_add_dp: bool) -> None:
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
    complete = "dp" in sizes or -1 in sizes.values() or not can_add_dp
    dp = [] if complete else ["dp"]  # with dp, any number of ranks fits
    valid = " ".join(dict.fromkeys(dp + [n for n in names if n not in unsized] + missing))
    fix = (Change(order=valid), ".")
    raise SpecError("order does not match the sizes.", *evidence, fix=fix, sizes=dict(sizes))


def infer_sizes(
    sizes: Mapping[str, int],
    num_ranks: int,
    evidence: str,
    *,
    owner: str = "the world",
    can_start: bool = True,
) -> dict[str, int]:
    """Return the sizes with the -1 replaced, so that their product is ``num_ranks``.

    Example:
        >>> infer_sizes({"dp": -1, "sp": 2, "tp": 4}, 64, "")
        {'dp': 8, 'sp': 2, 'tp': 4}
    """
    if [*sizes.values()].count(-1) > 1:
        check_one_inferred(sizes)
    known = math.prod(size for size in sizes.values() if size != -1)
    unknown = next((name for name, size in sizes.items() if size == -1), None)
    if unknown is not None and num_ranks % known == 0:
        return {**sizes, unknown: num_ranks // known}
    if unknown is None and num_ranks == known:
        return dict(sizes)
    product = " x ".join(f"{name} {size}" for name, size in sizes.items() if size != -1)
    need = count_noun(known, "rank") if unknown is None else f"a multiple of {known} ranks"
    ways = [*_start_other_ranks(sizes, known, num_ranks)] if can_start else []
    ways += [*_change_one_size(sizes, known, num_ranks, can_start=can_start)]
    raise SpecError(
        f"{CALL} needs {need}, {owner} has {num_ranks}.",
        f"{product} = {known}; {evidence}.",
        fix=(*join_fixes(ways or [f"sizes whose product is {num_ranks}"]), "."),
        sizes=dict(sizes),
        world_size=num_ranks,
    )


def _start_other_ranks(sizes: Mapping[str, int], known: int, num_ranks: int) -> list[Fix]:
    """Return the fix that starts the nearest numbers of ranks that fit the sizes."""
    below = num_ranks // known * known
    fitting = [n for n in (below, below + known) if n] if -1 in sizes.values() else [known]
    noun = "rank" if fitting == [1] else "ranks"
    return [f"start {' or '.join(map(str, fitting))} {noun}"]


def _change_one_size(
    sizes: Mapping[str, int], known: int, num_ranks: int, *, can_start: bool
) -> list[Fix]:
    """Return the fix that infers dp; without dp, and if no ranks can be started, another axis."""
    if -1 in sizes.values():
        return []
    candidates = ["dp"] if "dp" in sizes else [] if can_start else [*sizes]
    for axis in candidates:
        size, remainder = divmod(num_ranks * sizes[axis], known)
        if remainder == 0:
            change = Change(**{axis: None if can_start else -1})
            return [(change, f", which gives {axis}={size}")]
    return []
