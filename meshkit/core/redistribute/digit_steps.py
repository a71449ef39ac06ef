"""The steps of a move on the common digits of its cuts: reshapes, permutations and collectives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from .cut import Cut
from .digits import Digit, Digits
from .move import local_shape
from .stages import COPIES, Stages, keep_on_one, reorders, result_order, source_order, sums
from .steps import collective, local
from .steps.step import Step


class DigitSteps:
    """The steps on digits, and the digits of the local tensor in the order of its dims."""

    def __init__(self, stages: Stages, digits: Digits) -> None:
        self.stages = stages
        self.move = stages.move
        self.digits = digits
        owned = digits.owners(self.move.source)
        dims = [digits.of_dim(dim) for dim in source_order(self.move)]
        self.state = [digit for group in dims for digit in group if digit not in owned]
        self.steps: list[Step] = [local.Arrange(digits.sizes(self.state))]

    def run(self) -> list[Step]:
        """Return all steps."""
        stages, move = self.stages, self.move
        self._slice(move.axes_of(COPIES, "/"))
        self._reduce_scatter(move.axes_of("+", "/"))
        self._exchange()
        self.steps += sums(move, stages.gatherable)
        self._all_gather(move.axes_of("/", COPIES))
        self.steps += keep_on_one(move)
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
            self.steps.append(local.Arrange(None, tuple(map(self.state.index, new))))
        self.state = new

    def _slice(self, axes: tuple[str, ...]) -> None:
        if not axes:
            return
        owners, owned = (
            self.digits.owners(self.stages.sliced),
            self._owned(self.stages.sliced, axes),
        )
        factors = tuple((self.state.index(digit), owners[digit]) for digit in owned)
        self.steps.append(local.TakeDigits(factors, len(self.state), axes))
        self.state = [digit for digit in self.state if digit not in owned]

    def _reduce_scatter(self, axes: tuple[str, ...]) -> None:
        if not axes:
            return
        cut = self.stages.sliced
        owned = self._owned(cut, axes)
        self._move_to_front(owned)
        self.state = self.state[len(owned) :]
        size, shape = self._size(axes), self.digits.sizes(self.state)
        self.steps.append(collective.Collective("reduce_scatter", axes, size, cut, shape))

    def _all_gather(self, axes: tuple[str, ...]) -> None:
        if not axes:
            return
        cut = self.stages.gatherable
        self.state = [*self._owned(cut, axes), *self.state]
        size, shape = self._size(axes), self.digits.sizes(self.state)
        self.steps.append(collective.Collective("all_gather", axes, size, cut, shape))

    def _fill(self, axes: tuple[str, ...]) -> None:
        if not axes:
            return
        cut = self.stages.fillable
        owners, owned = self.digits.owners(cut), self._owned(cut, axes)
        self.state = [*owned, *self.state]
        factors, shape = tuple(owners[digit] for digit in owned), self.digits.sizes(self.state)
        self.steps.append(local.FillDigits(factors, shape, axes))

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
        self.steps.append(collective.Exchange(axes, source, target, shape, to, from_))

    def _finish(self) -> None:
        """Append the changes of shape that give the result."""
        move, cut = self.move, self.move.target
        owned = self.digits.owners(cut)
        reordered = reorders(move, back=True)
        if reordered:
            every = [d for dim in range(len(move.sizes)) for d in self.digits.of_dim(dim)]
            self._permute([digit for digit in every if digit not in owned])
            self.steps += [local.SplitDims(cut), *reordered]
            self.steps.append(local.SplitDims(move.shown(1), result_order(move)))
        else:
            dims = [self.digits.of_dim(dim) for dim in result_order(move)]
            self._permute([digit for group in dims for digit in group if digit not in owned])
        sizes = [size // cut.count(dim) for dim, size in enumerate(move.shown(1).sizes)]
        self.steps.append(local.Arrange(local_shape(move.right_entries, sizes)))

    def _size(self, axes: Iterable[str]) -> int:
        return math.prod(self.digits.axes[axis] for axis in axes)


def _merge(sequence: Sequence[Step]) -> list[Step]:
    """Return the steps with one change of shape in place of two that follow each other."""
    result: list[Step] = []
    for step in sequence:
        last = result[-1] if result else None
        if isinstance(step, local.Arrange) and isinstance(last, local.Arrange):
            if last.order is None and step.shape is not None:
                result[-1] = step
                continue
            if last.order is None:
                result[-1] = local.Arrange(last.shape, step.order)
                continue
        result.append(step)
    return result
