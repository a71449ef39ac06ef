"""The process groups of one rank in one mesh, from their creation until ``close``."""

from __future__ import annotations

import os
import weakref

import torch.distributed as dist

from ...core.call import Call, public
from ...core.errors import MeshkitError
from ...core.grid.axis_names import check_axes_exist
from ...core.grid.group_plan import GroupPlan, missing_group_error
from ...core.grid.group_rank import check_member
from ...core.text import format_sizes
from ...launch.own_process import check_own_process
from .registry import NO_GROUPS, GroupRegistry, Groups


class MeshGroups:
    """The groups of one rank in one open mesh. All methods are local.

    Attributes:
        is_closed: whether the mesh is closed.
        pid: the process of the rank.
        requested: the groups that were requested before, by axes; empty when the mesh is closed.
    """

    __slots__ = (
        "built_by",
        "extended_by",
        "groups",
        "is_closed",
        "pid",
        "plan",
        "rank",
        "registry",
        "requested",
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
        self.is_closed = False
        self.pid = os.getpid()

    def get(self, axes: tuple[str, ...]) -> dist.ProcessGroup:
        """Return this rank's group over the axes, from the earlier requests if possible.

        It raises as :meth:`find`.
        """
        try:
            if self.world() is dist.GroupMember.WORLD:  # type: ignore[misc]
                return self.requested[axes]
        except (KeyError, TypeError):  # not requested before, or no str; or no default group
            pass
        return self.find(*axes)

    @public("mesh.group")  # here, so that the common path of mesh.group has no wrapper
    def find(self, *axes: str) -> dist.ProcessGroup:
        """Return this rank's group over the axes; without axes, that of the whole mesh.

        Raises:
            UnknownAxisError: if the mesh does not have an axis.
            SpecError: if the group was not requested, with the call that creates it.
            CoordinateError: on a rank outside the mesh.
            MeshkitError: after ``close``, or after ``shutdown``.
        """
        check_axes_exist(axes, self.plan.layout.axes)
        self.check_open()
        if not self.plan.has(axes):
            raise missing_group_error(self.plan, axes, self.extended_by)
        check_member(self.plan.layout, self.rank)
        group = self.requested[axes] = self.groups.by_key[self.plan.group_key(axes)]
        return group

    def collective_group(self, axes: tuple[str, ...]) -> dist.ProcessGroup:
        """Return this rank's group over the axes, after a check that it may communicate here."""
        self.check_can_communicate()
        return self.get(axes)

    def check_can_communicate(self) -> None:
        """Raise if the mesh is not usable, or if this process is a fork of the rank."""
        self.check_usable()
        check_own_process(self.rank, self.pid)

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
        self.groups, self.is_closed = NO_GROUPS, True
        self.requested.clear()
        return self.registry.release(self.view_id)
