"""Names of axes: the standard ones and their order, legal names, and lookup with suggestions.

An axis is a dimension of the mesh; a dim is a dimension of a tensor. The standard axes nest in one
order, from the outermost to the innermost. Tensor parallelism communicates most, so tp is innermost
and its ranks are the closest neighbors::

    pp  dp  ep  cp  sp  tp
    far ................ near
"""

from __future__ import annotations

import difflib
import keyword
from collections.abc import Collection, Iterable

from ..errors import CALL, Change, SpecError, UnknownAxisError
from ..text import article

STANDARD = ("pp", "dp", "ep", "cp", "sp", "tp")

# Names of options, planned ones included: an axis of that name could not be passed by keyword.
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
        "place",
        "crossing",
        "within",
        "across",
    }
)

MAX_AXES = 32  # the most dimensions that an array of numpy 1 can have


def parse_axes(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return the axis names of ``"dp sp"`` or ``("dp", "sp")``.

    Example:
        >>> parse_axes("dp sp"), parse_axes(["dp", "sp"])
        (('dp', 'sp'), ('dp', 'sp'))
    """
    return tuple(names.split() if isinstance(names, str) else names)


def resolve_axes(argument: str, value: object, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes that an argument names, in the order written; none for an empty value.

    Example:
        >>> resolve_axes("data", "dp ep", ("dp", "ep", "tp"))
        ('dp', 'ep')
    """
    if not isinstance(value, str | tuple | list):
        fix = f"{argument}={axes[:1]!r}, or other axes of {' '.join(axes)}."
        raise SpecError(f"{argument} is {value!r}.", fix=fix)
    names = parse_axes(value)
    check_axes_exist(names, axes)
    return names


def check_axes_exist(names: Iterable[str], axes: tuple[str, ...]) -> None:
    """Check that each name is one of the axes, and that none is repeated."""
    seen: set[str] = set()
    for name in names:
        if name not in axes:
            raise _unknown_axis_error(name, axes)
        if name in seen:
            raise SpecError(f"{CALL} names the axis {name} twice.", fix=f"name {name} once.")
        seen.add(name)


def _unknown_axis_error(name: object, axes: tuple[str, ...]) -> UnknownAxisError:
    if isinstance(name, str) and len(name.split()) > 1 and set(name.split()) <= set(axes):
        fix = f"one str for each axis: {', '.join(repr(axis) for axis in name.split())}."
        line = f"{name!r} is several axes in one str."
        return UnknownAxisError(line, fix=fix, axis=name, axes=axes)
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
    """Return the axis that a name is probably a misspelling of, or None.

    Example:
        >>> closest_axis("tpp", STANDARD), closest_axis("sp", ("dp", "tp"))
        ('tp', None)
    """
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
                fix = f"another name; {name} is an option of build_mesh or of a mesh."
            raise SpecError(f"{name!r} cannot be the name of an axis.", f"It {reason}.", fix=fix)
    if not 1 <= len(names) <= MAX_AXES:
        add_one = (Change(dp=-1 if inferable else 1), ".")
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
