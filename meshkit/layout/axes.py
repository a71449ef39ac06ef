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
such as ``dp_size``, raises an error with the name here; guesses.py has whole calls.
"""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple

from ..errors import CALL, SpecError, UnknownAxisError
from ..text import article

Role = Literal["data", "expert", "model", "unknown"]
Names = str | Iterable["str | Iterable[str]"]  # axes as a caller lists them


class Axis(NamedTuple):
    """A standard axis."""

    role: Role  # whether its ranks read different samples, or share them
    color: str  # of Okabe and Ito, "Color Universal Design" (2008), for all kinds of color vision
    synonyms: str  # names in other libraries that mean this axis
    relatives: str  # names of its role, beside which a mesh may have this axis too


DATA_NAMES = "data_parallel ddp fsdp hsdp shard replicate replica dp_shard dp_replicate batch"
PIPELINE_NAMES = "pipe pipeline pipeline_model stage stages"
TENSOR_NAMES = "mp model model_parallel mdl tensor_parallel etp"
AXES = {
    "pp": Axis("model", "#cc79a7", PIPELINE_NAMES, "pipeline_parallel"),
    "dp": Axis("data", "#0072b2", "data", DATA_NAMES),
    "ep": Axis("expert", "#56b4e9", "expert experts expert_model", "expert_parallel"),
    "cp": Axis("model", "#d55e00", "context", "context_parallel"),
    "sp": Axis("model", "#009e73", "seq sequence ulysses ring_attn", "sequence_parallel"),
    "tp": Axis("model", "#e69f00", "tensor tensor_model", TENSOR_NAMES),
}
STANDARD = tuple(AXES)
SYNONYMS = {name: axis for axis, row in AXES.items() for name in (axis, *row.synonyms.split())}
STANDARD_OF = SYNONYMS | {n: axis for axis, row in AXES.items() for n in row.relatives.split()}
DATA, EXPERT, CONTEXT, SEQUENCE = (
    frozenset(name for name, standard in STANDARD_OF.items() if standard == axis)
    for axis in ("dp", "ep", "cp", "sp")
)
AVERAGED = DATA | EXPERT | CONTEXT | SEQUENCE  # along these axes tokens differ

INIT_OPTIONS = frozenset(
    {"seed", "device", "init_method", "rank", "world_size", "local_rank", "bind", "verbose"}
)
BATCH_OPTIONS = frozenset({"global_batch", "micro_batch", "accumulation_steps"})
MESH_OPTIONS = frozenset(
    {"order", "sizes", "groups", "ranks", "timeout", "arrival_timeout", "backend"}
    | {"place", "crossing", "within", "across", "share"}
)
RESERVED = INIT_OPTIONS | BATCH_OPTIONS | MESH_OPTIONS  # no axis may have such a name
OTHER_NAMES = {
    "global_batch": "global_batch_size train_batch_size total_batch_size train_global_batch_size",
    "micro_batch": "micro_batch_size per_device_train_batch_size per_device_batch_size "
    "train_micro_batch_size_per_gpu local_batch_size batch_size",
    "accumulation_steps": "gradient_accumulation_steps grad_accumulation_steps grad_accum_steps "
    "accumulate_grad_batches gradient_accumulation accumulation",
    "timeout": "timeouts",
    "order": "axis_order dim_order",
    "device": "device_id",
    "init_method": "url",
    "backend": "dist_backend",
    "world_size": "nprocs",
    "nodes": "nnodes num_nodes",
    "seq": "seq_len seq_length sequence_length max_seq_len",
}
ARGUMENTS = {other: name for name, others in OTHER_NAMES.items() for other in others.split()}
SUFFIX = r"_(size|degree|dim|ranks|world_size|parallel|parallelism|parallel_size)$"
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


def check_names(names: Collection[object]) -> None:
    """Check that einops, Python and meshkit's own options accept the names as axes."""
    for name in names:
        reason = _name_fault(name)
        if reason:
            fix = "a short lower-case word, such as dp, sp or tp."
            if name in RESERVED:
                fix = f"another name; {name} is an option of {option_owner(name)}."
            raise SpecError(f"{name!r} cannot be the name of an axis.", f"It {reason}.", fix=fix)
    if not 1 <= len(names) <= MAX_AXES:
        fix = "leave out axes of size 1." if names else "for example dp=1."
        raise SpecError(f"{CALL} has {len(names)} axes.", f"A mesh has 1 to {MAX_AXES}.", fix=fix)


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
    return "is the name of an option" if name in RESERVED else None


def standard_axis(name: str) -> str | None:
    """Return the standard axis that a name of another library means, or None."""
    word = name
    while (shorter := re.sub(SUFFIX, "", word)) != word:
        word = shorter
    return SYNONYMS.get(word)


def option_owner(name: object) -> str:
    """Return the call that has an option of this name, or axes of this name; "" if none has."""
    if name in INIT_OPTIONS:
        return "meshkit.init"
    if name in BATCH_OPTIONS:
        return "mesh.batch"
    return "build_mesh" if name in MESH_OPTIONS or name in STANDARD else ""


def known_name(name: str, names: Collection[str]) -> str | None:
    """Return which of the names another name means, or None."""
    alias = ARGUMENTS.get(name) or standard_axis(name)
    close = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.8)
    return alias if alias in names else close[0] if close else None
