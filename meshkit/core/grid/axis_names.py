"""Names of axes: legal names, and lookup with suggestions.

Axes are listed in one grammar everywhere, the outermost first: ``"dp sp"``, ``"dp,sp"``,
``"(dp sp)"``, ``("dp", "sp")``. An absent standard axis has size 1.
"""

from __future__ import annotations

import difflib
import keyword
from collections.abc import Collection, Iterable

from ..aliases import BATCH_OPTIONS, INIT_OPTIONS, MESH_OPTIONS, option_owner
from ..axes import STANDARD as STANDARD
from ..errors import CALL, SpecError, UnknownAxisError
from ..text import article

Names = str | Iterable["str | Iterable[str]"]  # axes as a caller lists them


RESERVED = INIT_OPTIONS | BATCH_OPTIONS | MESH_OPTIONS  # no axis may have such a name
MAX_AXES = 32  # the most dimensions that an array of numpy 1 can have
SEPARATORS = str.maketrans(",()", "   ")


def parse_axes(names: object) -> tuple[str, ...]:
    """Return the axis names of a text, or of texts in a sequence of any depth, outermost first.

    Anything that is no text and no iterable is returned as it is, for a later check.

    Example:
        >>> parse_axes("dp sp"), parse_axes("(dp, sp)"), parse_axes([("dp", "sp"), "tp"])
        (('dp', 'sp'), ('dp', 'sp'), ('dp', 'sp', 'tp'))
    """
    if isinstance(names, str):
        words = names.translate(SEPARATORS).split()
        if names.count("(") != names.count(")"):
            raise SpecError(f"{names!r} has an open bracket.", fix=f"{' '.join(words)!r}.")
        return tuple(words)
    if isinstance(names, Iterable):
        return tuple(name for part in names for name in parse_axes(part))
    return (names,)  # type: ignore[return-value]


def parse_order(order: object) -> tuple[str, ...]:
    """Return the axes of ``order=``; one word with hyphens is Megatron's, the fastest axis first.

    Example:
        >>> parse_order("pp dp tp"), parse_order("tp-dp-pp")
        (('pp', 'dp', 'tp'), ('pp', 'dp', 'tp'))
    """
    if isinstance(order, str) and "-" in order and len(order.split()) == 1:
        return tuple(reversed(order.split("-")))
    return parse_axes(order)


def parse_axis(value: object, axes: tuple[str, ...]) -> str:
    """Return the one axis that an argument names."""
    names = parse_axes(value)
    check_axes_exist(names, axes)
    if len(names) != 1:
        line = f"{value!r} names {len(names)} axes instead of one."
        fix = f"for example {(names or axes)[0]!r}."
        raise SpecError(line, fix=fix)
    return names[0]


def resolve_axes(argument: str, value: object, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes that an argument names, in the order written; none for an empty value.

    If none of them is present, the axes of the mesh must be standard ones too. On a mesh of
    ``replicate`` and ``shard``, ``dp`` is a mistake rather than an axis of size 1.
    """
    if not isinstance(value, Iterable):
        fix = f"{argument}={axes[:1]!r}, or other axes of {' '.join(axes)}."
        raise SpecError(f"{argument} is {value!r}.", fix=fix)
    names = parse_axes(value)
    check_axes_exist(names, axes)
    if names and not {*names} & {*axes} and not {*axes} <= {*STANDARD}:
        raise _unknown_axis_error(names[0], axes)
    return names


def check_axes_exist(names: Iterable[str], axes: tuple[str, ...]) -> None:
    """Check that each name is one of the axes or an absent standard one, and none is repeated."""
    seen: set[str] = set()
    for name in names:
        if name not in axes and name not in STANDARD:
            raise _unknown_axis_error(name, axes)
        if name in seen:
            raise SpecError(f"{CALL} names the axis {name} twice.", fix=f"name {name} once.")
        seen.add(name)


def _unknown_axis_error(name: object, axes: tuple[str, ...]) -> UnknownAxisError:
    suggestion = closest_axis(name, axes)
    return UnknownAxisError(
        f"there is no axis {name!r}.",
        f"The axes are {', '.join(axes)}.",
        fix=f"did you mean {suggestion}?" if suggestion else f"use one of {', '.join(axes)}.",
        axis=name,
        axes=axes,
        suggestion=suggestion,
    )


def closest_axis(name: object, axes: Collection[str]) -> str | None:
    """Return the axis that a name is probably a misspelling of, or None."""
    if name in STANDARD:  # a correct name, not a misspelling of another one
        return None
    matches = difflib.get_close_matches(str(name).lower(), axes, n=1, cutoff=0.5)
    return matches[0] if matches else None


def check_names(names: Collection[object], *, inferable: bool = False) -> None:
    """Check that einops, Python and meshkit's own options accept the names as axes."""
    for name in names:
        reason = _name_fault(name)
        if reason:
            fix = "a short lower-case word, such as dp, sp or tp."
            if name in RESERVED:
                fix = f"another name; {name} is an option of {option_owner(name)}."
            raise SpecError(f"{name!r} cannot be the name of an axis.", f"It {reason}.", fix=fix)
    if not 1 <= len(names) <= MAX_AXES:
        add_one = f"for example dp={-1 if inferable else 1}."
        raise SpecError(
            f"{CALL} has {len(names)} axes.",
            f"A mesh has 1 to {MAX_AXES}.",
            fix="leave out axes of size 1." if names else add_one,
        )


def _name_fault(name: object) -> str | None:
    if not isinstance(name, str):
        return f"is {article(type(name).__name__)}, not a str"
    if not (name.isascii() and name.isidentifier()):
        return "is not made of letters, digits and underscores, with a letter first"
    if name.startswith("_") or name.endswith("_"):
        return "starts or ends with an underscore, which einops patterns reject"
    if keyword.iskeyword(name):
        return "is a Python keyword"
    if name == "axis":
        return "is the name of a parameter, as in layout.neighbor(rank, axis)"
    if name in RESERVED:
        return "is the name of an option"
    return None
