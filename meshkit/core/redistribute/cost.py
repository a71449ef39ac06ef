"""Cost of a plan in elements that a rank receives, and the least number that any plan needs.

A rank must receive the elements of its result that it does not hold. A reduce_scatter of n elements
over p ranks takes n (p - 1) / p, and an all_reduce twice that (Patarasuk and Yuan, 2009).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .cut import Coordinate
from .move import Move
from .plan import Plan
from .stages import Stages, least_sums
from .steps.collective import Route


def least_received(move: Move, coordinate: Coordinate) -> Any:  # noqa: ANN401  # also arrays
    """Return the elements that the rank at a coordinate receives at least."""
    stages, types = Stages(move), move.type_of
    senders = tuple((axis, types[axis][0].holder) for axis in move.axes_of("@", "/@"))
    receivers = tuple((axis, types[axis][1].holder) for axis in move.axes_of("/@", "@"))
    route = Route((), stages.reduced, stages.fillable, senders, receivers)
    return route.received(coordinate) + sum(
        step.received(coordinate) for step in least_sums(stages)
    )


def most_over_ranks(move: Move, count: Any) -> int:  # noqa: ANN401  # a function of a coordinate
    """Return the largest value over all ranks. Cost: O(ranks along the named axes)."""
    sizes = dict(move.axes)
    grids = np.indices(tuple(sizes.values()), sparse=True) if sizes else ()
    return int(np.max(count(dict(zip(sizes, grids, strict=True)))))


def most_received(plan: Plan) -> int:
    """Return the elements that the rank with the most of them receives."""
    return most_over_ranks(plan.move, plan.received)


def most_needed(move: Move) -> int:
    """Return the least number of elements for the rank that needs most."""
    return most_over_ranks(move, lambda coordinate: least_received(move, coordinate))
