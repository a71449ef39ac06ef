"""Plan a move: the steps that change the division of a tensor, each at most once.

::

    slice -> reduce_scatter -> all_to_all -> all_reduce -> all_gather -> zero-fill

The steps work on digits, so that each of them is a reshape, a permutation and one collective. The
sizes may have no common digits, or these steps may receive more than necessary. One all_to_all of
regions then takes the place of slice, all_to_all and all_gather. In it each element comes from a
rank that holds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from .cut import Coordinate
from .digit_steps import DigitSteps
from .digits import Digits, find_digits, is_same_overlap
from .move import Move
from .region_steps import region_steps
from .stages import Stages, first_steps
from .steps import collective, local
from .steps.step import Step


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
        return tuple(dict.fromkeys(step.axes for step in self.steps if communicates(step)))

    def received(self, coordinate: Coordinate) -> Any:  # noqa: ANN401  # an int, or an array
        """Return the elements that the rank at a coordinate receives."""
        return sum(step.received(coordinate) for step in self.steps)


def communicates(step: Step) -> bool:
    """Return whether a step is a collective."""
    return isinstance(step, collective.Collective | collective.Exchange | collective.Route)


def uses_regions(plan: Plan) -> bool:
    """Return whether the shapes of a plan depend on the coordinate, or on more than its digits."""
    regions = collective.Route | local.SplitDims | local.TakeRegion | local.FillRegion
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
    middle = region_steps(stages) if digits is None else DigitSteps(stages, digits).run()
    return Plan(move, (*first_steps(move), *middle))


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
