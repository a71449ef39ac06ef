"""Axis names, their order and their sizes; infer the size that is -1.

An axis is a dimension of the mesh (a tensor has dims). The standard axes nest in one order,
from the outside in, because tp talks most and must sit on the nearest wires::

    pp  dp  ep  cp  sp  tp
    far ................ near
"""

from __future__ import annotations

import difflib
import keyword
import math
from collections.abc import Collection, Iterable, Iterator, Mapping

from ..call import Call
from ..errors import CALL, Change, Fix, SpecError, UnknownAxisError, join_fixes
from ..text import article, count_noun
from ..validate import parse_integer

STANDARD = ("pp", "dp", "ep", "cp", "sp", "tp")

# Names of options, those to come included: an axis of that name could not be passed by keyword.
RESERVED = frozenset(
    {
        "order",
        "sizes",
        "groups",
        "ranks",
        "timeout",
        "arrival_timeout",
        "backend",
        "world_size",
        "data",
        "place",
        "crossing",
        "within",
        "across",
    }
)

WORLD = "the world"  # has ranks that can be started anew
MAX_AXES = 32  # what numpy 1 can hold in one array
MAX_RANKS = 2**63 - 1  # what int64 can number


def parse_axes(names: str | Iterable[str]) -> tuple[str, ...]:
    """Axis names from ``"dp sp"`` or ``("dp", "sp")``.

    Example:
        >>> parse_axes("dp sp"), parse_axes(["dp", "sp"])
        (('dp', 'sp'), ('dp', 'sp'))
    """
    return tuple(names.split() if isinstance(names, str) else names)


def closest_axis(name: object, names: Collection[str]) -> str | None:
    """The name among ``names`` that ``name`` was probably meant to be, or None."""
    if name in STANDARD:  # a name of its own, no misspelling of another
        return None
    found = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.5)
    return found[0] if found else None


def check_axes_exist(asked: Iterable[str], axes: tuple[str, ...]) -> None:
    """Refuse axes that are not among ``axes``, and any axis listed twice.

    Raises:
        UnknownAxisError: for the first unknown name, with the closest known one.
        SpecError: where a name stands twice.
    """
    seen: set[str] = set()
    for name in asked:
        if name not in axes:
            raise _unknown(name, axes)
        if name in seen:
            fix = f"name {name} once."
            raise SpecError(f"{CALL} names the axis {name} twice.", fix=fix)
        seen.add(name)


def _unknown(name: object, axes: tuple[str, ...]) -> UnknownAxisError:
    suggestion = closest_axis(name, axes)
    if isinstance(name, str) and name.split()[1:] and set(name.split()) <= set(axes):
        fix = f"one str an axis: {', '.join(repr(axis) for axis in name.split())}."
        return UnknownAxisError(
            f"{name!r} is several axes in one str.", fix=fix, axis=name, axes=axes
        )
    hint = f"did you mean {suggestion}?" if suggestion else f"use one of {', '.join(axes)}."
    return UnknownAxisError(
        f"there is no axis {name!r}.",
        f"The axes are {', '.join(axes)}.",
        fix=hint,
        axis=name,
        axes=axes,
        suggestion=suggestion,
    )


def check_names(names: Collection[object], *, inferable: bool = False) -> None:
    """Refuse names that einops, Python or meshkit's own options could not take.

    Raises:
        SpecError: for the first name that is no ASCII identifier, starts or ends with an
            underscore, is a Python keyword, ``axis`` or the name of an option; and where there
            are none, or more than numpy can hold.
    """
    for name in names:
        reason = _name_fault(name)
        if reason:
            fix = "a short lower-case word, such as dp, sp or tp."
            if name in RESERVED:
                fix = f"another name for an axis; the option {name} is one of other calls."
            line = f"{name!r} cannot be the name of an axis."
            raise SpecError(line, f"It {reason}.", fix=fix)
    if not 1 <= len(names) <= MAX_AXES:
        raise SpecError(
            f"{CALL} has {len(names)} axes.",
            f"A mesh has 1 to {MAX_AXES}.",
            fix="leave out axes of size 1."
            if names
            else (Change(dp=-1 if inferable else 1), "."),
        )


def _name_fault(name: object) -> str | None:
    if not isinstance(name, str):
        return f"is {article(type(name).__name__)}, not a str"
    if not (name.isascii() and name.isidentifier()):
        return "is not made of letters, digits and underscores, with a letter first"
    if name.startswith("_") or name.endswith("_"):
        return "starts or ends with an underscore, which einops patterns refuse"
    if keyword.iskeyword(name) or name == "axis":
        return "is a word of the language, not of the mesh"
    if name in RESERVED:
        return "is the name of an option"
    return None


def check_sizes(sizes: Mapping[str, object], *, inferable: bool = False) -> dict[str, int]:
    """The sizes as plain ints, each 1 or more, or -1.

    Args:
        sizes: axis name to what the caller gave as its size. Integers of numpy count as ints.

    Raises:
        SpecError: for a bool, a float, a str, zero and a negative number other than -1.
    """
    check_names(sizes, inferable=inferable)
    return check_each(sizes, inferable=inferable)


def check_each(sizes: Mapping[str, object], *, inferable: bool = False) -> dict[str, int]:
    """The sizes as plain ints, as :func:`check_sizes`, whatever their names."""
    return {name: _size(name, sizes, inferable=inferable) for name in sizes}


def _size(name: str, sizes: Mapping[str, object], *, inferable: bool) -> int:
    size = sizes[name]
    number = parse_integer(size)
    if number is not None and (number >= 1 or number == -1):
        return number
    what = str(size) if number is not None else f"{size!r}, {article(type(size).__name__)}"
    raise SpecError(
        f"the size of {name} is {what}.",
        "A size is an int of 1 or more, or -1 for the one to be inferred.",
        fix=(Change(**{name: _meant(sizes, size, inferable=inferable)}), "."),
        sizes=dict(sizes),
    )


def _meant(sizes: Mapping[str, object], size: object, *, inferable: bool) -> int:
    """What was probably meant: 4 for ``"4"`` and 4.0; else -1, where it could be inferred."""
    try:
        number = 0 if isinstance(size, bool) else int(float(size))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = 0
    return number if number >= 1 else (-1 if inferable and -1 not in sizes.values() else 1)


def check_one_inferred(sizes: Mapping[str, int]) -> None:
    """Refuse more than one -1: their product is known, they are not.

    Raises:
        SpecError: naming the axes that are unknown.
    """
    unknown = [name for name, size in sizes.items() if size == -1]
    if len(unknown) > 1:
        first, *rest = unknown
        raise SpecError(
            f"{CALL} leaves the sizes of {' and '.join(unknown)} open.",
            "Only one size can be inferred"
            + ("; dp is inferred where it is left out." if "dp" in unknown else "."),
            fix=(Change(**{first: -1}, **dict.fromkeys(rest, 1)), "."),
            sizes=dict(sizes),
        )


def check_complete(sizes: Mapping[str, int]) -> None:
    """Refuse sizes that are not all known, or whose product int64 cannot number.

    Raises:
        SpecError: with the call that infers a size.
    """
    check_one_inferred(sizes)
    unknown = next((name for name, size in sizes.items() if size == -1), None)
    if unknown is not None:
        ranks = -2 * math.prod(sizes.values())  # a number that the known sizes divide
        like = Call("factor_world", (ranks,), {**sizes, "order": " ".join(sizes)})
        fix = f"{like}, which infers it from a number of ranks."
        raise SpecError(f"there is nothing to infer {unknown} from.", fix=fix, sizes=dict(sizes))
    check_count(math.prod(sizes.values()), sizes)


def check_count(num_ranks: int, sizes: Mapping[str, object]) -> None:
    """Refuse more ranks than int64 can number.

    Raises:
        SpecError: with the sizes.
    """
    if num_ranks > MAX_RANKS:
        raise SpecError(
            f"{CALL} has more ranks than int64 can number.", fix="smaller sizes.", sizes=dict(sizes)
        )


def infer_sizes(
    sizes: Mapping[str, int], num_ranks: int, evidence: str, *, whose: str = WORLD
) -> dict[str, int]:
    """The sizes with the -1 replaced, so that their product is ``num_ranks``.

    Args:
        sizes: from the outside in, one of them -1 at most.
        num_ranks: how many ranks there are.
        evidence: where that number comes from, as it is printed: ``"WORLD_SIZE = 6 (torchrun)"``.
        whose: what has that many ranks, as it is printed: the world, or something else.

    Raises:
        SpecError: where the product cannot be ``num_ranks``, with the numbers that would work; for
            more than one -1.

    Example:
        >>> infer_sizes({"dp": -1, "sp": 2, "tp": 4}, 64, "")
        {'dp': 8, 'sp': 2, 'tp': 4}
    """
    check_one_inferred(sizes)
    known = math.prod(size for size in sizes.values() if size != -1)
    unknown = [name for name, size in sizes.items() if size == -1]
    if unknown and num_ranks % known == 0:
        return {**sizes, unknown[0]: num_ranks // known}
    if not unknown and num_ranks == known:
        return dict(sizes)
    product = " x ".join(f"{name} {size}" for name, size in sizes.items() if size != -1)
    need = f"a multiple of {known} ranks" if unknown else count_noun(known, "rank")
    raise SpecError(
        f"{CALL} needs {need}, {whose} has {num_ranks}.",
        f"{product} = {known}; {evidence}.",
        fix=_fix_product(sizes, known, num_ranks, can_start=whose == WORLD),
        sizes=dict(sizes),
        world_size=num_ranks,
    )


def _fix_product(sizes: Mapping[str, int], known: int, num_ranks: int, *, can_start: bool) -> Fix:
    """What would work: another number of ranks, or the same call without dp."""
    below, above = num_ranks // known * known, (num_ranks // known + 1) * known
    worlds = [str(n) for n in (below, above) if n] if -1 in sizes.values() else [str(known)]
    noun = "rank" if worlds == ["1"] else "ranks"
    ways: list[Fix] = [f"start {' or '.join(worlds)} {noun}"] if can_start else []
    rest = known // sizes["dp"] if sizes.get("dp", -1) != -1 else 0
    if rest and num_ranks % rest == 0 and -1 not in sizes.values():
        size = num_ranks // rest
        ways.append((Change(dp=None if can_start else -1), f", which gives dp={size}"))
    if not can_start and "dp" not in sizes and -1 not in sizes.values():
        ways += _inferred_axis(sizes, known, num_ranks)
    return (*join_fixes(ways or [f"sizes whose product is {num_ranks}"]), ".")


def _inferred_axis(sizes: Mapping[str, int], known: int, num_ranks: int) -> Iterator[Fix]:
    """Yield the call that infers the first axis that can be inferred."""
    for axis, size in sizes.items():
        if num_ranks % (known // size) == 0:
            yield (Change(**{axis: -1}), f", which gives {axis}={num_ranks * size // known}")
            return


DEFAULT = ("dp",)


def resolve_axes(argument: str, value: object, axes: tuple[str, ...]) -> tuple[str, ...]:
    """The axes in the order they are named; none for an empty value.

    Args:
        argument: what it is called there.
        value: ``"dp sp"`` or ``("dp", "sp")``.
        axes: those there are.

    Raises:
        SpecError: where the value is neither, or names an axis twice.
        UnknownAxisError: for an axis that is not there.

    Example:
        >>> resolve_axes(Call("mesh.batch"), "data", "dp ep", ("dp", "ep", "tp"))
        ('dp', 'ep')
    """
    if not isinstance(value, str | tuple | list):
        fix = f"{argument}={axes[:1]!r}, or other axes of {' '.join(axes)}."
        raise SpecError(f"{argument} is {value!r}.", fix=fix)
    names = parse_axes(value)
    if names == DEFAULT and "dp" not in axes:
        fix = f"{argument}={' '.join(axes)!r}, or those of these axes that do."
        raise UnknownAxisError(
            "there is no axis dp that divides the samples.", fix=fix, axis="dp", axes=axes
        )
    check_axes_exist(names, axes)
    return names
