"""Steps without communication: changes of shape, slices, zeros, and the order of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...sequence import SequencePlan
from ..cut import Coordinate, Cut, slices_within
from ..digits import AxisDigit
from ..move import Entries, local_shape
from . import ops
from .step import Holders, Step, is_held


@dataclass(frozen=True)
class Arrange(Step):
    """Reshape, then permute."""

    shape: ops.Shape | None
    order: tuple[int, ...] | None = None

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the same operation on every rank."""
        return ops.Arrange(self.shape, self.order)


@dataclass(frozen=True)
class SplitDims(Step):
    """Split the local tensor into the dims of the global one, in their order or in another."""

    cut: Cut
    order: tuple[int, ...] | None = None

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the reshape to this rank's sizes."""
        return ops.Arrange(self.cut.shape(coordinate), self.order)


@dataclass(frozen=True)
class JoinDims(Step):
    """Join the ordered dims into those of the result."""

    cut: Cut
    entries: Entries

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the reshape to this rank's sizes."""
        return ops.Arrange(local_shape(self.entries, self.cut.shape(coordinate)))


@dataclass(frozen=True)
class TakeDigits(Step):
    """Take this rank's index of some dims."""

    name: ClassVar[str] = "slice"
    factors: tuple[tuple[int, AxisDigit], ...]
    rank: int
    axes: tuple[str, ...]

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the index of a coordinate."""
        index: list[slice | int] = [slice(None)] * self.rank
        for dim, factor in self.factors:
            index[dim] = factor.index(coordinate)
        return ops.Take(tuple(index))


@dataclass(frozen=True)
class FillDigits(Step):
    """Put the tensor at this rank's index of new first dims, in zeros."""

    name: ClassVar[str] = "zero-fill"
    factors: tuple[AxisDigit, ...]
    shape: ops.Shape
    axes: tuple[str, ...]

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the index of a coordinate."""
        index = tuple(factor.index(coordinate) for factor in self.factors)
        return ops.Fill(self.shape, index)


@dataclass(frozen=True)
class TakeRegion(Step):
    """Take this rank's region of a tensor."""

    name: ClassVar[str] = "slice"
    source: Cut
    target: Cut
    axes: tuple[str, ...]

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the region of a coordinate."""
        parts = self.target.region(coordinate), self.source.region(coordinate)
        return ops.Take(slices_within(*parts))


@dataclass(frozen=True)
class FillRegion(Step):
    """Put the tensor into zeros, at this rank's region."""

    name: ClassVar[str] = "zero-fill"
    source: Cut
    target: Cut
    axes: tuple[str, ...]

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the region of a coordinate."""
        part, whole = self.source.region(coordinate), self.target.region(coordinate)
        return ops.Fill(self.target.shape(coordinate), slices_within(part, whole))


@dataclass(frozen=True)
class Keep(Step):
    """Keep the tensor where the coordinate holds it, with zeros on other ranks."""

    name: ClassVar[str] = "keep on one"
    axes: tuple[str, ...]
    holders: Holders

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return whether this rank keeps it."""
        return ops.Keep(is_held(self.holders, coordinate))


@dataclass(frozen=True)
class Reorder(Step):
    """Put whole sequences into the order of a plan, with its padding, or back."""

    name: ClassVar[str] = "reorder"
    axes: tuple[str, ...]
    dim: int
    plan: SequencePlan
    back: bool

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the same operation on every rank."""
        return ops.Reorder(self.dim, self.plan, self.back)
