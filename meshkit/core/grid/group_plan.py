"""GroupPlan: the process groups that a mesh needs, in one order for all ranks, each once.

A plan is the same on every rank. The live part creates the groups of its steps, one after the
other, and computes nothing. For ``Layout(dp=4, sp=2, tp=1)`` on a world of 8::

    axes        groups
    ()          the default group: the whole world, in order
    (dp,)       4 x 2: two groups of four are created
    (sp,)       2 x 4: four groups of two are created
    (tp,)       a group of one on each rank
    (dp, sp)    the default group again
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ..arrays import Ints
from ..call import Call
from ..errors import CALL, SpecError
from ..text import count_noun
from .axis_names import check_axes_exist, parse_axes
from .layout import Layout
from .rank_positions import RankPositions
from .roles import gradient_axes, unknown_axes
from .sizes import STANDARD_AXES, check_sizes, infer_sizes, ordered_sizes, view_sizes

Axes = tuple[str, ...]
Order = str | Iterable[str] | None
GroupNames = str | Sequence[str | Iterable[str]] | None


class GroupStep(NamedTuple):
    """All groups over one set of axes, which are created together."""

    axes: Axes  # the first of the axis sets that share these groups
    members: Ints  # int64 (num_groups, group_size), the ranks of each group in order


@dataclass(frozen=True)
class GroupPlan:
    """The groups to create for a mesh. Make it with :meth:`of`."""

    layout: Layout
    # the axes of every group that can be looked up, each once: the whole mesh ``()``, every axis,
    # the axes over which gradients are averaged, those of experts, and the requested ones
    axis_sets: tuple[Axes, ...]
    # the axes of the groups that the caller requested in addition, as written
    requested: tuple[Axes, ...]
    # axis set to its axes longer than 1. Equal keys mean equal groups.
    keys: Mapping[Axes, Axes] = field(compare=False)

    @classmethod
    def of(cls, layout: Layout, groups: str | Sequence[str | Iterable[str]] = ()) -> GroupPlan:
        """Return the plan for a layout, with the requested groups beside the usual ones.

        Example:
            >>> plan = GroupPlan.of(Layout(dp=4, sp=2, tp=1))
            >>> plan.axis_sets
            ((), ('dp',), ('sp',), ('tp',), ('dp', 'sp'))
            >>> [(step.axes, step.members.shape) for step in plan.steps]
            [((), (1, 8)), (('dp',), (2, 4)), (('sp',), (4, 2)), (('tp',), (8, 1))]
        """
        listed = _parse_groups([groups] if isinstance(groups, str) else groups) if groups else ()
        for axes in listed:
            check_axes_exist(axes, layout.axes)
        requested = tuple(names for axes in listed if (names := _drop_absent(axes, layout)))
        usual: list[Axes] = [(), *((axis,) for axis in layout.axes)]
        sizes = layout.sizes
        if unknown_axes(sizes):  # beside axes of unknown role, only standard ones are combined
            sizes = {axis: size for axis, size in sizes.items() if axis in STANDARD_AXES}
        usual += [gradient_axes(sizes), gradient_axes(sizes, experts=True)]
        whole = {layout.axes: ()}  # all axes in their own order are the whole mesh
        axis_sets = dict.fromkeys([whole.get(axes, axes) for axes in (*usual, *requested)])
        long = {axis for axis, size in zip(layout.axes, layout.shape, strict=True) if size > 1}
        keys = {
            axes: tuple([axis for axis in axes or layout.axes if axis in long])
            for axes in axis_sets
        }
        return cls(layout, tuple(axis_sets), requested, keys)

    def has(self, axes: Axes) -> bool:
        """Return whether the plan has the group over these axes.

        Absent standard axes and axes of size 1 change no group, so they are passed over.
        """
        names = _drop_absent(axes, self.layout)
        if not names or names in self.axis_sets or names == self.layout.axes:
            return True
        return self.group_key(names) in self.keys.values()

    def group_key(self, axes: Axes) -> Axes:
        """Return the axes longer than 1, in the caller's order: equal keys mean equal groups.

        No axes mean the whole mesh. An empty key is a group of one.
        """
        sizes = self.layout.sizes
        return tuple(axis for axis in axes or self.layout.axes if sizes.get(axis, 1) > 1)

    @cached_property
    def steps(self) -> tuple[GroupStep, ...]:
        """The groups to create, in order, each set of groups once.

        Cost: O(ranks) for each step.
        """
        first: dict[Axes, Axes] = {}
        for axes, key in self.keys.items():
            first.setdefault(key, axes)
        return tuple(GroupStep(axes, self.layout.groups(*axes)) for axes in first.values())


def plan_groups(
    sizes: Mapping[str, object],
    world_size: int,
    evidence: str,
    *,
    order: Order = None,
    groups: GroupNames = None,
    ranks: Sequence[int] | Ints | None = None,
    within: Mapping[str, int] | None = None,
    across: Mapping[str, int] | None = None,
) -> GroupPlan:
    """Return the layout and the groups of a mesh. Pure.

    ``evidence`` is the source of the world size, for errors: ``"WORLD_SIZE = 6 (torchrun)"``.
    """
    if within is not None or across is not None:
        from .hybrid import check_no_plain_sizes, hybrid_layout

        check_no_plain_sizes(sizes, across)
        if ranks is not None:
            fix = "leave out ranks, or give axes by size beside ranks."
            raise SpecError(f"{CALL} gives ranks beside within and across.", fix=fix)
        layout = hybrid_layout(world_size, within, across, order)
    elif ranks is None:
        inferred = infer_sizes(ordered_sizes(sizes, order, world_size), world_size, evidence)
        layout = Layout.of(inferred)
    else:
        positions = RankPositions.of(ranks, None)
        ordered = ordered_sizes(sizes, order, len(positions))
        check_in_world(int(positions.array().max()), world_size, evidence)
        held = f"ranks has {len(positions)}"
        inferred = infer_sizes(ordered, len(positions), held, owner="ranks=", can_start=False)
        layout = Layout.of(inferred, positions)
    return GroupPlan.of(layout, () if groups is None else groups)


def plan_view(
    layout: Layout, sizes: Mapping[str, object], order: Order, groups: GroupNames
) -> GroupPlan:
    """Return the plan of a view: the same ranks in the same order, with other axes. Pure."""
    ordered = view_sizes(check_sizes(sizes), order)
    evidence = f"{layout!r} has {layout.num_ranks} ranks"
    inferred = infer_sizes(ordered, layout.num_ranks, evidence, owner="the mesh", can_start=False)
    return GroupPlan.of(layout.of(inferred, layout.rank_positions), groups or ())


def check_in_world(highest: int, world_size: int, evidence: str, *, fix: str = "") -> None:
    """Raise if a rank is outside the world."""
    if highest >= world_size:
        raise SpecError(
            f"rank {highest} is outside the world.",
            f"The world has {count_noun(world_size, 'rank')}, numbered from 0; {evidence}.",
            fix=fix or f"ranks=range({world_size}), or a part of it.",
            world_size=world_size,
            num_ranks=highest + 1,
        )


def missing_group_error(plan: GroupPlan, axes: Axes, built_by: Call | None = None) -> SpecError:
    """Return the error for a group that was not requested, with the call that creates it."""
    existing = ", ".join("(" + " ".join(names) + ")" for names in plan.axis_sets if names)
    groups = [" ".join(names) for names in (*plan.requested, _drop_absent(axes, plan.layout))]
    return SpecError(
        f"the mesh has no group over {' '.join(axes)}.",
        f"It has groups over {existing}; a getter never creates one.",
        fix=f"{built_by.name if built_by else 'build_mesh'}(..., groups={groups}).",
        sizes=plan.layout.sizes,
    )


def _drop_absent(axes: Axes, layout: Layout) -> Axes:
    """Return the axes without the standard ones that a layout does not have."""
    return tuple(axis for axis in axes if axis in layout.axes)


def _parse_groups(groups: object) -> tuple[Axes, ...]:
    if isinstance(groups, Iterable):
        axis_sets = list(groups)
        if all(isinstance(names, Iterable) for names in axis_sets):
            return tuple(parse_axes(names) for names in axis_sets)
    raise SpecError("groups is not a list of axis sets.", fix='for example groups=["dp tp"].')
