"""Steps of a plan: the same for all ranks. A step counts what a rank receives, and makes its op."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from . import ops
from .cut import Coordinate, Cut, Region, num_elements, overlap, slices_within
from .digits import AxisDigit
from .move import Entries, local_shape

Holders = tuple[tuple[str, int], ...]  # axis, and the coordinate that holds the tensor


class Step(ABC):
    """A step.

    Attributes:
        name: the name in a report; empty for changes of shape, which need no line there.
        axes: the axes concerned, in the order of the mesh; a step without a name has none.
    """

    name: ClassVar[str] = ""
    axes: tuple[str, ...]

    @abstractmethod
    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the operation of the rank at a coordinate."""

    def received(self, coordinate: Coordinate) -> Any:  # noqa: ANN401  # also arrays
        """Return the elements that the rank at a coordinate receives from other ranks."""
        return 0


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
    """Split the dims of the local tensor into those of the global one, of this rank's sizes."""

    cut: Cut

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the reshape to this rank's sizes."""
        return ops.Arrange(self.cut.shape(coordinate))


@dataclass(frozen=True)
class OrderDims(Step):
    """Split the dims as :class:`SplitDims` does, and permute them to the order of the result."""

    cut: Cut
    order: tuple[int, ...]

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the permutation."""
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
    """Put whole sequences into zigzag order, or back."""

    name: ClassVar[str] = "reorder"
    axes: tuple[str, ...]
    dim: int
    parts: int
    back: bool

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the same operation on every rank."""
        return ops.Reorder(self.dim, self.parts, self.back)


# ------------------------------------------------------------------ steps that communicate


@dataclass(frozen=True)
class Collective(Step):
    """One collective over a group.

    Attributes:
        kind: the collective.
        axes: the axes of its group.
        size: the ranks of the group.
        cut: the division of the smaller of its input and its result.
        shape: the shape of the result; None for the shape of the input.
        root: the coordinate that sends or receives, by axis.
    """

    kind: ops.Kind
    axes: tuple[str, ...]
    size: int
    cut: Cut
    shape: ops.Shape = ()
    root: Holders = ()

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the collective."""
        return self.kind

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the collective, with the root as a group rank."""
        root = group_rank(self.root, dict(self.cut.axes))
        return ops.Collective(self.kind, self.axes, self.size, self.shape, root)

    def received(self, coordinate: Coordinate) -> Any:  # noqa: ANN401
        """Return the elements by the formulas of ring algorithms."""
        elements = num_elements(self.cut.region(coordinate))
        if self.kind == "all_reduce":  # each half of it passes p - 1 of the p parts
            return -(-2 * elements * (self.size - 1) // self.size)
        if self.kind == "broadcast":
            return elements * (1 - is_held(self.root, coordinate))
        if self.kind == "reduce":
            return elements * is_held(self.root, coordinate)
        return elements * (self.size - 1)


@dataclass(frozen=True)
class Exchange(Step):
    """One all_to_all of equal blocks.

    Attributes:
        axes: the axes of its group.
        source: the division before.
        target: the division after.
        shape: the shape of the result.
        to: the factors of the group's ranks; each with the factor whose index of this rank is that
            of the receiver, or None if all indices receive.
        from_: the same for the ranks from which this rank receives.
    """

    name: ClassVar[str] = "all_to_all"
    axes: tuple[str, ...]
    source: Cut
    target: Cut
    shape: ops.Shape
    to: tuple[tuple[AxisDigit, AxisDigit | None], ...]
    from_: tuple[tuple[AxisDigit, AxisDigit | None], ...]

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the exchange, with numbers of elements unless all are equal."""
        elements = math.prod(self.shape)
        sends, receives = (self._counts(f, coordinate, elements) for f in (self.to, self.from_))
        return ops.AllToAll(self.axes, sends, receives, self.shape)

    def _counts(
        self,
        factors: Sequence[tuple[AxisDigit, AxisDigit | None]],
        coordinate: Coordinate,
        elements: int,
    ) -> ops.Shape | None:
        if all(fixed is None for _, fixed in factors):
            return None
        free = math.prod(factor.size for factor, fixed in factors if fixed is None)
        valid = [
            range(factor.size) if fixed is None else (fixed.index(coordinate),)
            for factor, fixed in factors
        ]
        counts = [0] * math.prod(factor.size for factor, _ in factors)
        for indices in itertools.product(*valid):
            rank = 0
            for index, (factor, _) in zip(indices, factors, strict=True):
                rank = rank * factor.size + index
            counts[rank] = elements // free
        return tuple(counts)

    def received(self, coordinate: Coordinate) -> Any:  # noqa: ANN401
        """Return the elements of the result that this rank did not hold."""
        source, target = self.source.region(coordinate), self.target.region(coordinate)
        return num_elements(target) - num_elements(overlap(source, target))


@dataclass(frozen=True)
class Route(Step):
    """One all_to_all of regions of any size, each from the rank that holds it.

    Attributes:
        axes: the axes of its group.
        source: the division before.
        target: the division after.
        senders: the axes of which one coordinate holds the tensor before.
        receivers: the axes of which one coordinate holds the tensor after.
        summed: the number of ranks whose parts are summed.
    """

    axes: tuple[str, ...]
    source: Cut
    target: Cut
    senders: Holders = ()
    receivers: Holders = ()
    summed: int = 1

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the exchange, by the ranks that send and receive."""
        if self.senders:
            return "send" if self.receivers else "scatter"
        return "gather" if self.receivers else "all_to_all"

    def op(self, coordinate: Coordinate) -> ops.Op:
        """Return the regions that this rank exchanges with each rank of its group."""
        own, result = self.source.region(coordinate), self.target.region(coordinate)
        sizes = dict(self.source.axes)
        sends: list[ops.Index | None] = []
        receives: list[ops.Index | None] = []
        is_sender = is_held(self.senders, coordinate)
        is_receiver = is_held(self.receivers, coordinate)
        for indices in itertools.product(*(range(sizes[axis]) for axis in self.axes)):
            peer = {**coordinate, **dict(zip(self.axes, indices, strict=True))}
            sent = is_sender and is_held(self.receivers, peer)
            sends.append(_index(self.target.region(peer), own) if sent else None)
            received = is_receiver and is_held(self.senders, peer)
            receives.append(_index(self.source.region(peer), result) if received else None)
        shape = self.target.shape(coordinate)
        return ops.Route(self.axes, tuple(sends), tuple(receives), shape)

    def received(self, coordinate: Coordinate) -> Any:  # noqa: ANN401
        """Return the elements from other ranks; of each summed rank one."""
        source, target = self.source.region(coordinate), self.target.region(coordinate)
        own = num_elements(overlap(source, target)) * is_held(self.senders, coordinate)
        every = num_elements(target) * self.summed
        return (every - own) * is_held(self.receivers, coordinate)


def _index(region: Region, whole: Region) -> ops.Index | None:
    """Return the index of the overlap in an array that holds ``whole``, or None if it is empty."""
    shared = overlap(region, whole)
    return slices_within(shared, whole) if num_elements(shared) else None


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
