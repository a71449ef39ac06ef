"""The process groups of one rank in one mesh, from their creation until ``close``."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch.distributed as dist

from ...core.call import Call, public
from ...core.errors import MeshkitError, SpecError
from ...core.grid.axis_names import Names, check_axes_exist, parse_axes
from ...core.grid.group_plan import GroupPlan, missing_group_error
from ...core.grid.group_rank import check_member
from ...core.grid.roles import (
    axes_with_unknown,
    gradient_axes,
    unknown_axes,
    unknown_role_error,
)
from ...core.text import format_sizes
from .registry import NO_GROUPS, GroupRegistry, Groups

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class MeshGroups:
    """The groups of one rank in one open mesh. All methods are local.

    Attributes:
        is_closed: whether the mesh is closed.
        requested: the groups that were requested before, by axes; empty when the mesh is closed.
        root: the DeviceMesh of all axes, of which all others are slices; None before the first one.
    """

    __slots__ = (
        "built_by",
        "extended_by",
        "groups",
        "is_closed",
        "plan",
        "rank",
        "registry",
        "requested",
        "root",
        "round_id",
        "view_id",
        "world",
    )

    def __init__(
        self,
        plan: GroupPlan,
        rank: int,
        groups: Groups,
        registry: GroupRegistry,
        round_id: int,
        built_by: Call,
        extended_by: Call | None = None,
    ) -> None:
        self.plan = plan
        self.rank = rank
        self.groups = groups
        self.registry = registry
        self.round_id = round_id
        self.built_by = built_by
        self.extended_by = extended_by or built_by
        self.view_id = registry.register(format_sizes(plan.layout.sizes), groups, round_id)
        self.world = weakref.ref(dist.group.WORLD) if dist.group.WORLD is not None else None
        self.requested: dict[tuple[str, ...], dist.ProcessGroup] = {}
        self.root: DeviceMesh | None = None
        self.is_closed = False

    def get(self, axes: tuple[Names, ...]) -> dist.ProcessGroup:
        """Return this rank's group over the axes, from the earlier requests if possible.

        It raises as :meth:`find`.
        """
        try:
            if self.world() is dist.GroupMember.WORLD:  # type: ignore[misc]
                return self.requested[axes]  # type: ignore[index]
        except (KeyError, TypeError):  # not requested before, or a list; or no default group
            pass
        return self.find(*axes)

    @public("mesh.group")  # here, so that the common path of mesh.group has no wrapper
    def find(self, *axes: Names) -> dist.ProcessGroup:
        """Return this rank's group over the axes; without axes, that of the whole mesh.

        Raises:
            UnknownAxisError: if the mesh does not have an axis.
            SpecError: if the group was not requested, with the call that creates it.
            CoordinateError: on a rank outside the mesh.
            MeshkitError: after ``close``, or after ``shutdown``.
        """
        names = parse_axes(axes)
        check_axes_exist(names, self.plan.layout.axes)
        self.check_open()
        if not self.plan.has(names):
            raise missing_group_error(self.plan, names, self.extended_by)
        check_member(self.plan.layout, self.rank)
        group = self.requested[names] = self.groups.by_key[self.plan.group_key(names)]
        return group

    def gradient_group(self, *, experts: bool = False) -> dist.ProcessGroup:
        """Return this rank's group over which gradients are averaged.

        It raises as :meth:`find`, and SpecError if an axis longer than 1 has an unknown role.
        """
        sizes = self.plan.layout.sizes
        if unknown_axes(sizes):
            raise self._unknown_role_error(experts)
        return self.get(gradient_axes(sizes, experts=experts) or ("dp",))

    def _unknown_role_error(self, experts: bool) -> SpecError:
        """Return the error of :meth:`gradient_group` with the groups that a user may mean."""
        sizes = self.plan.layout.sizes
        choices = [c for c in axes_with_unknown(sizes, gradient_axes(sizes, experts=experts)) if c]
        groups = [Call("mesh.group", axes) for axes in choices if self.plan.has(axes)]
        missing = [" ".join(axes) for axes in choices if not self.plan.has(axes)]
        requested = [" ".join(axes) for axes in self.plan.requested]
        build = self.extended_by.with_args(groups=[*requested, *missing])
        ways = [*map(str, groups), *([f"a group of {build}"] if missing else [])]
        return unknown_role_error(sizes, f"{', or '.join(ways)}.")

    def check_usable(self) -> None:
        """Raise if the mesh is closed, or if this rank is outside it."""
        self.check_open()
        check_member(self.plan.layout, self.rank)

    def check_open(self) -> None:
        """Raise if the mesh is closed, or if the job in which it was built has ended."""
        has_job = self.world is not None and self.world() is dist.group.WORLD
        if has_job and not self.is_closed:
            return
        reason = "the mesh is closed" if self.is_closed else "the job it was built in has been left"
        # a view needs its mesh; if all views are closed, the mesh must be built again first
        can_view = has_job and bool(self.registry.open_views)
        call = self.built_by if can_view else self.registry.built_by
        raise MeshkitError(f"{reason}.", fix=f"{call} again.")

    def release(self) -> tuple[dist.ProcessGroup, ...]:
        """Mark the mesh as closed; return this rank's created groups that no open view uses."""
        # torch frees descriptors and threads with the last reference to a group
        self.groups, self.root, self.is_closed = NO_GROUPS, None, True
        self.requested.clear()
        return self.registry.release(self.view_id)
