"""Groups that collectives are measured over: one axis, two, all; and two axes at once.

::

    dp        the groups of an axis
    dp sp     the groups over two axes
    dp+sp     each rank in its group of dp and in that of sp at the same time
    world     the group of all ranks

In training the gradients of dp are reduced while the layers of tp, sp, cp and ep still communicate,
and pp sends beside all of them. Those four wait for each other and do not overlap.

Measuring alone takes one pass per group, while all other groups wait. With many groups, a sample is
measured, spread evenly over the nodes, the first and the last group included::

    group      0  1  2  3 | 4  5  6  7 | 8  9 10 11 | 12 13 14 15
    4 of 16    x            .  x         .  .  x                x
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ...core.arrays import Ints
from ...core.errors import SpecError
from ...core.grid.axis_names import check_axes_exist
from ...core.grid.group_plan import Axes
from ...core.grid.layout import Layout
from ...core.topology.topology import number_labels

ALONE, CONCURRENT, OVERLAP = "alone", "concurrent", "overlap"
DEFAULT_ALONE = 16  # groups of a target that are measured alone at most, by default
WORLD = "world"  # all axes, unless an axis has this name
SEQUENTIAL = frozenset({"ep", "cp", "sp", "tp"})  # one after the other inside a layer


@dataclass(frozen=True)
class Target:
    """Groups that a collective runs over."""

    groups: tuple[Axes, ...]  # axes of each; two entries if collectives run on both at once

    @property
    def name(self) -> str:
        """The target as typed: ``dp``, ``dp sp`` or ``dp+sp``."""
        return "+".join(" ".join(axes) for axes in self.groups)

    @property
    def span(self) -> Axes:
        """All axes; ranks that differ in no others depend on each other."""
        return tuple(axis for axes in self.groups for axis in axes)


def shared_axes(layout: Layout) -> Axes:
    """Return the axes with more than one rank, the outermost first."""
    return tuple(axis for axis in layout.axes if layout.size(axis) > 1)


def default_targets(layout: Layout) -> tuple[Target, ...]:
    """Return each axis of several ranks, each two, the world, and each two that overlap. Pure."""
    axes = shared_axes(layout)
    two = list(combinations(axes, 2))
    sets = dict.fromkeys([*((axis,) for axis in axes), *two, *([axes] if axes else [])])
    overlapping = [Target(((a,), (b,))) for a, b in two if not {a, b} <= SEQUENTIAL]
    return (*(Target((axes,)) for axes in sets), *overlapping)


def parse_targets(layout: Layout, names: Sequence[str]) -> tuple[Target, ...]:
    """Return targets from their names, each once: sp+dp is dp+sp, world is all axes. Pure."""
    targets: dict[tuple[Axes, ...], Target] = {}
    for name in names:
        target = _parse_target(layout, name)
        targets.setdefault(tuple(sorted(target.groups)), target)
    return tuple(targets.values())


def _parse_target(layout: Layout, name: str) -> Target:
    is_world = name.strip() == WORLD and WORLD not in layout.axes
    text = " ".join(shared_axes(layout) or layout.axes) if is_world else name
    target = Target(tuple(tuple(part.split()) for part in text.split("+")))
    check_axes_exist(target.span, layout.axes)
    if not all(target.groups) or len(target.groups) > 2:
        summary = f"{name!r} is not a target: axes, or two sets of axes joined by '+'."
        fix = "axes such as dp, 'dp sp' for groups over both, or dp+sp for both at once."
        raise SpecError(summary, fix=fix)
    for axes in target.groups:
        if layout.size(*axes) == 1:
            summary = f"a group over {' '.join(axes)} has 1 rank, so no data moves in it."
            raise SpecError(summary, fix="an axis with 2 ranks or more.")
    return target


def num_passes(layout: Layout, target: Target, mode: str, max_alone: int | None) -> int:
    """Return the passes of a mode: one, or one for each group that is measured alone. Pure."""
    if mode != ALONE:
        return 1
    num_groups = layout.num_ranks // layout.size(*target.span)
    return num_groups if max_alone is None else min(num_groups, max_alone)


def sample_groups(groups: Ints, hosts: Mapping[int, str], max_alone: int | None) -> list[int]:
    """Return the indices of the groups to measure alone, ascending, equal on all ranks. Pure.

    The groups are sorted by their nodes, with the first group first and the last one last. The
    sample is taken from there at equal distances.
    """
    last, size = len(groups) - 1, len(groups) if max_alone is None else max_alone
    if size > last:
        return [*range(len(groups))]
    nodes, _ = number_labels("node", (hosts[int(rank)] for rank in groups.flat))
    order = np.lexsort(nodes.reshape(groups.shape).T[::-1]).tolist()
    order = [0, *(group for group in order if 0 < group < last), last]
    return sorted(order[i * last // max(size - 1, 1)] for i in range(size))
