"""Find the step from which all ranks go on, and the rank that sends its state to each rank.

Ranks may be one step apart, since a collective may have come through on some of them. A rank holds
the state of its old coordinate along the axes that stay whole, after the steps that it has
completed. The most advanced step wins for which some rank holds each part::

    dp=3 tp=2      steps of tp=0: 5 5 4      steps of tp=1: x 4 4      all go on from step 4
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import cast

from ..errors import SpecError
from ..text import format_ranks, format_sizes, plural
from .regroup import Coordinate, Regrouping, unit_of

Unit = tuple[int, ...]


@dataclass(frozen=True)
class Sources:
    """The step from which all go on, and who sends the state.

    Attributes:
        step: the completed steps of the state; None if no rank gives a step.
        by_rank: new rank to the new rank that sends it the state; ranks that hold it are left out.
        lost: the parts of the state that no rank holds, as coordinates along the whole axes.
    """

    step: int | None
    by_rank: Mapping[int, int]
    lost: tuple[Coordinate, ...]


def find_sources(regrouped: Regrouping, held: Mapping[int, int | None]) -> Sources:
    """Return the step from which all go on, and the source of each rank that lacks its state.

    Cost: O(ranks).

    Args:
        regrouped: the ranks that live.
        held: old rank to the steps that it has completed, None if it gives none. Ranks without a
            state are left out.

    Raises:
        SpecError: if only some ranks give a step, or if no step is held for every part.
    """
    axes, holders = regrouped.unit_axes, _holders(regrouped, held)
    step = _choose_step(held, holders, regrouped)
    units = {
        rank: cast(Unit, unit_of(regrouped.after, rank, axes))
        for rank in sorted(map(int, regrouped.after.ranks))
    }
    turns = {
        unit: cycle([rank for rank in by_step[step] if rank in units] or by_step[step])
        for unit, by_step in holders.items()
    }  # a spare sends only what no rank of the mesh holds
    by_rank = {
        rank: next(turns[unit])
        for rank, unit in units.items()
        if unit in holders and rank not in holders[unit][step]
    }
    missing = dict.fromkeys(unit for unit in units.values() if unit not in holders)
    lost = tuple(dict(zip(axes, unit, strict=True)) for unit in missing)
    return Sources(step, by_rank, lost)


def _holders(
    regrouped: Regrouping, held: Mapping[int, int | None]
) -> dict[Unit, dict[int | None, list[int]]]:
    """Return the new ranks that hold each part of the state, by their step."""
    holders: dict[Unit, dict[int | None, list[int]]] = {}
    for old in sorted(held):
        unit = unit_of(regrouped.before, old, regrouped.unit_axes)
        if unit is not None:
            by_step = holders.setdefault(unit, {})
            by_step.setdefault(held[old], []).append(regrouped.new_rank_of[old])
    return holders


def _choose_step(
    held: Mapping[int, int | None],
    holders: Mapping[Unit, Mapping[int | None, list[int]]],
    regrouped: Regrouping,
) -> int | None:
    """Return the most advanced step that is held for every part that anybody holds."""
    steps = {*held.values()}
    if None in steps and len(steps) > 1:
        without = sorted(rank for rank, own in held.items() if own is None)
        raise SpecError(
            f"{plural('rank', len(without))} {format_ranks(without)} "
            f"{'gives' if len(without) == 1 else 'give'} no step, and other ranks do.",
            fix="pass step=<completed steps> on every rank.",
        )
    if not held or None in steps:
        return None
    common = set.intersection(*(set(by_step) for by_step in holders.values()))
    if not common:
        raise _no_common_step_error(regrouped, holders)
    return max(step for step in common if step is not None)


def _no_common_step_error(
    regrouped: Regrouping, holders: Mapping[Unit, Mapping[int | None, list[int]]]
) -> SpecError:
    """Return the error of ranks that hold the parts of the state after different steps."""
    lines = []
    for unit, by_step in sorted(holders.items()):
        part = format_sizes(dict(zip(regrouped.unit_axes, unit, strict=True))) or "the state"
        held = ", ".join(
            f"step {step} on {plural('rank', len(ranks))} {format_ranks(_before(regrouped, ranks))}"
            for step, ranks in sorted(by_step.items(), key=str)
        )
        lines.append(f"{part}: {held}.")
    return SpecError(
        "the ranks that live have completed different steps, and no step is held for each part.",
        *lines,
        fix="start the job again from a checkpoint.",
    )


def _before(regrouped: Regrouping, ranks: list[int]) -> list[int]:
    return sorted(regrouped.old_ranks[rank] for rank in ranks)
