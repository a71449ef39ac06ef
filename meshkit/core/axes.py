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
    synonyms: tuple[str, ...]  # names in other libraries that mean this axis
    relatives: tuple[str, ...]  # names of its role, beside which a mesh may have this axis too


AXES = {
    "pp": Axis(
        "model",
        "#cc79a7",
        ("pipe", "pipeline", "pipeline_model", "stage", "stages"),
        ("pipeline_parallel",),
    ),
    "dp": Axis(
        "data",
        "#0072b2",
        ("data",),
        (
            *("data_parallel", "ddp", "fsdp", "hsdp", "shard", "replicate", "replica"),
            *("dp_shard", "dp_replicate", "batch"),
        ),
    ),
    "ep": Axis("expert", "#56b4e9", ("expert", "experts", "expert_model"), ("expert_parallel",)),
    "cp": Axis("model", "#d55e00", ("context",), ("context_parallel",)),
    "sp": Axis("model", "#009e73", ("seq", "sequence", "ulysses"), ("sequence_parallel",)),
    "tp": Axis(
        "model",
        "#e69f00",
        ("tensor", "tensor_model"),
        ("mp", "model", "model_parallel", "mdl", "tensor_parallel", "etp"),
    ),
}
STANDARD = tuple(AXES)
SYNONYMS = {name: axis for axis, row in AXES.items() for name in (axis, *row.synonyms)}
STANDARD_OF = SYNONYMS | {name: axis for axis, row in AXES.items() for name in row.relatives}


def names_of(*axes: str) -> frozenset[str]:
    """Return all names of some standard axes."""
    return frozenset(name for name, axis in STANDARD_OF.items() if axis in axes)


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
