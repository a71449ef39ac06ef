"""Steps: the parts of a plan, from the plan to their execution on a rank.

A step is the same for all ranks. A field whose value depends on the rank holds a :class:`Rule`, and
:meth:`Step.bind` fills in the value for a coordinate. operations.py runs bound steps with torch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

from ..layout.sequence import SequencePlan
from .digits import AxisDigit
from .move import (
    Coordinate,
    Cut,
    Entries,
    Region,
    local_shape,
    num_elements,
    overlap,
    slices_within,
)

Shape = tuple[int, ...]
Index = tuple[slice | int, ...]
Regions = tuple[Index | None, ...]  # a region for each rank of a group, or None
Holders = tuple[tuple[str, int], ...]  # axis, and the coordinate that holds the tensor
HolderPair = tuple[Holders, Holders]  # on a rank's own side, and on the other one
Kind = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"]
# A digit of the ranks of a group, and the digit of this rank that a receiver must equal along the
# first; None if ranks at every index receive. With (tp's digit, dp's digit) the rank of dp=1 sends
# to the ranks of tp=1 only
PeerDigit = tuple[AxisDigit, AxisDigit | None]
AnyStep = TypeVar("AnyStep", bound="Step")


@dataclass(frozen=True)
class Rule:
    """The value of a field of a step: a function of the coordinate and of other arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


class Step:
    """A part of a plan."""

    # the name in a report; empty for changes of shape, which need no line there
    name: ClassVar[str] = ""
    # the axes concerned, in the order of the mesh; of a collective, those of its group
    axes: tuple[str, ...]

    def bind(self: AnyStep, coordinate: Coordinate) -> AnyStep:
        """Return the step of the rank at a coordinate: values in place of rules."""
        rules = {name: v for name, v in vars(self).items() if isinstance(v, Rule)}
        own = {name: rule.function(coordinate, *rule.args) for name, rule in rules.items()}
        return replace(self, **own) if own else self  # type: ignore[type-var]

    def received(self, coordinate: Coordinate) -> Any:  # noqa: ANN401  # also arrays
        """Return the elements that the rank at a coordinate receives from other ranks."""
        return 0


# ------------------------------------------------------------------ functions of rules


def part_shape(coordinate: Coordinate, cut: Cut, entries: Entries | None = None) -> Shape:
    """Return the shape of a rank's part, with dims joined as in ``entries`` if they are given."""
    shape = cut.shape(coordinate)
    return shape if entries is None else local_shape(entries, shape)


def region_index(coordinate: Coordinate, part: Cut, whole: Cut) -> Index:
    """Return the index of a rank's part in its larger part of another division."""
    return slices_within(part.region(coordinate), whole.region(coordinate))


def digit_index(
    coordinate: Coordinate, digits: tuple[tuple[int, AxisDigit], ...], num_dims: int
) -> Index:
    """Return the index of a rank along some dims, each with the digit that divides it."""
    index: list[slice | int] = [slice(None)] * num_dims
    for dim, digit in digits:
        index[dim] = digit.index(coordinate)
    return tuple(index)


def is_holder(coordinate: Coordinate, holders: Holders) -> Any:  # noqa: ANN401  # also arrays
    """Return whether a rank has the coordinate that holds the tensor, on each of the axes."""
    held: Any = True
    for axis, index in holders:
        held = held & (coordinate[axis] == index)
    return held


def find_peers(coordinate: Coordinate, digits: tuple[PeerDigit, ...]) -> Shape:
    """Return 1 for each rank of a group with which a rank exchanges a block, 0 for each other."""
    choices = (
        [fixed is None or fixed.index(coordinate) == index for index in range(digit.size)]
        for digit, fixed in digits
    )
    return tuple(int(all(choice)) for choice in itertools.product(*choices))


def shared_regions(
    coordinate: Coordinate, axes: tuple[str, ...], sides: tuple[Cut, Cut], holders: HolderPair
) -> Regions:
    """Return the regions that a rank's part shares with the other side's part of each rank."""
    own, sizes = sides[0].region(coordinate), dict(sides[0].axes)
    regions: list[Index | None] = []
    for indices in itertools.product(*(range(sizes[axis]) for axis in axes)):
        peer = {**coordinate, **dict(zip(axes, indices, strict=True))}
        is_shared = is_holder(coordinate, holders[0]) and is_holder(peer, holders[1])
        regions.append(_shared_index(sides[1].region(peer), own) if is_shared else None)
    return tuple(regions)


def _shared_index(region: Region, whole: Region) -> Index | None:
    """Return the index of the overlap in an array that holds ``whole``, or None if it is empty."""
    shared = overlap(region, whole)
    return slices_within(shared, whole) if num_elements(shared) else None


# ------------------------------------------------------------------ local steps


@dataclass(frozen=True)
class Arrange(Step):
    """Reshape, then permute the dims; None leaves the shape or the order."""

    shape: Any  # a shape
    order: tuple[int, ...] | None = None

    @cached_property
    def strided(self) -> tuple[list[int], list[int]]:
        """The shape and the strides of the result, as a view of a contiguous tensor."""
        order = range(len(self.shape)) if self.order is None else self.order
        strides = [math.prod(self.shape[dim + 1 :]) for dim in order]
        return [self.shape[dim] for dim in order], strides


@dataclass(frozen=True)
class Take(Step):
    """Take a part of the tensor."""

    name: ClassVar[str] = "slice"
    index: Any  # an index
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Fill(Step):
    """Put the tensor into zeros of a shape."""

    name: ClassVar[str] = "zero-fill"
    shape: Any  # a shape
    index: Any  # an index
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Keep(Step):
    """Keep the tensor where the coordinate holds it, with zeros on other ranks."""

    name: ClassVar[str] = "keep on one"
    is_kept: Any  # a bool
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Reorder(Step):
    """Put whole sequences into the order of a plan, with zeros as padding, or back."""

    name: ClassVar[str] = "reorder"
    dim: int
    plan: SequencePlan
    back: bool
    axes: tuple[str, ...] = ()


# ------------------------------------------------------------------ steps that communicate


class GroupStep(Step):
    """A step that is collective over the group of its axes."""

    # whether blocks are exchanged as they lie in memory, so that dims do not matter; the result is
    # then flat, too, and an Arrange to its shape follows
    is_flat: ClassVar[bool] = False
    reduces: ClassVar[bool] = False  # whether the backend combines the tensors of several ranks


@dataclass(frozen=True)
class CollectiveStep(GroupStep):
    """One collective of torch.

    The parts of a ``reduce_scatter`` are the first dims, and so are those of an ``all_gather``.
    """

    kind: Kind
    axes: tuple[str, ...]
    size: int  # the number of ranks
    cut: Cut  # the division of the smaller of its input and its result
    shape: Any = ()  # the shape of the result, if it is not that of the input
    root: Holders = ()  # the coordinate that sends or receives, by axis in the order of the group

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the collective."""
        return self.kind

    @property
    def is_flat(self) -> bool:  # type: ignore[override]
        """Whether blocks are exchanged as they lie in memory."""
        return self.kind in ("all_gather", "reduce_scatter")

    @property
    def reduces(self) -> bool:  # type: ignore[override]
        """Whether the backend combines the tensors of several ranks."""
        return self.kind in ("all_reduce", "reduce", "reduce_scatter")

    @property
    def root_rank(self) -> int:
        """The group rank that sends a broadcast or receives a reduction."""
        sizes, rank = dict(self.cut.axes), 0
        for axis, index in self.root:
            rank = rank * sizes[axis] + index
        return rank

    def received(self, coordinate: Coordinate) -> Any:  # noqa: ANN401
        """Return the elements by the formulas of ring algorithms."""
        elements = num_elements(self.cut.region(coordinate))
        if self.kind == "all_reduce":  # each half of it passes p - 1 of the p parts
            return -(-2 * elements * (self.size - 1) // self.size)
        if self.kind == "broadcast":
            return elements * (1 - is_holder(coordinate, self.root))
        if self.kind == "reduce":
            return elements * is_holder(coordinate, self.root)
        return elements * (self.size - 1)


@dataclass(frozen=True)
class AllToAll(GroupStep):
    """One all_to_all of equal blocks, which lie one after the other in the order of the group."""

    name: ClassVar[str] = "all_to_all"
    axes: tuple[str, ...]
    source: Cut
    target: Cut
    shape: Any  # the shape of the result
    sends: Any  # 1 for each rank that gets a block, 0 for each other; None: every rank gets one
    receives: Any  # the same for the ranks whose blocks arrive
    is_flat: ClassVar[bool] = True

    def received(self, coordinate: Coordinate) -> Any:  # noqa: ANN401
        """Return the elements of the result that this rank did not hold."""
        source, target = self.source.region(coordinate), self.target.region(coordinate)
        return num_elements(target) - num_elements(overlap(source, target))


@dataclass(frozen=True)
class Route(GroupStep):
    """One all_to_all of regions of any size, each from the rank that holds it.

    Regions that several ranks send are summed. The result is 0 outside all regions.
    """

    axes: tuple[str, ...]
    source: Cut
    target: Cut
    shape: Any  # the shape of the result
    sends: Any  # the region of this rank's tensor for each rank
    receives: Any  # the region of the result from each rank
    senders: Holders = ()  # the axes of which one coordinate holds the tensor before
    receivers: Holders = ()  # the axes of which one coordinate holds the tensor after
    summed: int = 1  # the number of ranks whose parts are summed

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the exchange, by the ranks that send and receive."""
        if self.senders:
            return "send" if self.receivers else "scatter"
        return "gather" if self.receivers else "all_to_all"

    def received(self, coordinate: Coordinate) -> Any:  # noqa: ANN401
        """Return the elements from other ranks; of each summed rank one."""
        source, target = self.source.region(coordinate), self.target.region(coordinate)
        own = num_elements(overlap(source, target)) * is_holder(coordinate, self.senders)
        every = num_elements(target) * self.summed
        return (every - own) * is_holder(coordinate, self.receivers)


def make_route(
    axes: tuple[str, ...],
    source: Cut,
    target: Cut,
    senders: Holders = (),
    receivers: Holders = (),
    summed: int = 1,
) -> Route:
    """Return the route between two divisions."""
    sends = Rule(shared_regions, (axes, (source, target), (senders, receivers)))
    receives = Rule(shared_regions, (axes, (target, source), (receivers, senders)))
    shape = Rule(part_shape, (target,))
    return Route(axes, source, target, shape, sends, receives, senders, receivers, summed)
