"""Plan a move: the steps that change the division of a tensor, each at most once.

::

    slice -> reduce_scatter -> all_to_all -> all_reduce -> all_gather -> zero-fill

The steps work on digits, so that each of them is a reshape, a permutation and one collective. The
sizes may have no common digits, or these steps may receive more than necessary. One all_to_all of
regions then takes the place of slice, all_to_all and all_gather.

The cost of a plan is the number of elements that a rank receives. A rank must receive the elements
of its result that it does not hold. A reduce_scatter of n elements over p ranks takes
n (p - 1) / p, and an all_reduce twice that (Patarasuk and Yuan, 2009).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from .digits import Digit, Digits, find_digits, overlap_of
from .move import Coordinate, Cut, Move, local_shape
from .steps import (
    AllToAll,
    Arrange,
    CollectiveStep,
    Fill,
    GroupStep,
    Holders,
    Keep,
    PeerDigit,
    Reorder,
    Rule,
    Step,
    Take,
    digit_index,
    find_peers,
    is_holder,
    make_route,
    part_shape,
    region_index,
)

COPIES = "*=?"


@dataclass(frozen=True)
class Plan:
    """The steps of a move, the same on every rank."""

    move: Move
    steps: tuple[Step, ...]  # the steps, changes of shape included

    @cached_property
    def named_steps(self) -> tuple[Step, ...]:
        """The steps without those that only change a shape."""
        return tuple(step for step in self.steps if step.name)

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The axes of the groups that communicate, each once."""
        return tuple(dict.fromkeys(s.axes for s in self.steps if isinstance(s, GroupStep)))

    @property
    def uses_regions(self) -> bool:
        """Whether shapes depend on the coordinate, or on more than its digits."""
        values = (value for step in self.steps for value in vars(step).values())
        rules = (value for value in values if isinstance(value, Rule))
        return any(rule.function in (part_shape, region_index) for rule in rules)

    @property
    def reduces(self) -> bool:
        """Whether the plan adds values of several ranks."""
        sums = ("all_reduce", "reduce_scatter", "reduce")
        return any(step.name in sums or getattr(step, "summed", 1) > 1 for step in self.steps)

    def received(self, coordinate: Coordinate) -> Any:  # noqa: ANN401  # an int, or an array
        """Return the elements that the rank at a coordinate receives."""
        return sum(step.received(coordinate) for step in self.steps)


@lru_cache(maxsize=1000)
def plan_move(move: Move) -> Plan:
    """Return the plan of a move, from a cache if it was planned before. Cost: O(axes x dims)."""
    stages = Stages.of(move)
    reordered = reorders(move, back=False)
    first = [Arrange(Rule(part_shape, (move.shown(0),))), *reordered] if reordered else []
    digits = _common_digits(stages)
    rest = region_steps(stages) if digits is None else DigitSteps(stages, digits).run()
    return Plan(move, tuple(_merge([*first, *rest])))


def _merge(steps: Sequence[Step]) -> list[Step]:
    """Return the steps without changes of shape that the next step makes needless."""
    result: list[Step] = []
    for step in steps:
        last = result[-1] if result else None
        if isinstance(last, Arrange) and last.order is None:
            if isinstance(step, Arrange):
                result.pop()
                step = Arrange(last.shape if step.shape is None else step.shape, step.order)
            elif isinstance(step, GroupStep) and step.is_flat:
                result.pop()
        result.append(step)
    return result


# ------------------------------------------------------------------ stages


class Stages(NamedTuple):
    """How the tensor is cut after each step of a move, from the source towards the target.

    ::

        by digits    source > slice, reduce_scatter > sliced > all_to_all > gatherable
                     > all_gather > fillable > zero-fill > target
        by regions   source > reduce_scatter > reduced > all_to_all of regions
                     > fillable > zero-fill > target
    """

    move: Move
    reduced: Cut  # the source, also cut over the axes whose sums are scattered
    sliced: Cut  # also cut over the axes along which each rank has a copy, and keeps its part
    fillable: Cut  # the target, also cut over the axes whose other parts are filled with zeros
    gatherable: Cut  # also cut over the axes whose parts are gathered

    @classmethod
    def of(cls, move: Move) -> Stages:
        """Return the divisions of a move."""
        reduced = move.source.append_axes(move.axes_of("+", "/"), move.right)
        sliced = move.source.append_axes(move.axes_of("+" + COPIES, "/"), move.right)
        fillable = move.target.append_axes(move.axes_of("/", "+"), move.left)
        gatherable = move.target.append_axes(move.axes_of("/", "+@" + COPIES), move.left)
        return cls(move, reduced, sliced, fillable, gatherable)


def _common_digits(stages: Stages) -> Digits | None:
    """Return the digits for the steps, or None if a route of regions is better or necessary."""
    move = stages.move
    if move.axes_of("@", "/@") or move.axes_of("/", "@") or 0 in move.sizes:
        return None
    digits = find_digits((move.source, move.target, stages.sliced, stages.gatherable))
    if digits is None:
        return None
    by_steps = overlap_of(digits, stages.sliced, stages.gatherable)
    return digits if by_steps == overlap_of(digits, stages.reduced, stages.fillable) else None


def reorders(move: Move, *, back: bool) -> list[Step]:
    """Return the reorders into the order of sequence plans, or back into the own order of a dim."""
    chosen = (r for r in move.reorderings if r.whole_first != back)
    return [Reorder(r.dim, r.plan, back) for r in chosen]


def dim_order(entries: Iterable[Iterable[int]]) -> tuple[int, ...]:
    """Return the dims of the global tensor in the order of a local tensor."""
    return tuple(dim for entry in entries for dim in entry)


def _holders(move: Move, axes: Iterable[str], side: int) -> Holders:
    """Return the coordinate that holds the tensor on a side, along axes marked with ``@``."""
    return tuple((axis, move.type_of[axis][side].holder) for axis in axes)


def _sums(move: Move, cut: Cut) -> list[Step]:
    """Return the collectives that need no change of the division: all_reduce, broadcast, reduce."""
    result: list[Step] = []
    if axes := move.axes_of("+", COPIES):
        result.append(CollectiveStep("all_reduce", axes, move.count_ranks(axes), cut))
    if axes := move.axes_of("+", "@"):
        size, root = move.count_ranks(axes), _holders(move, axes, 1)
        result.append(CollectiveStep("reduce", axes, size, cut, root=root))
    if axes := move.axes_of("@", COPIES):
        size, root = move.count_ranks(axes), _holders(move, axes, 0)
        result.append(CollectiveStep("broadcast", axes, size, cut, root=root))
    return result


def _keep_on_one(move: Move) -> list[Step]:
    """Return the step that leaves a copy, or a result, on one coordinate of some axes."""
    starts = _holders(move, move.axes_of(COPIES + "@", "+"), 0)
    ends = _holders(move, move.axes_of(COPIES + "+", "@"), 1)
    order = [*move.type_of]
    holders = tuple(sorted([*starts, *ends], key=lambda pair: order.index(pair[0])))
    axes = tuple(axis for axis, _ in holders)
    return [Keep(Rule(is_holder, (holders,)), axes)] if holders else []


# ------------------------------------------------------------------ steps on digits


class DigitSteps:
    """The steps on digits, and the digits of the local tensor in the order of its dims."""

    def __init__(self, stages: Stages, digits: Digits) -> None:
        self.stages = stages
        self.move = stages.move
        self.digits = digits
        owned = digits.owners(self.move.source)
        dims = [digits.of_dim(dim) for dim in dim_order(self.move.left_entries)]
        self.state = [digit for group in dims for digit in group if digit not in owned]
        self.steps: list[Step] = [Arrange(digits.sizes(self.state))]

    def run(self) -> list[Step]:
        """Return the steps from the local tensor to the result, in their order."""
        stages, move = self.stages, self.move
        if axes := move.axes_of(COPIES, "/"):
            self._slice(axes)
        if axes := move.axes_of("+", "/"):
            owned = self._owned(stages.sliced, axes)
            self._move_to_front(owned)
            self.state = self.state[len(owned) :]
            self._collect("reduce_scatter", axes, stages.sliced)
        self._exchange()
        self.steps += _sums(move, stages.gatherable)
        if axes := move.axes_of("/", COPIES):
            self.state = [*self._owned(stages.gatherable, axes), *self.state]
            self._collect("all_gather", axes, stages.gatherable)
        self.steps += _keep_on_one(move)
        if axes := move.axes_of("/", "+"):
            self._fill(axes)
        self._finish()
        return self.steps

    def _owned(self, cut: Cut, axes: Iterable[str]) -> list[Digit]:
        """Return the digits that the axes divide, in the rank order of the group over them."""
        owners = self.digits.owners(cut)
        by_factor = {factor: digit for digit, factor in owners.items() if factor.axis in axes}
        return [by_factor[factor] for factor in self.digits.order(by_factor)]

    def _move_to_front(self, front: Sequence[Digit]) -> None:
        self._permute([*front, *(digit for digit in self.state if digit not in front)])

    def _permute(self, new: list[Digit]) -> None:
        if new != self.state:
            self.steps.append(Arrange(None, tuple(map(self.state.index, new))))
        self.state = new

    def _collect(self, kind: Any, axes: tuple[str, ...], cut: Cut) -> None:  # noqa: ANN401
        """Append a collective whose result has the digits of the state."""
        size, shape = self.move.count_ranks(axes), self.digits.sizes(self.state)
        self.steps += [CollectiveStep(kind, axes, size, cut, shape), Arrange(shape)]

    def _slice(self, axes: tuple[str, ...]) -> None:
        cut = self.stages.sliced
        owners, owned = self.digits.owners(cut), self._owned(cut, axes)
        index = tuple((self.state.index(digit), owners[digit]) for digit in owned)
        self.steps.append(Take(Rule(digit_index, (index, len(self.state))), axes))
        self.state = [digit for digit in self.state if digit not in owned]

    def _fill(self, axes: tuple[str, ...]) -> None:
        cut = self.stages.fillable
        owners, owned = self.digits.owners(cut), self._owned(cut, axes)
        self.state = [*owned, *self.state]
        factors = tuple((dim, owners[digit]) for dim, digit in enumerate(owned))
        index = Rule(digit_index, (factors, len(owned)))
        self.steps.append(Fill(self.digits.sizes(self.state), index, axes))

    def _exchange(self) -> None:
        """Append the all_to_all between the two divisions in the middle, unless they are equal."""
        digits, source, target = self.digits, self.stages.sliced, self.stages.gatherable
        before, after = digits.owners(source), digits.owners(target)
        digit_before = {factor: digit for digit, factor in before.items()}
        digit_after = {factor: digit for digit, factor in after.items()}
        moved = {f.axis for f, digit in digit_after.items() if digit_before[f] != digit}
        if not moved:
            return
        factors = digits.order(f for f in digit_after if f.axis in moved)
        # if no axis divided the digit before, ranks at every index of its new factor get a block
        to = tuple((f, before.get(digit_after[f])) for f in factors)
        from_ = tuple((f, after.get(digit_before[f])) for f in factors)
        cut = [digit_after[f] for f, fixed in to if fixed is None]
        joined = [digit_before[f] for f, fixed in from_ if fixed is None]
        self._move_to_front(cut)
        self.state = [*joined, *self.state[len(cut) :]]
        axes, shape = tuple(a for a in digits.axes if a in moved), digits.sizes(self.state)
        exchange = AllToAll(axes, source, target, shape, _peers(to), _peers(from_))
        self.steps += [exchange, Arrange(shape)]

    def _finish(self) -> None:
        """Append the changes of shape that give the result."""
        move, cut = self.move, self.move.target
        owned, order = self.digits.owners(cut), dim_order(move.right_entries)
        reordered = reorders(move, back=True)
        dims = range(len(move.sizes)) if reordered else order
        every = [digit for dim in dims for digit in self.digits.of_dim(dim)]
        self._permute([digit for digit in every if digit not in owned])
        if reordered:
            self.steps += [Arrange(Rule(part_shape, (cut,))), *reordered]
            self.steps.append(Arrange(Rule(part_shape, (move.shown(1),)), order))
        sizes = [size // cut.count(dim) for dim, size in enumerate(move.shown(1).sizes)]
        self.steps.append(Arrange(local_shape(move.right_entries, sizes)))


def _peers(digits: tuple[PeerDigit, ...]) -> Rule | None:
    """Return the rule for the ranks that exchange blocks, or None if all of them do."""
    return None if all(fixed is None for _, fixed in digits) else Rule(find_peers, (digits,))


# ------------------------------------------------------------------ steps of any sizes


def region_steps(stages: Stages) -> list[Step]:
    """Return the steps for any sizes: routes of regions, and the sums before or after them."""
    move, source, target = stages.move, stages.reduced, stages.fillable
    result: list[Step] = [Arrange(Rule(part_shape, (move.source,)))]
    if reduced := move.axes_of("+", "/"):
        result.append(make_route(reduced, move.source, source, summed=move.count_ranks(reduced)))
    senders = _holders(move, move.axes_of("@", "/@"), 0)
    receivers = _holders(move, move.axes_of("/@", "@"), 1)
    moved = {*_changed(source, target), *(axis for axis, _ in senders)}
    route: list[Step] = []
    if moved:
        axes = tuple(axis for axis, _ in move.axes if axis in moved)
        route = [make_route(axes, source, target, senders, receivers)]
    elif source != target:
        route = [Take(Rule(region_index, (target, source)), move.axes_of(COPIES, "/"))]
    first = _mean_elements(source) <= _mean_elements(target)
    reductions = _sums(move, source if first else target)
    result += [*reductions, *route] if first else [*route, *reductions]
    result += _keep_on_one(move)
    if filled := move.axes_of("/", "+"):
        shape, index = Rule(part_shape, (move.target,)), Rule(region_index, (target, move.target))
        result.append(Fill(shape, index, filled))
    result += reorders(move, back=True)
    shown = move.shown(1)
    ordered = Arrange(Rule(part_shape, (shown,)), dim_order(move.right_entries))
    return [*result, ordered, Arrange(Rule(part_shape, (shown, move.right_entries)))]


def _changed(source: Cut, target: Cut) -> list[str]:
    """Return the axes along which the two cuts give a rank different parts of a dim."""
    changed: list[str] = []
    for before, after in zip(source.lists, target.lists, strict=True):
        pairs = enumerate(zip(before, after, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(before), len(after)))
        changed += before[same:]
    return changed


def _mean_elements(cut: Cut) -> float:
    """Return the mean number of elements of a part."""
    return math.prod(size / cut.count(dim) for dim, size in enumerate(cut.sizes))


# ------------------------------------------------------------------ cost


def least_received(move: Move, coordinate: Coordinate) -> Any:  # noqa: ANN401  # also arrays
    """Return the elements that the rank at a coordinate receives at least."""
    stages = Stages.of(move)
    senders = _holders(move, move.axes_of("@", "/@"), 0)
    receivers = _holders(move, move.axes_of("/@", "@"), 1)
    least = [make_route((), stages.reduced, stages.fillable, senders, receivers)]
    sums = _sums(move, stages.gatherable)
    if reduced := move.axes_of("+", "/"):
        # ranks that hold copies may each reduce another part, so the scatter is on the slices
        size = move.count_ranks(reduced)
        sums.append(CollectiveStep("reduce_scatter", reduced, size, stages.sliced))
    return sum(step.received(coordinate) for step in [*least, *sums])


def most_received(plan: Plan) -> int:
    """Return the elements that the rank with the most of them receives."""
    return _most_over_ranks(plan.move, plan.received)


def most_needed(move: Move) -> int:
    """Return the least number of elements for the rank that needs most."""
    return _most_over_ranks(move, lambda coordinate: least_received(move, coordinate))


def _most_over_ranks(move: Move, count: Callable[[Coordinate], Any]) -> int:
    """Return the largest value over all ranks. Cost: O(ranks along the named axes)."""
    sizes = dict(move.axes)
    grids = np.indices(tuple(sizes.values()), sparse=True) if sizes else ()
    return int(np.max(count(dict(zip(sizes, grids, strict=True)))))
