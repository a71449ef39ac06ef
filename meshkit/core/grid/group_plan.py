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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..arrays import Ints
from ..call import Call
from ..errors import Change, SpecError
from .axis_names import check_axes_exist, parse_axes
from .layout import Layout

AVERAGED = ("dp", "cp", "sp")  # gradients are averaged over those of these that are present

Axes = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class GroupStep:
    """All groups over one set of axes, which are created together.

    Attributes:
        axes: the first of the axis sets that share these groups.
        members: int64 (num_groups, group_size), the ranks of each group in order.
    """

    axes: Axes
    members: Ints


@dataclass(frozen=True)
class GroupPlan:
    """The groups to create for a mesh. Make it with :meth:`of`.

    Attributes:
        layout: the grid.
        axis_sets: the axes of every group that can be looked up, each once: the whole mesh ``()``,
            every axis, the axes over which gradients are averaged, and the requested ones.
        requested: the axes of the groups that the caller requested in addition, as written.
    """

    layout: Layout
    axis_sets: tuple[Axes, ...]
    requested: tuple[Axes, ...] = ()

    @classmethod
    def of(cls, layout: Layout, groups: str | Sequence[str | Iterable[str]] = ()) -> GroupPlan:
        """Return the plan for a layout.

        Args:
            layout: the grid.
            groups: groups in addition to the usual ones: ``["dp tp"]`` or ``[("dp", "tp")]``. A
                str is one group.

        Raises:
            UnknownAxisError: for an axis that the layout does not have.
            SpecError: for an axis twice in one group.

        Example:
            >>> plan = GroupPlan.of(Layout(dp=4, sp=2, tp=1))
            >>> plan.axis_sets
            ((), ('dp',), ('sp',), ('tp',), ('dp', 'sp'))
            >>> [(step.axes, step.members.shape) for step in plan.steps]
            [((), (1, 8)), (('dp',), (2, 4)), (('sp',), (4, 2)), (('tp',), (8, 1))]
        """
        requested = _parse_groups([groups] if isinstance(groups, str) else groups)
        for axes in requested:
            check_axes_exist(axes, layout.axes)
        averaged = tuple(axis for axis in AVERAGED if axis in layout.axes)
        usual: list[Axes] = [(), *((axis,) for axis in layout.axes), averaged]
        whole = {layout.axes: ()}  # all axes in their own order are the whole mesh
        axis_sets = [whole.get(axes, axes) for axes in (*usual, *requested)]
        return cls(layout, tuple(dict.fromkeys(axis_sets)), requested)

    def has(self, axes: Axes) -> bool:
        """Return whether the plan has the group over these axes, whatever the sizes are."""
        return axes in self.axis_sets or axes == self.layout.axes

    def group_key(self, axes: Axes) -> Axes:
        """Return the axes longer than 1, in the caller's order: equal keys mean equal groups.

        No axes mean the whole mesh. An empty key is a group of one.
        """
        sizes = self.layout.sizes
        return tuple(axis for axis in axes or self.layout.axes if sizes[axis] > 1)

    @cached_property
    def steps(self) -> tuple[GroupStep, ...]:
        """The groups to create, in order, each set of groups once.

        Cost: O(ranks) for each step.
        """
        first: dict[Axes, Axes] = {}
        for axes in self.axis_sets:
            first.setdefault(self.group_key(axes), axes)
        return tuple(GroupStep(axes, self.layout.groups(*axes)) for axes in first.values())


def missing_group_error(plan: GroupPlan, axes: Axes, built_by: Call | None = None) -> SpecError:
    """Return the error for a group that was not requested, with the call that creates it.

    Args:
        plan: the requested groups.
        axes: the axes of the missing group.
        built_by: the call that built the mesh; None for the call that raises the error.
    """
    existing = ", ".join("(" + " ".join(names) + ")" for names in plan.axis_sets if names)
    groups = [" ".join(names) for names in (*plan.requested, axes)]
    return SpecError(
        f"the mesh has no group over {' '.join(axes)}.",
        f"It has groups over {existing}; a getter never creates one.",
        fix=f"{built_by.with_args(groups=groups)}." if built_by else (Change(groups=groups), "."),
        sizes=plan.layout.sizes,
    )


def _parse_groups(groups: object) -> tuple[Axes, ...]:
    if isinstance(groups, Iterable):
        axis_sets = list(groups)
        if all(isinstance(names, Iterable) for names in axis_sets):
            return tuple(parse_axes(names) for names in axis_sets)
    raise SpecError("groups is not a list of axis sets.", fix='for example groups=["dp tp"].')
