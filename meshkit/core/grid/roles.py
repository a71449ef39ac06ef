"""Roles of axes: whether ranks along an axis read different samples, or share them.

The name of an axis gives its role, in meshkit's words and in those of other libraries::

    role      axes                           ranks along the axis
    data      dp, data, fsdp, replicate ...  read different samples
    expert    ep, expert ...                 read different samples, hold different experts
    model     pp, tp, cp, sp, model ...      share samples
    unknown   any other name                 nothing is known

Gradients of dense layers are averaged over the axes along which tokens differ. These are the data
and expert axes, which divide the samples, and those of cp and sp, which divide each sample. Along
expert axes ranks hold different experts, so gradients of experts are averaged over all the others::

    dp=2 ep=4 sp=2     dense gradients  dp ep sp     gradients of experts  dp sp
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from ..errors import SpecError
from .axis_names import STANDARD

Role = Literal["data", "expert", "model", "unknown"]

DATA = frozenset(
    {
        *("dp", "data", "data_parallel", "ddp", "fsdp", "hsdp", "shard", "replicate", "replica"),
        *("dp_shard", "dp_replicate", "batch"),
    }
)
EXPERT = frozenset({"ep", "expert", "experts", "expert_parallel"})
CONTEXT = frozenset({"cp", "context", "context_parallel"})
SEQUENCE = frozenset({"sp", "seq", "sequence", "sequence_parallel", "ulysses"})
LAYERS = frozenset(  # axes that split the weights; the tokens are equal along them
    {
        *("tp", "mp", "model", "model_parallel", "mdl", "tensor", "tensor_parallel", "etp"),
        *("pp", "pipe", "pipeline", "pipeline_parallel", "stage", "stages"),
    }
)
MODEL = LAYERS | CONTEXT | SEQUENCE
AVERAGED = DATA | EXPERT | CONTEXT | SEQUENCE  # along these axes tokens differ


def axis_role(axis: str) -> Role:
    """Return the role of an axis by its name."""
    if axis in DATA:
        return "data"
    if axis in EXPERT:
        return "expert"
    return "model" if axis in MODEL else "unknown"


def data_axes(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes along which ranks read different samples, in the order of the mesh."""
    return tuple(axis for axis in sizes if axis in DATA or axis in EXPERT)


def unknown_axes(sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the axes longer than 1 whose names say nothing about samples."""
    return tuple(axis for axis, size in sizes.items() if size > 1 and axis_role(axis) == "unknown")


def gradient_axes(sizes: Mapping[str, int], *, experts: bool = False) -> tuple[str, ...]:
    """Return the axes over which gradients are averaged. Axes of unknown role are left out.

    Standard axes have the standard order, as in ``mesh.group("dp", "sp")``, for every order of the
    mesh. With another name among them, the axes have the order of the mesh.
    """
    chosen = AVERAGED - EXPERT if experts else AVERAGED
    axes = tuple(filter(chosen.__contains__, sizes))
    return tuple(sorted(axes, key=STANDARD.index)) if {*axes} <= {*STANDARD} else axes


def axes_with_unknown(sizes: Mapping[str, int], known: Collection[str]) -> list[tuple[str, ...]]:
    """Return the axes that a user may mean: the known ones with all, one or none of unknown role.

    Example:
        >>> axes_with_unknown({"dp": 2, "rows": 4, "tp": 2}, {"dp"})
        [('dp', 'rows'), ('dp',)]
        >>> axes_with_unknown({"x": 4, "y": 2}, ())
        [('x', 'y'), ('x',), ('y',), ()]
    """
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
