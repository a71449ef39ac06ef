"""Plan a move: the steps that change the division of a tensor, each at most once.

::

    slice -> reduce_scatter -> all_to_all -> all_reduce -> all_gather -> zero-fill

The steps work on digits, so that each of them is a reshape, a permutation and one collective. If
the sizes have no common digits, or if these steps receive more than necessary, one all_to_all of
regions takes the place of slice, all_to_all and all_gather: each element comes from a rank that
holds it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from . import steps
from .cut import Coordinate, Cut, append_axes
from .digits import Digit, Digits, find_digits, is_same_overlap
from .move import Move, local_shape
from .steps import Step

COPIES = "*=?"


@dataclass(frozen=True)
class Plan:
    """The steps of a move, the same on every rank.

    Attributes:
        move: the move.
        steps: the steps, changes of shape included.
    """

    move: Move
    steps: tuple[Step, ...]

    @cached_property
    def named_steps(self) -> tuple[Step, ...]:
        """The steps without those that only change a shape."""
        return tuple(step for step in self.steps if step.name)

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The axes of the groups that communicate, each once."""
        return tuple(dict.fromkeys(step.axes for step in self.steps if communicates(step)))

    def received(self, coordinate: Coordinate) -> Any:  # noqa: ANN401  # an int, or an array
        """Return the elements that the rank at a coordinate receives."""
        return sum(step.received(coordinate) for step in self.steps)


def communicates(step: Step) -> bool:
    """Return whether a step is a collective."""
    return isinstance(step, steps.Collective | steps.Exchange | steps.Route)


def uses_regions(plan: Plan) -> bool:
    """Return whether the shapes of a plan depend on the coordinate, or on more than its digits."""
    regions = steps.Route | steps.SplitDims | steps.TakeRegion | steps.FillRegion
    return any(isinstance(step, regions) for step in plan.steps)


def reduces(plan: Plan) -> bool:
    """Return whether a plan adds values of several ranks."""
    sums = ("all_reduce", "reduce_scatter", "reduce")
    return any(step.name in sums or getattr(step, "summed", 1) > 1 for step in plan.steps)


@lru_cache(maxsize=4096)
def plan_move(move: Move) -> Plan:
    """Return the plan of a move, from a cache if it was planned before. Cost: O(axes x dims)."""
    stages = Stages(move)
    digits = _common_digits(stages)
    middle = _general_steps(stages) if digits is None else _DigitSteps(stages, digits).run()
    return Plan(move, (*_first_steps(move), *middle))


class Stages:
    """The divisions between the steps of a move.

    Attributes:
        move: the move.
        reduced: after the reduce_scatter: the source, cut also over the axes that are reduced.
        sliced: also cut over the axes of which each rank has a copy.
        fillable: the target, also cut over the axes that are filled with zeros.
        gatherable: also cut over the axes that are gathered.
    """

    def __init__(self, move: Move) -> None:
        def source(axes: Sequence[str]) -> Cut:
            return move.source.with_lists(append_axes(move.left, axes, move.right))

        def target(axes: Sequence[str]) -> Cut:
            return move.target.with_lists(append_axes(move.right, axes, move.left))

        self.move = move
        self.reduced = source(move.axes_of("+", "/"))
        self.sliced = source(move.axes_of("+" + COPIES, "/"))
        self.fillable = target(move.axes_of("/", "+"))
        self.gatherable = target(move.axes_of("/", "+@" + COPIES))


def _common_digits(stages: Stages) -> Digits | None:
    """Return the digits for the steps, or None if a route of regions is better or necessary."""
    move = stages.move
    if move.axes_of("@", "/@") or move.axes_of("/", "@"):
        return None
    cuts = (move.source, move.target, stages.sliced, stages.gatherable)
    digits = find_digits(cuts)
    if digits is None or 0 in move.sizes:
        return None
    by_steps, least = (stages.sliced, stages.gatherable), (stages.reduced, stages.fillable)
    return digits if is_same_overlap(digits, by_steps, least) else None


def _first_steps(move: Move) -> list[Step]:
    """Return the reorders of whole sequences before the other steps."""
    reorders = _reorders(move, back=False)
    return [steps.SplitDims(move.source), *reorders] if reorders else []


def _reorders(move: Move, *, back: bool) -> list[Step]:
    """Return the reorders into the order of zigzag plans, or back into the own order of a dim."""
    zigzags = [zigzag for zigzag in move.zigzags if zigzag.whole_first != back]
    return [steps.Reorder((), zigzag.dim, zigzag.parts, back) for zigzag in zigzags]


def _result_order(move: Move) -> tuple[int, ...]:
    """Return the dims in the order of the result."""
    return tuple(dim for entry in move.right_entries for dim in entry)


def _source_order(move: Move) -> tuple[int, ...]:
    """Return the dims in the order of the local tensor, which is their own order."""
    return tuple(dim for entry in move.left_entries for dim in entry)


def _sums(move: Move, cut: Cut) -> list[Step]:
    """Return the collectives that need no change of the division: all_reduce, broadcast, reduce."""
    result: list[Step] = []
    sizes, types = dict(move.axes), move.type_of
    for kind, axes in (
        ("all_reduce", move.axes_of("+", COPIES)),
        ("reduce", move.axes_of("+", "@")),
        ("broadcast", move.axes_of("@", COPIES)),
    ):
        size = math.prod(sizes[axis] for axis in axes)
        sides = {"reduce": 1, "broadcast": 0}
        root = tuple((axis, types[axis][sides[kind]].holder) for axis in axes if kind in sides)
        if axes:
            result.append(steps.Collective(kind, axes, size, cut, root=root))  # type: ignore[arg-type]
    return result


def least_sums(stages: Stages) -> list[Step]:
    """Return the reductions of a move on as few elements as possible."""
    move = stages.move
    reduced = move.axes_of("+", "/")
    size = math.prod(dict(move.axes)[axis] for axis in reduced)
    scatter = steps.Collective("reduce_scatter", reduced, size, stages.reduced)
    return [*_sums(move, stages.gatherable), *([scatter] if reduced else [])]


def _keep(move: Move) -> list[Step]:
    """Return the step that leaves a copy, or a result, on one coordinate of some axes."""
    types = move.type_of
    starts = [(axis, types[axis][0].holder) for axis in move.axes_of(COPIES + "@", "+")]
    ends = [(axis, types[axis][1].holder) for axis in move.axes_of(COPIES + "+", "@")]
    holders = tuple(sorted([*starts, *ends], key=lambda pair: list(types).index(pair[0])))
    return [steps.Keep(tuple(axis for axis, _ in holders), holders)] if holders else []


# ------------------------------------------------------------------ steps on digits


class _DigitSteps:
    """The steps on digits, and the digits of the local tensor in the order of its dims."""

    def __init__(self, stages: Stages, digits: Digits) -> None:
        self.stages = stages
        self.move = stages.move
        self.digits = digits
        owned = digits.owners(self.move.source)
        dims = [digits.of_dim(dim) for dim in _source_order(self.move)]
        self.state = [digit for group in dims for digit in group if digit not in owned]
        self.steps: list[Step] = [steps.Arrange(digits.sizes(self.state))]

    def run(self) -> list[Step]:
        """Return all steps."""
        stages, move = self.stages, self.move
        self._slice(move.axes_of(COPIES, "/"))
        self._reduce_scatter(move.axes_of("+", "/"))
        self._exchange()
        self.steps += _sums(move, stages.gatherable)
        self._all_gather(move.axes_of("/", COPIES))
        self.steps += _keep(move)
        self._fill(move.axes_of("/", "+"))
        self._finish()
        return _merge(self.steps)

    def _owned(self, cut: Cut, axes: Iterable[str]) -> list[Digit]:
        """Return the digits that some axes have, in the order of their group."""
        owners = self.digits.owners(cut)
        by_factor = {factor: digit for digit, factor in owners.items() if factor.axis in axes}
        return [by_factor[factor] for factor in self.digits.order(by_factor)]

    def _move_to_front(self, front: Sequence[Digit]) -> None:
        new = [*front, *(digit for digit in self.state if digit not in front)]
        self._permute(new)

    def _permute(self, new: list[Digit]) -> None:
        if new != self.state:
            self.steps.append(steps.Arrange(None, tuple(map(self.state.index, new))))
        self.state = new

    def _slice(self, axes: tuple[str, ...]) -> None:
        if not axes:
            return
        owners, owned = (
            self.digits.owners(self.stages.sliced),
            self._owned(self.stages.sliced, axes),
        )
        factors = tuple((self.state.index(digit), owners[digit]) for digit in owned)
        self.steps.append(steps.TakeDigits(factors, len(self.state), axes))
        self.state = [digit for digit in self.state if digit not in owned]

    def _reduce_scatter(self, axes: tuple[str, ...]) -> None:
        if not axes:
            return
        cut = self.stages.sliced
        owned = self._owned(cut, axes)
        self._move_to_front(owned)
        self.state = self.state[len(owned) :]
        size, shape = self._size(axes), self.digits.sizes(self.state)
        self.steps.append(steps.Collective("reduce_scatter", axes, size, cut, shape))

    def _all_gather(self, axes: tuple[str, ...]) -> None:
        if not axes:
            return
        cut = self.stages.gatherable
        self.state = [*self._owned(cut, axes), *self.state]
        size, shape = self._size(axes), self.digits.sizes(self.state)
        self.steps.append(steps.Collective("all_gather", axes, size, cut, shape))

    def _fill(self, axes: tuple[str, ...]) -> None:
        if not axes:
            return
        cut = self.stages.fillable
        owners, owned = self.digits.owners(cut), self._owned(cut, axes)
        self.state = [*owned, *self.state]
        factors, shape = tuple(owners[digit] for digit in owned), self.digits.sizes(self.state)
        self.steps.append(steps.FillDigits(factors, shape, axes))

    def _exchange(self) -> None:
        """Append the all_to_all between the two divisions in the middle, unless they are equal."""
        digits, source, target = self.digits, self.stages.sliced, self.stages.gatherable
        before, after = digits.owners(source), digits.owners(target)
        digit_before = {factor: digit for digit, factor in before.items()}
        digit_after = {factor: digit for digit, factor in after.items()}
        moved = {f.axis for f, digit in digit_after.items() if digit_before[f] != digit}
        axes = tuple(axis for axis in digits.axes if axis in moved)
        if not axes:
            return
        factors = digits.order(f for f in digit_after if f.axis in moved)
        # a digit that no rank had before goes to all indices of its new factor
        to = tuple((f, before.get(digit_after[f])) for f in factors)
        from_ = tuple((f, after.get(digit_before[f])) for f in factors)
        cut = [digit_after[f] for f, fixed in to if fixed is None]
        joined = [digit_before[f] for f, fixed in from_ if fixed is None]
        self._move_to_front(cut)
        self.state = [*joined, *self.state[len(cut) :]]
        shape = digits.sizes(self.state)
        self.steps.append(steps.Exchange(axes, source, target, shape, to, from_))

    def _finish(self) -> None:
        """Append the changes of shape that give the result."""
        move, cut = self.move, self.move.target
        owned = self.digits.owners(cut)
        reorders = _reorders(move, back=True)
        if reorders:
            every = [d for dim in range(len(move.sizes)) for d in self.digits.of_dim(dim)]
            self._permute([digit for digit in every if digit not in owned])
            self.steps += [steps.SplitDims(cut), *reorders]
            self.steps.append(steps.OrderDims(cut, _result_order(move)))
        else:
            dims = [self.digits.of_dim(dim) for dim in _result_order(move)]
            self._permute([digit for group in dims for digit in group if digit not in owned])
        sizes = [size // cut.count(dim) for dim, size in enumerate(move.sizes)]
        self.steps.append(steps.Arrange(local_shape(move.right_entries, sizes)))

    def _size(self, axes: Iterable[str]) -> int:
        return math.prod(self.digits.axes[axis] for axis in axes)


def _merge(sequence: Sequence[Step]) -> list[Step]:
    """Return the steps with one change of shape in place of two that follow each other."""
    result: list[Step] = []
    for step in sequence:
        last = result[-1] if result else None
        if isinstance(step, steps.Arrange) and isinstance(last, steps.Arrange):
            if last.order is None and step.shape is not None:
                result[-1] = step
                continue
            if last.order is None:
                result[-1] = steps.Arrange(last.shape, step.order)
                continue
        result.append(step)
    return result


# ------------------------------------------------------------------ steps on regions


def _general_steps(stages: Stages) -> list[Step]:
    """Return the steps for any sizes: routes of regions, and the sums before or after them."""
    move, types = stages.move, stages.move.type_of
    result: list[Step] = [steps.SplitDims(move.source)]
    sizes = dict(move.axes)
    reduced = move.axes_of("+", "/")
    if reduced:
        count = math.prod(sizes[axis] for axis in reduced)
        result.append(steps.Route(reduced, move.source, stages.reduced, summed=count))
    senders = tuple((axis, types[axis][0].holder) for axis in move.axes_of("@", "/@"))
    receivers = tuple((axis, types[axis][1].holder) for axis in move.axes_of("/@", "@"))
    moved = {*_changed(stages.reduced, stages.fillable), *(axis for axis, _ in senders)}
    axes = tuple(axis for axis in sizes if axis in moved)
    source, target = stages.reduced, stages.fillable
    route: list[Step] = []
    if axes:
        route = [steps.Route(axes, source, target, senders, receivers)]
    elif source != target:
        route = [steps.TakeRegion(source, target, move.axes_of(COPIES, "/"))]
    first = _least_elements(source) <= _least_elements(target)
    sums = _sums(move, source if first else target)
    result += [*sums, *route] if first else [*route, *sums]
    result += _keep(move)
    if filled := move.axes_of("/", "+"):
        result.append(steps.FillRegion(target, move.target, filled))
    result += _reorders(move, back=True)
    order = steps.OrderDims(move.target, _result_order(move))
    return [*result, order, steps.JoinDims(move.target, move.right_entries)]


def _changed(source: Cut, target: Cut) -> list[str]:
    """Return the axes of a division whose ranks have another part of their dim in the other one."""
    changed: list[str] = []
    for before, after in zip(source.lists, target.lists, strict=True):
        same = 0
        while same < min(len(before), len(after)) and before[same] == after[same]:
            same += 1
        changed += before[same:]
    return changed


def _least_elements(cut: Cut) -> float:
    """Return the mean number of elements of a part."""
    return math.prod(size / cut.count(dim) for dim, size in enumerate(cut.sizes))
