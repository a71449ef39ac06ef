"""GroupPlan: which process groups a mesh needs, in one order for all ranks, none twice.

Everything here is the same on every rank; the live part walks through the steps and computes
nothing. For ``Layout(dp=4, sp=2, tp=1)`` on a world of 8::

    axes        what it is
    ()          the default group: the whole world, in order
    (dp,)       4 x 2: two groups of four are created
    (sp,)       2 x 4: four groups of two are created
    (tp,)       a singleton, one group of one on each rank
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
    """Groups to create in one go: all groups over one set of axes.

    Attributes:
        axes: the axes that were asked for first; others may share these groups.
        members: int64 (num_groups, group_size), the ranks of each group in order.
    """

    axes: Axes
    members: Ints


@dataclass(frozen=True)
class GroupPlan:
    """What was asked for, and the groups to create for it. Make it with :meth:`of`.

    Attributes:
        layout: the grid.
        asked: the axes of every group that was asked for, each once: the whole mesh ``()``,
            every axis, those over which gradients are averaged, and the caller's own.
        extra: what the caller asked for beyond that, as asked.
    """

    layout: Layout
    asked: tuple[Axes, ...]
    extra: tuple[Axes, ...] = ()

    @classmethod
    def of(
        cls,
        layout: Layout,
        groups: str | Sequence[str | Iterable[str]] = (),
    ) -> GroupPlan:
        """The plan for a layout.

        Args:
            layout: the grid.
            groups: more groups than the usual ones: ``["dp tp"]`` or ``[("dp", "tp")]``. A str is
                one group.

        Raises:
            UnknownAxisError: for an axis the layout does not have.
            SpecError: for an axis twice in one group.

        Example:
            >>> plan = GroupPlan.of(Layout(dp=4, sp=2, tp=1))
            >>> plan.asked
            ((), ('dp',), ('sp',), ('tp',), ('dp', 'sp'))
            >>> [(step.axes, step.members.shape) for step in plan.steps]
            [((), (1, 8)), (('dp',), (2, 4)), (('sp',), (4, 2)), (('tp',), (8, 1))]
        """
        extra = _extra([groups] if isinstance(groups, str) else groups)
        for axes in extra:
            check_axes_exist(axes, layout.axes)
        averaged = tuple(axis for axis in AVERAGED if axis in layout.axes)
        usual: list[Axes] = [(), *((axis,) for axis in layout.axes), averaged]
        whole = {layout.axes: ()}  # all axes in their own order are the whole mesh
        asked = [whole.get(axes, axes) for axes in (*usual, *extra)]
        return cls(layout, tuple(dict.fromkeys(asked)), extra)

    def has(self, axes: Axes) -> bool:
        """Whether the group over these axes was asked for. Does not depend on the sizes."""
        return axes in self.asked or axes == self.layout.axes

    def key(self, axes: Axes) -> Axes:
        """The axes longer than 1, in the caller's order: equal keys mean equal groups.

        No axes mean the whole mesh. An empty key is a group of one.
        """
        sizes = self.layout.sizes
        return tuple(axis for axis in axes or self.layout.axes if sizes[axis] > 1)

    @cached_property
    def steps(self) -> tuple[GroupStep, ...]:
        """What to create, in order, each set of groups once. O(num_ranks) a step."""
        first: dict[Axes, Axes] = {}
        for axes in self.asked:
            first.setdefault(self.key(axes), axes)
        return tuple(GroupStep(axes, self.layout.groups(*axes)) for axes in first.values())


def not_built(plan: GroupPlan, axes: Axes, built_by: Call | None = None) -> SpecError:
    """Return the error of a group that was not requested, with the call that builds it.

    Args:
        plan: the requested groups.
        axes: the axes of the missing group.
        built_by: the call that built the mesh; None for the call that raises the error.
    """
    built = ", ".join("(" + " ".join(one) + ")" for one in plan.asked if one)
    more = [*(" ".join(one) for one in plan.extra), " ".join(axes)]
    return SpecError(
        f"no group over {' '.join(axes)} was built.",
        f"Built are {built}; a getter never creates one.",
        fix=f"{built_by.with_args(groups=more)}." if built_by else (Change(groups=more), "."),
        sizes=plan.layout.sizes,
    )


def _extra(groups: object) -> tuple[Axes, ...]:
    """The axes of every group asked for."""
    if isinstance(groups, Iterable):
        named = list(groups)
        if all(isinstance(names, Iterable) for names in named):
            return tuple(parse_axes(names) for names in named)
    raise SpecError("groups is not a list of axes.", fix='groups=["dp tp"], say.')
