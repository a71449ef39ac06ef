"""The table of axes: the role, the color and the other names of each.

The standard axes nest in the order of the table, from the outermost to the innermost. Tensor
parallelism communicates most, so tp is innermost and its ranks are the closest neighbors::

    pp  dp  ep  cp  sp  tp
    far ................ near
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NamedTuple

Role = Literal["data", "expert", "model", "unknown"]


class Axis(NamedTuple):
    """A standard axis."""

    role: Role  # whether its ranks read different samples, or share them
    color: str  # of Okabe and Ito, "Color Universal Design" (2008), for all kinds of color vision
    names: tuple[str, ...]  # in other libraries


AXES = {
    "pp": Axis(
        "model",
        "#cc79a7",
        ("pipe", "pipeline", "pipeline_parallel", "pipeline_model", "stage", "stages"),
    ),
    "dp": Axis(
        "data",
        "#0072b2",
        (
            *("data", "data_parallel", "ddp", "fsdp", "hsdp", "shard", "replicate", "replica"),
            *("dp_shard", "dp_replicate", "batch"),
        ),
    ),
    "ep": Axis("expert", "#56b4e9", ("expert", "experts", "expert_parallel", "expert_model")),
    "cp": Axis("model", "#d55e00", ("context", "context_parallel")),
    "sp": Axis("model", "#009e73", ("seq", "sequence", "sequence_parallel", "ulysses")),
    "tp": Axis(
        "model",
        "#e69f00",
        (
            *("mp", "model", "model_parallel", "mdl", "tensor", "tensor_parallel"),
            *("tensor_model", "etp"),
        ),
    ),
}
STANDARD = tuple(AXES)
STANDARD_OF = {name: axis for axis, row in AXES.items() for name in (axis, *row.names)}


def names_of(*axes: str) -> frozenset[str]:
    """Return all names of some standard axes."""
    return frozenset(name for axis in axes for name in (axis, *AXES[axis].names))


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
