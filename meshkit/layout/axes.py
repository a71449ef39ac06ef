"""Axes: the table of their roles, colors and other names, and the check of the names of users.

The standard axes nest in the order of the table, from the outermost to the innermost. Tensor
parallelism communicates most, so tp is innermost and its ranks are the closest neighbors::

    pp  dp  ep  cp  sp  tp
    far ................ near

The name of an axis gives its role, in meshkit's words and in those of other libraries::

    role      axes                           ranks along the axis
    data      dp, data, fsdp, replicate ...  read different samples
    expert    ep, expert ...                 read different samples, hold different experts
    model     pp, tp, cp, sp, model ...      share samples
    unknown   any other name                 nothing is known

Axes are listed in one grammar everywhere, the outermost first: ``"dp sp"``, ``"dp,sp"``,
``"(dp sp)"``, ``("dp", "sp")``. An absent standard axis has size 1. A name of another library,
such as ``dp_size``, raises an error with the name here; synonyms.py has the table.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterable, Mapping

from ..errors import CALL, SpecError, UnknownAxisError
from ..synonyms import (
    AXES,
    BATCH_OPTIONS,
    INIT_OPTIONS,
    MESH_OPTIONS,
    STANDARD,
    STANDARD_OF,
    Role,
    closest_names,
    option_owner,
    standard_axis,
)
from ..text import article

Axes = tuple[str, ...]

Names = str | Iterable["str | Iterable[str]"]  # axes as a caller lists them


DATA, EXPERT, CONTEXT, SEQUENCE = (
    frozenset(name for name, standard in STANDARD_OF.items() if standard == axis)
    for axis in ("dp", "ep", "cp", "sp")
)
AVERAGED = DATA | EXPERT | CONTEXT | SEQUENCE  # along these axes tokens differ

RESERVED = INIT_OPTIONS | BATCH_OPTIONS | MESH_OPTIONS  # no axis may have such a name
MAX_AXES = 32  # the most dimensions that an array of numpy 1 can have
SEPARATORS = str.maketrans(",()", "   ")


def axis_role(axis: str) -> Role:
    """Return the role of an axis by its name."""
    return AXES[STANDARD_OF[axis]].role if axis in STANDARD_OF else "unknown"


def axis_colors(axes: Collection[str]) -> dict[str, str]:
    """Return the color of each axis; a second or unknown one gets a color that is left."""
    colors: dict[str, str] = {}
    for axis in sorted(axes, key=lambda axis: axis not in STANDARD_OF):
        own = [AXES[STANDARD_OF[axis]].color] if axis in STANDARD_OF else []
        free = [row.color for row in AXES.values() if row.color not in colors.values()]
        colors[axis] = next((color for color in own if color in free), (free or ["#888888"])[0])
    return colors


def has_pipeline(axes: Iterable[str]) -> bool:
    """Return whether one of the axes is a pipeline, whose ranks send and receive."""
    return any(STANDARD_OF.get(axis) == "pp" for axis in axes)


def data_axes(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes along which ranks read different samples, in the order of the mesh."""
    return tuple(axis for axis in sizes if axis in DATA or axis in EXPERT)


def unknown_axes(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes longer than 1 whose names say nothing about samples."""
    return tuple(axis for axis, size in sizes.items() if size > 1 and axis_role(axis) == "unknown")


def gradient_axes(sizes: Mapping[str, int], *, experts: bool = False) -> tuple[str, ...]:
    """Return the axes over which gradients are averaged, of dense layers or of experts.

    Tokens differ along the data and expert axes, which divide the samples, and along those of cp
    and sp, which divide each sample. Expert axes hold different experts.
    Unknown axes are left out::

        dp=2 ep=4 sp=2     dense gradients  dp ep sp     gradients of experts  dp sp

    Standard axes have the standard order for every order of the mesh. With another name among
    them, the axes have the order of the mesh.
    """
    chosen = AVERAGED - EXPERT if experts else AVERAGED
    axes = tuple(filter(chosen.__contains__, sizes))
    return tuple(sorted(axes, key=STANDARD.index)) if {*axes} <= {*STANDARD} else axes


def axes_with_unknown(sizes: Mapping[str, int], known: Collection[str]) -> list[tuple[str, ...]]:
    """Return the axes a user may mean: the known ones with all, one or none of unknown role."""
    unknown = unknown_axes(sizes)
    choices = [{*known, *some} for some in (unknown, *zip(unknown), ())]
    return [*dict.fromkeys(tuple(axis for axis in sizes if axis in some) for some in choices)]


def unknown_role_error(sizes: Mapping[str, int], fix: str) -> SpecError:
    """Return the error for axes longer than 1 whose names say nothing about samples."""
    roles = ", ".join(f"{axis} {axis_role(axis)}" for axis in sizes)
    return SpecError(
        f"nothing says whether ranks along {' or '.join(unknown_axes(sizes))} share samples.",
        f"The roles of the axes, by their names: {roles}.",
        fix=fix,
        sizes=dict(sizes),
    )


def parse_axes(names: object) -> tuple[str, ...]:
    """Return the axis names of a text, or of texts in a sequence of any depth, outermost first.

    A set may have another order in each process, so its names are sorted.
    """
    if isinstance(names, str):
        words = names.translate(SEPARATORS).split()
        if names.count("(") != names.count(")"):
            raise SpecError(f"{names!r} has an open bracket.", fix=f"{' '.join(words)!r}.")
        return tuple(words)
    if isinstance(names, Iterable):
        return tuple(name for part in in_order(names) for name in parse_axes(part))
    return (names,)  # type: ignore[return-value]


def in_order(names: Iterable[object]) -> list[object]:
    """Return names as a list that is equal in each process, so a set is sorted."""
    return sorted(names, key=str) if isinstance(names, set | frozenset) else [*names]


def parse_axis(value: object, axes: tuple[str, ...]) -> str:
    """Return the one axis that an argument names."""
    names = parse_axes(value)
    check_axes_exist(names, axes)
    if len(names) != 1:
        line = f"{value!r} names {len(names)} axes instead of one."
        raise SpecError(line, fix=f"for example {(names or axes)[0]!r}.")
    return names[0]


def resolve_axes(argument: str, value: object, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the axes that an argument names, in the order written; none for an empty value."""
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
    meant = standard_axis(str(name)) or STANDARD_OF.get(str(name))
    same = [axis for axis in axes if STANDARD_OF.get(axis) == meant] if meant else [*axes]
    closest = same if meant and len(same) == 1 else closest_axes(name, same)
    suggestion = closest[0] if len(closest) == 1 else None
    fix = f"did you mean {suggestion}?" if suggestion else f"use one of {', '.join(axes)}."
    evidence = [f"The axes are {', '.join(axes)}."]
    if isinstance(name, int):  # as DeviceMesh counts its dims
        fix = f"write {', '.join(f'{axis!r} for {i}' for i, axis in enumerate(axes))}."
        torch_mesh = f"mesh.device_mesh({axes[0]!r})"
        evidence.append(f"A function of torch that expects a DeviceMesh takes {torch_mesh}.")
    if several := _split_joined(str(name), axes):
        suggestion, fix = None, f"did you mean {' '.join(several)!r}, these axes together?"
    return UnknownAxisError(
        f"there is no axis {name!r}.",
        *evidence,
        fix=fix,
        axis=name,
        axes=axes,
        suggestion=suggestion,
    )


def _split_joined(name: str, axes: Collection[str]) -> list[str]:
    """Return the axes that a name joins, such as ``dp+tp`` or ``dp_tp``; empty if it joins none."""
    names = sorted({*axes, *STANDARD}, key=len, reverse=True)  # dp_shard before dp
    one = "|".join(map(re.escape, names))
    joined = re.findall(one, name) if re.fullmatch(rf"({one})([\W_]+({one}))+", name) else []
    return joined if len({*joined}) == len(joined) else []


def closest_axes(name: object, axes: Collection[str]) -> list[str]:
    """Return the axes that a name is probably a misspelling of, all equally near."""
    if name in STANDARD:  # a correct name, not a misspelling of another one
        return []
    return closest_names(str(name).lower(), axes, 0.5)


def check_names(names: Collection[object]) -> None:
    """Check that einops, Python and meshkit's own options accept the names as axes."""
    for name in names:
        reason = name_fault(name)
        if reason:
            fix = "a short lower-case word, such as dp, sp or tp."
            if name in RESERVED:
                fix = f"another name; {name} is an option of {option_owner(name)}."
            raise SpecError(f"{name!r} cannot be the name of an axis.", f"It {reason}.", fix=fix)
    if not 1 <= len(names) <= MAX_AXES:
        fix = "leave out axes of size 1." if names else "for example dp=1."
        raise SpecError(f"{CALL} has {len(names)} axes.", f"A mesh has 1 to {MAX_AXES}.", fix=fix)


def name_fault(name: object) -> str | None:
    """Return why a name cannot be that of an axis; None if it can."""
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
    return "is the name of an option" if name in RESERVED else None
