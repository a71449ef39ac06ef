"""Translate the axes of a mesh into the names of a library. Local, equal on all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ..core.call import Call
from ..core.errors import SpecError
from ..core.grid.axis_names import STANDARD
from ..core.grid.layout import Layout


def rename_axes(layout: Layout, library: str, known: Iterable[str], data: str) -> dict[str, int]:
    """Return the size of each axis that a library knows, the outermost first, as in the mesh.

    Axes of one rank come first with size 1, or are left out if the library does not know them.
    """
    names = {**{name: name for name in known}, "dp": data}
    long_axes = {axis: size for axis, size in layout.sizes.items() if size > 1}
    unknown = [axis for axis in long_axes if axis not in names]
    if unknown:
        raise _unknown_axes_error(layout, library, names, unknown)
    if "dp" in long_axes and data != "dp" and data in long_axes:
        others = [name for name in names if name not in ("dp", data)]
        raise SpecError(
            f"dp would get the name {data}, which another axis has.",
            f"dp is {long_axes['dp']}, {data} is {long_axes[data]}.",
            fix=f"use another name for dp: data={' or data='.join(map(repr, others))}.",
            sizes=layout.sizes,
        )
    sizes = {names[axis]: size for axis, size in long_axes.items()}
    return {**{name: 1 for name in names if name != "dp" and name not in sizes}, **sizes}


def check_data(data: str, choices: tuple[str, ...]) -> None:
    """Check that a name for dp is one of the library's."""
    if data not in choices:
        fix = f"data={' or data='.join(repr(name) for name in choices)}."
        raise SpecError(f"data is {data!r}.", fix=fix)


def _unknown_axes_error(
    layout: Layout, library: str, names: Mapping[str, str], unknown: list[str]
) -> SpecError:
    """Return the error for axes that a library does not know; the fix has as many ranks."""
    kept = {a: n for a, n in layout.sizes.items() if a in names and a in STANDARD and a != "dp"}
    sizes = {**kept, "dp": layout.num_ranks // math.prod(kept.values())}
    fix = Call("build_mesh", kwargs={axis: sizes[axis] for axis in STANDARD if axis in sizes})
    return SpecError(
        f"{library} has no axis {' or '.join(unknown)}.",
        f"Its axes are {', '.join(name for name in names if name != 'dp')};"
        f" {', '.join(f'{axis} is {layout.size(axis)}' for axis in unknown)}.",
        fix=f"{fix}, or other axes of this library.",
        sizes=layout.sizes,
    )
