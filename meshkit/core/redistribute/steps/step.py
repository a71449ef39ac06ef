"""Step: a part of a plan, the same for all ranks, which counts what a rank receives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from ..cut import Coordinate
from . import ops

Holders = tuple[tuple[str, int], ...]  # axis, and the coordinate that holds the tensor


class Step(ABC):
    """A step of a plan, the same on every rank."""

    # the name in a report; empty for changes of shape, which need no line there
    name: ClassVar[str] = ""
    # the axes concerned, in the order of the mesh; a step without a name has none
    axes: tuple[str, ...]

    @abstractmethod
    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the operation of the rank at a coordinate."""

    def received(self, coordinate: Coordinate) -> Any:  # noqa: ANN401  # also arrays
        """Return the elements that the rank at a coordinate receives from other ranks."""
        return 0


def is_held(holders: Holders, coordinate: Coordinate) -> Any:  # noqa: ANN401  # also arrays
    """Return whether a coordinate is the one that holds the tensor on each of the axes."""
    held: Any = True
    for axis, index in holders:
        held = held & (coordinate[axis] == index)
    return held


def group_rank(coordinate: Holders, sizes: dict[str, int]) -> int:
    """Return the group rank of a coordinate, given in the order of the group's axes."""
    rank = 0
    for axis, index in coordinate:
        rank = rank * sizes[axis] + index
    return rank
