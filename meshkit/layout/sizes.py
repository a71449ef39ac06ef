"""Sizes of axes: check what users write, put the axes in order, and infer the size that is -1.

::

    sizes tp=4 sp=2, 64 ranks     dp=-1 sp=2 tp=4     dp = 64 / (2 * 4) = 8

Megatron's options count the ranks along ep inside dp: ``dp=8, ep=4`` are 8 ranks that read
different samples. A mesh of these 8 ranks is ``dp=2, ep=4`` here, and errors say so::

    dp=8           0 1 2 3 4 5 6 7
    dp=2 ep=4      0 1 2 3|4 5 6 7
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from ..call import Call, changes, either, parse_integer
from ..errors import CALL, SpecError
from ..synonyms import (
    ARGUMENTS,
    BATCH_OPTIONS,
    INIT_OPTIONS,
    LAUNCHED,
    STANDARD,
    is_shape,
    known_name,
    name_sizes,
    option_owner,
    standard_axis,
)
from ..text import INTEGER, article, count_noun, format_sizes
from .axes import DATA, EXPERT, RESERVED, axis_role, check_names, closest_axes, parse_axes

Order = str | Iterable[str] | None

MAX_RANKS = 2**31  # of a layout, so that every number made of ranks fits int64
MAX_PLANNED_RANKS = 2**21  # what looks at every rank takes more than a few seconds for more
STANDARD_AXES = frozenset(STANDARD)  # their names need no check


def parse_sizes(words: Iterable[str], *, can_infer: bool = False) -> dict[str, int]:
    """Return the sizes that are typed as ``dp=4 tp=2`` or ``dp=4,tp=2``, in words of any cut.

    ``can_infer`` allows a size of -1.
    """
    sizes: dict[str, int] = {}
    parts = split_words(words)
    for i, word in enumerate(parts):
        name, equals, size = word.partition("=")
        after = " ".join(parts[i + 1 : i + 3])
        if not equals:
            axis, number = _likely_size(f"{word} {after}")
            axis = axis or next((a for a in ("dp", "tp", "pp", "cp") if a not in sizes), "dp")
            fix = f"an axis, = and its size, for example {axis}={number}."
            raise SpecError(f"{word!r} is not the size of an axis.", fix=fix)
        if name in sizes:
            raise SpecError(f"{name} has two sizes.", fix=f"give {name} once.")
        value = int(size) if INTEGER.fullmatch(size) else 0
        if value < 1 and not (can_infer and value == -1):
            digits = " and at most 18 digits" if len(size) > 18 else ""
            inferred = f"; or {name}=-1, which infers it" if can_infer else ""
            likely = _likely_size(f"{size} {after}")[1]
            fix = f"a size of 1 or more{digits}, for example {name}={likely}{inferred}."
            raise SpecError(f"the size of {name} is {size!r}.", fix=fix)
        sizes[name] = value
    return sizes


def _likely_size(text: str) -> tuple[str, str]:
    """Return the axis and the size with which a text begins: dp and 8 of ``dp8`` and ``dp : 8``.

    Without an axis it is "", and without a size 4, a usual one.
    """
    match = re.match(r"([A-Za-z_]*)[\s=:-]*([1-9][0-9]{0,8})?(?![\w.])", text, re.ASCII)
    return (match[1], match[2] or "4") if match else ("", "4")


def split_words(words: Iterable[str]) -> list[str]:
    """Return the parts of words between commas or blanks, and a word without parts as it is."""
    return [part for word in words for part in word.replace(",", " ").split() or [word]]


def read_sizes(
    sizes: object, axes: Mapping[str, object], order: Order
) -> tuple[Mapping[str, object], Order]:
    """Return the sizes given as a mapping or by keyword, and the order of the axes."""
    merged = merge_sizes(sizes, axes)
    if order is not None or axes or sizes is None:
        return merged, order
    check_standard_order(merged)
    return merged, None if merged.keys() <= STANDARD_AXES else [*merged]


def merge_sizes(sizes: object, axes: Mapping[str, object]) -> Mapping[str, object]:
    """Return the sizes given as a mapping, such as a config, or those given by keyword."""
    if sizes is None:
        return axes
    if not isinstance(sizes, Mapping):
        raise SpecError(
            f"sizes is {article(type(sizes).__name__)}.",
            fix=f"{_with_names(() if axes else sizes)}.",
        )
    if axes and sizes:
        fix = f"all sizes in the mapping: { {**sizes, **axes}!r}."
        raise SpecError(f"{CALL} gives sizes as a mapping and by keyword.", fix=fix)
    return axes or dict(sizes)


def _with_names(sizes: object) -> str:
    """Return how sizes that are no mapping are passed."""
    if isinstance(sizes, str) and "=" in sizes:
        with suppress(SpecError):
            return f"by keyword: {format_sizes(parse_sizes([sizes], can_infer=True), ', ')}"
    shape = [sizes] if isinstance(sizes, int) else sizes
    return name_sizes(shape if is_shape(shape) else ())  # type: ignore[arg-type]


def ordered_sizes(
    sizes: Mapping[str, object], order: Order, num_ranks: int | None = None
) -> dict[str, int]:
    """Return the checked sizes with dp, the outermost axis first, before the -1 is inferred."""
    if not sizes.keys() <= STANDARD_AXES:
        check_options(sizes, () if order is not None else sizes)
    checked = check_sizes(sizes) if sizes else {}  # no sizes: dp alone
    return order_axes(checked, order, num_ranks=num_ranks)


def order_axes(
    sizes: Mapping[str, int], order: Order, *, num_ranks: int | None = None
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
    check_one_inferred(ordered, sizes)
    return ordered


def view_sizes(sizes: Mapping[str, int], order: Order) -> dict[str, int]:
    """Return the sizes of a view, the outermost axis first: as written, or in ``order``."""
    if order is not None:
        return order_axes(sizes, order)
    check_standard_order(sizes)
    return dict(sizes)


def check_sizes(sizes: Mapping[str, object], *, any_name: bool = False) -> dict[str, int]:
    """Return the sizes as plain ints, each 1 or more, or -1, after a check of the names."""
    if not any_name:
        check_options(sizes, ())
        check_names(sizes)
    return {name: _parse_size(name, sizes) for name in sizes}


def _parse_size(name: str, sizes: Mapping[str, object]) -> int:
    size = sizes[name]
    number = parse_integer(size)
    if number is not None and (number >= 1 or number == -1):
        return number
    text = str(size) if number is not None else f"{size!r}, {article(type(size).__name__)}"
    fix = f"{name}={guess_size(size)}." if size is not None else f"leave out {name}."
    if isinstance(size, Mapping) and len(sizes) == 1:
        fix = f"{dict(size)!r}, without {name}=."
    elif axis_role(name) == "unknown" and not isinstance(size, int | float | str):
        fix = f"leave out {name}, if it is no axis."  # probably an option
    raise SpecError(
        f"the size of {name} is {text}.",
        "A size is an int of 1 or more, or -1.",
        "1 switches an axis off, and -1 infers one size from the number of ranks.",
        fix=fix,
        sizes=dict(sizes),
    )


def guess_size(size: object) -> int:
    """Return 4 for ``"4"`` and 4.0, -1 for ``"auto"``, and 1, which switches an axis off."""
    try:
        number = 0 if isinstance(size, bool) else int(float(size))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = -1 if size == "auto" else 0
    return number if number == -1 else max(number, 1)


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
    check_one_inferred(sizes)
    if -1 in sizes.values():
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
    """Check that a plan that looks at every rank takes a few seconds at most."""
    if num_ranks > MAX_PLANNED_RANKS:
        fix = f"at most {MAX_PLANNED_RANKS} ranks."
        raise SpecError(f"{num_ranks} ranks are too many.", fix=fix)


def check_options(sizes: Mapping[str, object], names: Iterable[str]) -> None:
    """Check that none of the names is an option of another call, or another name of an axis."""
    renamed = _rename(names)
    moved = [name for name in sizes if name in INIT_OPTIONS or name in BATCH_OPTIONS]
    if not renamed and not moved:
        return
    lines = [f"{name} is called {new} here." for name, new in renamed.items()]
    new_names = {**{name: name for name in moved}, **renamed}
    ways = []
    for name, new in new_names.items():
        value = sizes.get(name)
        if new in STANDARD and (value is None or isinstance(value, bool)):  # a switch, no size
            ways.append(f"leave out {name}")
            continue
        argument = changes(**{new: guess_size(value) if new in STANDARD else value})
        if new in LAUNCHED:
            lines.append(f"{new} is no axis; the sizes and the launcher say it.")
            ways.append(f"leave out {name}")
            continue
        if new in INIT_OPTIONS or new in BATCH_OPTIONS:
            lines.append(f"{new} is no axis; it is an option of {option_owner(new)}.")
            argument = f"{option_owner(new)}({argument})"
        ways.append(f"{argument} in place of {name}")
    raise SpecError(*lines, fix=f"{', and '.join(ways)}.", sizes=dict(sizes))


def check_view_names(sizes: Mapping[str, object]) -> None:
    """Check that no keyword of a view is another name of a standard axis, such as ``dp_size``."""
    unknown = [name for name in sizes if axis_role(name) == "unknown"]
    check_options(sizes, [name for name in unknown if standard_axis(name)])


def _rename(names: Iterable[str]) -> dict[str, str]:
    """Return the names that stand for an axis or an option, with that axis or option."""
    unknown = [n for n in names if not (n in STANDARD or n in INIT_OPTIONS or n in BATCH_OPTIONS)]
    renamed = {name: standard_axis(name) for name in unknown}
    for name in unknown:
        if name in ARGUMENTS or (name not in RESERVED and axis_role(name) == "unknown"):
            renamed[name] = renamed[name] or known_name(name, RESERVED)
    is_complete = all(renamed.values())
    kept = {name for name in unknown if axis_role(name) != "unknown" and not is_complete}
    return {name: new for name, new in renamed.items() if new and name not in kept}


def check_standard_order(sizes: Mapping[str, object]) -> None:
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
    if not isinstance(order, Iterable) or isinstance(order, set | frozenset):  # without an order
        fix = "for example order='dp tp'."
        raise SpecError(f"order is {order!r}, {article(type(order).__name__)}.", fix=fix)
    names = parse_axes(order)
    if isinstance(order, str) and len(names) == 1:
        names = tuple(reversed(order.split("-")))
    absent = STANDARD_AXES - sizes.keys() - {"dp"}
    return tuple(name for name in names if name not in absent) if sizes else names


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
    axes = closest_axes(name, STANDARD)
    fits = len(axes) == 1 and axis_role(name) in ("unknown", axis_role(axes[0]))
    return axes[0] if fits else None


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
    start: str = "start {ranks}",
    takes_ranks: bool = False,
) -> dict[str, int]:
    """Return the sizes with the -1 replaced, so that their product is ``num_ranks``.

    ``start`` says how to get so many ranks, as ``{number}`` or ``{ranks}``; "" if there is no way.
    ``takes_ranks`` says that ``ranks=`` of the call selects some ranks.
    """
    check_one_inferred(sizes)
    known = math.prod(size for size in sizes.values() if size != -1)
    unknown = [name for name, size in sizes.items() if size == -1]
    if (num_ranks % known == 0) if unknown else num_ranks == known:
        return {**sizes, **dict.fromkeys(unknown, num_ranks // known)}
    product = " x ".join(f"{name} {size}" for name, size in sizes.items() if size != -1)
    need = f"a multiple of {known} ranks" if unknown else count_noun(known, "rank")
    lines, ways = [f"{product} = {known}; {evidence}."], []
    divided = divide_data_axis(sizes, num_ranks)
    if divided:
        data = next(axis for axis in sizes if divided[axis] != sizes[axis])
        experts = next(axis for axis in sizes if axis in EXPERT)
        lines.append(
            f"Ranks along {experts} read different samples, so {sizes[data]} data-parallel ranks "
            f"are {data} {divided[data]} x {experts} {divided[experts]}."
        )
        ways.append(f"{data}={divided[data]}")
        if start:  # a mesh, no view
            view = Call("mesh.view", (), {**divided, **_order_option(divided)})
            ways.append(f"leave out {experts}, and {view} for the experts")
    if start:
        below = num_ranks // known * known
        fitting = [n for n in (below, below + known) if n] if unknown else [known]
        ways += [start.format(number=n, ranks=count_noun(n, "rank")) for n in fitting]
    if not divided and not unknown:
        for axis in ["dp"] if "dp" in sizes else [] if start else [*sizes]:
            size, remainder = divmod(num_ranks * sizes[axis], known)
            if remainder == 0:
                change = f"leave out {axis}" if start else f"{axis}=-1"
                ways.append(f"{change}, which gives {axis}={size}")
                break
    if takes_ranks and known < num_ranks:
        some = f"ranks=range({known})" if known > 1 else "ranks=[0]"
        ways.append(f"{some} on all {num_ranks} ranks, for a mesh of {known}")
    raise SpecError(
        f"{CALL} needs {need}, {owner} has {num_ranks}.",
        *lines,
        fix=either(*(ways or [f"sizes whose product is {num_ranks}"])),
        sizes=dict(sizes),
        world_size=num_ranks,
        num_ranks=known,
    )


def _order_option(sizes: Mapping[str, int]) -> dict[str, str]:
    """Return the option ``order`` if a view of these sizes needs it."""
    written = [axis for axis in sizes if axis in STANDARD]
    return {} if written == sorted(written, key=STANDARD.index) else {"order": " ".join(sizes)}


def divide_data_axis(sizes: Mapping[str, int], num_ranks: int) -> dict[str, int] | None:
    """Return sizes that fit if a data axis counts the ranks along the expert axis, or None."""
    experts = [axis for axis in sizes if axis in EXPERT]
    if len(experts) != 1 or math.prod(sizes.values()) != num_ranks * sizes[experts[0]]:
        return None
    size = sizes[experts[0]]
    data = [axis for axis in sizes if axis in DATA and sizes[axis] % size == 0]
    return {**sizes, data[-1]: sizes[data[-1]] // size} if data and size > 1 else None
