"""Sizes that count the ranks along ep inside dp, as Megatron's options do, and both readings here.

Megatron writes ``dp=8, ep=4`` for 8 ranks that read different samples, and divides dp for the
experts. A mesh of these 8 ranks is ``dp=2, ep=4``; or a dense mesh ``dp=8``, with a view for the
experts::

    dp=8           0 1 2 3 4 5 6 7
    dp=2 ep=4      0 1 2 3|4 5 6 7
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..call import Call, changes
from .axis_names import STANDARD
from .roles import DATA, EXPERT


def divide_data_axis(sizes: Mapping[str, int], num_ranks: int) -> dict[str, int] | None:
    """Return sizes that fit the ranks if a data axis counts the ranks along the expert axis, too.

    None if the sizes do not fit in that reading either.

    Example:
        >>> divide_data_axis({"dp": 8, "ep": 4, "tp": 2}, 16)
        {'dp': 2, 'ep': 4, 'tp': 2}
    """
    experts = [axis for axis in sizes if axis in EXPERT]
    if len(experts) != 1 or math.prod(sizes.values()) != num_ranks * sizes[experts[0]]:
        return None
    size = sizes[experts[0]]
    data = [axis for axis in sizes if axis in DATA and sizes[axis] % size == 0]
    return {**sizes, data[-1]: sizes[data[-1]] // size} if data and size > 1 else None


def use_divided(sizes: Mapping[str, int], divided: Mapping[str, int]) -> str:
    """Return the words for a smaller data axis."""
    return changes(**{axis: size for axis, size in divided.items() if size != sizes[axis]})


def leave_out_experts(sizes: Mapping[str, int]) -> str:
    """Return the words for the dense mesh, without the expert axis."""
    dense = [axis for axis in sizes if axis not in EXPERT]
    order = None if _is_standard(dense) else " ".join(dense)
    left_out = dict.fromkeys(axis for axis in sizes if axis not in dense)
    return changes(**({} if order is None else {"order": order}), **left_out)


def dense_mesh_and_view(sizes: Mapping[str, int], divided: Mapping[str, int]) -> list[str]:
    """Return the words for the dense mesh and the view of it for the experts.

    A view keeps the order in which its axes are written, so there is none for another order.
    """
    if not _is_standard([axis for axis in divided if axis in STANDARD]):
        return []
    return [f"{leave_out_experts(sizes)}, and then {Call('mesh.view', kwargs=divided)}"]


def describe_divided(sizes: Mapping[str, int], divided: Mapping[str, int]) -> str:
    """Return the evidence with the data axis in both readings."""
    axis = next(axis for axis in sizes if divided[axis] != sizes[axis])
    experts = next(axis for axis in sizes if axis in EXPERT)
    product = f"{axis} {divided[axis]} x {experts} {divided[experts]}"
    count = f"{sizes[axis]} data-parallel ranks"
    return f"Ranks along {experts} read different samples, so {count} are {product}."


def _is_standard(axes: list[str]) -> bool:
    """Return whether all axes are standard ones in the standard order."""
    return axes == [axis for axis in STANDARD if axis in axes]
