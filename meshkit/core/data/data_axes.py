"""The axes that divide the samples: those that ``data=`` names, or else those of the roles.

Ranks with the same index along the data axes share a sample.
No function guesses whether ranks along an axis of unknown role read different samples::

    pp=2 dp=2 ep=2 tp=2     data axes  dp ep
    dp=2 rows=4             refused: dp, or dp and rows?
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..call import either
from ..grid.axis_names import resolve_axes
from ..grid.roles import axes_with_unknown, data_axes, unknown_axes, unknown_role_error

MAX_CHOICES = 4  # sets of axes that a fix shows

Axes = tuple[str, ...]


def resolve_data_axes(data: object, sizes: Mapping[str, int]) -> Axes:
    """Return the axes that ``data=`` names; for None, the axes whose role divides the samples."""
    if data is not None:
        return resolve_axes("data", data, tuple(sizes))
    if unknown_axes(sizes):
        ways = (f"data={' '.join(axes)!r}" for axes in data_choices(sizes))
        raise unknown_role_error(sizes, either(*ways))
    return data_axes(sizes)


def num_data_coordinates(sizes: Mapping[str, int], axes: Axes) -> int:
    """Return the number of data coordinates: the product of the sizes of the data axes."""
    return math.prod(sizes.get(axis, 1) for axis in axes)


def data_choices(sizes: Mapping[str, int], dp: int | None = None) -> list[Axes]:
    """Return the sets of axes that may divide the samples, the largest first."""
    choices = axes_with_unknown(sizes, data_axes(sizes))
    fitting = [axes for axes in choices if num_data_coordinates(sizes, axes) == dp]
    return (fitting or choices)[:MAX_CHOICES]


def describe_data(sizes: Mapping[str, int], axes: Axes) -> tuple[str, ...]:
    """Return a line about the sizes of the data axes; none if dp alone divides the samples.

    Other texts call the product of the data axes dp.
    """
    long_axes = [axis for axis in axes if sizes.get(axis, 1) > 1]
    if long_axes in ([], ["dp"]):
        return ()
    product = " x ".join(f"{axis} {sizes[axis]}" for axis in long_axes)
    total = f" = {num_data_coordinates(sizes, axes)}" if len(long_axes) > 1 else ""
    return (f"{product}{total} divides the samples.",)
