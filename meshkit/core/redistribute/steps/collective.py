"""Steps that communicate: one collective, an exchange of blocks, or a route of regions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..cut import Coordinate, Cut, Region, num_elements, overlap, slices_within
from ..digits import AxisDigit
from . import ops
from .step import Holders, Step, group_rank, is_held


@dataclass(frozen=True)
class Collective(Step):
    """One collective over a group."""

    kind: ops.Kind
    axes: tuple[str, ...]
    size: int
    cut: Cut  # the division of the smaller of its input and its result
    shape: ops.Shape = ()  # the shape of the result; None for the shape of the input
    root: Holders = ()  # the coordinate that sends or receives, by axis

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
    """One all_to_all of equal blocks."""

    name: ClassVar[str] = "all_to_all"
    axes: tuple[str, ...]
    source: Cut
    target: Cut
    shape: ops.Shape
    # the factors of the group's ranks; each with the factor whose index of this rank is that of the
    # receiver, or None if all indices receive
    to: tuple[tuple[AxisDigit, AxisDigit | None], ...]
    # the same for the ranks from which this rank receives
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
    """One all_to_all of regions of any size, each from the rank that holds it."""

    axes: tuple[str, ...]
    source: Cut
    target: Cut
    senders: Holders = ()  # the axes of which one coordinate holds the tensor before
    receivers: Holders = ()  # the axes of which one coordinate holds the tensor after
    summed: int = 1  # the number of ranks whose parts are summed

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
