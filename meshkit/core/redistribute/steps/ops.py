"""Operations of one rank: the steps of a plan with the numbers of its coordinate.

``live/move`` runs them with torch for one rank, the interpreter of the tests with numpy for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...data.sequence import SequencePlan

Index = tuple[slice | int, ...]
Shape = tuple[int, ...]
Kind = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"]


@dataclass(frozen=True)
class Arrange:
    """Reshape, then permute the dims; None leaves the shape or the order."""

    shape: Shape | None
    order: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Take:
    """Take a part of the tensor."""

    index: Index


@dataclass(frozen=True)
class Fill:
    """Put the tensor into zeros of a shape."""

    shape: Shape
    index: Index


@dataclass(frozen=True)
class Keep:
    """Keep the tensor, or replace it by zeros."""

    is_kept: bool


@dataclass(frozen=True)
class Reorder:
    """Put a dim of whole sequences into the order of a plan, with its padding, or back.

    Padding is 0.
    """

    dim: int
    plan: SequencePlan
    back: bool


@dataclass(frozen=True)
class Collective:
    """One collective over a group.

    The parts of a ``reduce_scatter`` are the first dims, and so are those of an ``all_gather``.
    """

    kind: Kind
    axes: tuple[str, ...]  # the axes of the group, in the order of the mesh
    size: int
    shape: Shape
    root: int = 0  # the group rank that sends a broadcast or receives a reduction


@dataclass(frozen=True)
class AllToAll:
    """Exchange blocks of one size, which lie one after the other in the order of the group."""

    axes: tuple[str, ...]  # the axes of the group, in the order of the mesh
    sends: Shape | None  # the elements for each rank of the group; None for equal numbers
    receives: Shape | None  # the elements from each rank; None likewise
    shape: Shape


@dataclass(frozen=True)
class Route:
    """Exchange regions of any size. A region that several ranks send is summed."""

    axes: tuple[str, ...]  # the axes of the group, in the order of the mesh
    # the region of this rank's tensor for each rank of the group, or None
    sends: tuple[Index | None, ...]
    receives: tuple[Index | None, ...]  # the region of the result from each rank, or None
    shape: Shape  # the shape of the result, which is 0 outside these regions


Op = Arrange | Take | Fill | Keep | Reorder | Collective | AllToAll | Route
