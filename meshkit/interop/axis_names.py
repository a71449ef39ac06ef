"""The axes of a mesh by the names that a library has for them. Local, equal on all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ..core.call import Call
from ..core.errors import SpecError
from ..core.grid.axis_names import STANDARD
from ..core.grid.layout import Layout


def rename_axes(layout: Layout, library: str, known: Iterable[str], data: str) -> dict[str, int]:
    """The sizes of all axes that a library knows, from the outside in as they nest in the mesh.

    Axes of one rank are left out, or stand first with size 1, whatever they are called.

    Args:
        layout: the grid.
        library: its name in words.
        known: the names that the library has.
        data: what it calls ``dp``, one of them.

    Raises:
        SpecError: for an axis of several ranks that the library cannot express, and for two axes
            that it would call the same.

    Example:
        >>> sizes = ["pp", "fsdp", "tp"]
        >>> rename_axes(Call("f"), Layout(dp=4, sp=1, tp=2), "L", sizes, "fsdp")
        {'pp': 1, 'fsdp': 4, 'tp': 2}
    """
    names = {**{name: name for name in known}, "dp": data}
    split = {axis: size for axis, size in layout.sizes.items() if size > 1}
    unknown = [axis for axis in split if axis not in names]
    if unknown:
        raise _inexpressible(layout, library, names, unknown)
    if "dp" in split and data != "dp" and data in split:
        raise SpecError(
            f"dp would be {data}, which is an axis already.",
            f"dp is {split['dp']}, {data} is {split[data]}.",
            fix=f"data= another of {', '.join(n for n in names if n not in ('dp', data))}.",
            sizes=layout.sizes,
        )
    found = {names[axis]: size for axis, size in split.items()}
    return {**{name: 1 for name in names if name != "dp" and name not in found}, **found}


def check_data(data: str, choices: tuple[str, ...]) -> None:
    """Refuse a name for dp that is not one of the library's.

    Raises:
        SpecError: with those that are.
    """
    if data not in choices:
        fix = f"data={' or data='.join(repr(name) for name in choices)}."
        raise SpecError(f"dp cannot be {data!r}.", fix=fix)


def _inexpressible(
    layout: Layout, library: str, names: Mapping[str, str], unknown: list[str]
) -> SpecError:
    """The error of axes that the library does not have, with a mesh of as many ranks."""
    kept = {a: n for a, n in layout.sizes.items() if a in names and a in STANDARD and a != "dp"}
    sizes = {**kept, "dp": layout.num_ranks // math.prod(kept.values())}
    fix = Call("build_mesh", kwargs={axis: sizes[axis] for axis in STANDARD if axis in sizes})
    return SpecError(
        f"{library} cannot split over {' or '.join(unknown)}.",
        f"Its axes are {', '.join(name for name in names if name != 'dp')};"
        f" {', '.join(f'{axis} is {layout.size(axis)}' for axis in unknown)}.",
        fix=f"{fix}, or axes that it has.",
        sizes=layout.sizes,
    )
