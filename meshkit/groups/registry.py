"""The process groups of one rank in one mesh, and the registry that a mesh and its views share.

Two groups are one if their members, order, backend and timeout are equal. A group is destroyed when
the last view that uses it is closed::

    dense   dp sp tp                 (dp sp) is 4 steps of 2   ── one group ──┐
    hsdp    replicate shard tp       shard   is 4 steps of 2   ───────────────┘

Every rank keeps equal entries, also for groups of other ranks. All ranks therefore create or share
the same groups. Ranks compare their open views before a view is created.

Without ``timeout`` or ``backend``, a view has those of its mesh, group by group. With
``share=False`` it has groups of its own.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ..call import Call, format_value, quotes_call
from ..errors import MeshkitError
from ..launch.log import Startup
from ..launch.of_one_process import OfOneProcess
from ..launch.process import check_own_process
from ..launch.torch_aborts import timeout_of
from ..launch.torch_groups import backend_of, knows_group
from ..layout.axes import (
    Names,
    axes_with_unknown,
    check_axes_exist,
    gradient_axes,
    parse_axes,
    unknown_axes,
    unknown_role_error,
)
from ..layout.group_plan import Axes, GroupPlan, missing_group_error
from ..layout.layout import Layout
from ..layout.position import check_member
from ..layout.ranks import Strides
from ..text import count_noun, format_table

Edge = tuple[int, int]  # the coordinate that sends, and the one that receives
GroupKey = tuple[Strides, str, timedelta]  # members in order, backend with its options, timeout


class Groups(NamedTuple):
    """The process groups of one rank in one mesh."""

    # key of the group plan to this rank's group. Several sets of axes share one group. It is empty
    # on a rank outside the mesh
    by_key: Mapping[Axes, dist.ProcessGroup]
    used: Mapping[GroupKey, tuple[Axes, ...]]  # key of each group to the sets of axes that use it
    # key to group for the groups that were created for this mesh, in order of creation. The group
    # is None if this rank is not a member
    new: Mapping[GroupKey, dist.ProcessGroup | None]

    @property
    def created(self) -> tuple[dist.ProcessGroup, ...]:
        """This rank's groups that were created for this mesh, in order of creation."""
        return tuple(group for group in self.new.values() if group is not None)


NO_GROUPS = Groups({}, {}, {})


class OpenView(NamedTuple):
    """An open view: its layout, and the groups that it uses with the axes of each."""

    layout: Layout
    groups: Mapping[GroupKey, tuple[Axes, ...]]


@dataclass(eq=False, repr=False)
class GroupRegistry(OfOneProcess):
    """The groups of a mesh and of its views, equal on every rank."""

    built_by: Call  # the call that built the first mesh
    # groups of the user by their members. They are never destroyed.
    external_groups: Mapping[Strides, dist.ProcessGroup | None] = field(default_factory=dict)
    external_axes: str = ""  # the axes of the external groups as text, for the comparison of ranks
    # the groups that meshkit created
    groups: dict[GroupKey, dist.ProcessGroup | None] = field(default_factory=dict)
    open_views: dict[int, OpenView] = field(default_factory=dict)  # view id to the view
    conflict: str = ""  # the batches of this rank that differ from those of the first one
    next_view_id: int = 0  # the id of the next view; ids are never used twice
    round_id: int = 0  # id of the agreement round in which the first mesh was built
    # whether no other mesh shares these groups, and torch's default group is not one of them
    is_private: bool = False
    number: int = 0  # of a private registry in its job, from 1, equal on every rank

    def register(self, layout: Layout, groups: Groups, round_id: int) -> int:
        """Register a view and its groups; return the id of the view."""
        view_id = self.next_view_id
        if view_id == 0:
            self.round_id = round_id
        self.groups.update(groups.new)
        self.open_views[view_id] = OpenView(layout, groups.used)
        self.next_view_id += 1
        return view_id

    def extend(
        self,
        view_id: int,
        new: Mapping[GroupKey, dist.ProcessGroup | None],
        used: Mapping[GroupKey, tuple[Axes, ...]],
    ) -> None:
        """Register more groups of an open view, and who uses them."""
        view = self.open_views[view_id]
        uses = {key: (*view.groups.get(key, ()), *axes) for key, axes in used.items()}
        self.groups.update(new)
        self.open_views[view_id] = view._replace(groups={**view.groups, **uses})

    def release(self, view_id: int) -> tuple[dist.ProcessGroup, ...]:
        """Remove a view, if it is open; return this rank's groups that no view uses, in order."""
        self.open_views.pop(view_id, None)
        used = {key for view in self.open_views.values() for key in view.groups}
        unused = [self.groups.pop(key) for key in [*self.groups] if key not in used]
        return tuple(group for group in unused if group is not None)

    def find(self, key: GroupKey) -> tuple[str, dist.ProcessGroup | None]:
        """Return where the group of a key comes from, and the group.

        The group is None if this rank is not a member, and for ``"default"``. An external group
        stands for all groups of equal members, whatever their backend and timeout. The user may
        have ``"destroyed"`` a group that meshkit created.
        """
        if key[0] in self.external_groups:
            return "external", self.external_groups[key[0]]
        if key not in self.groups:
            return "default", None
        group = self.groups[key]
        is_open = group is None or knows_group(group)
        return "created" if is_open else "destroyed", group

    def uses(self, key: GroupKey) -> tuple[tuple[int, str], ...]:
        """Return the ids of the open views that use a group, each with the axes as text."""
        uses = []
        for view_id, view in self.open_views.items():
            whole = view.layout.axes
            axis_sets = view.groups.get(key, ())
            names = ["all" if axes == whole else " ".join(axes) for axes in axis_sets if axes]
            uses += [(view_id, ", ".join(names) or "absent axes")] if axis_sets else []
        return tuple(uses)

    def fields(self) -> dict[str, str]:
        """Return the entries and their history as text, equal on all ranks; only what there is."""
        gone = [key for key in self.groups if self.find(key)[0] == "destroyed"]
        fields = {
            "batches": self.conflict,
            "open": self.describe_views() if self.open_views else "",
            "destroyed": "; ".join(axes for key in gone for _, axes in self.uses(key)),
            "external": self.external_axes,
        }
        return {name: text for name, text in fields.items() if text}

    def describe_views(self) -> str:
        """Return the open views as text, for the comparison of ranks."""
        views = [f"{id} ({v.layout.sizes_text})" for id, v in self.open_views.items()]
        return f"views {', '.join(views)} of mesh {self.round_id}"


@dataclass(slots=True, eq=False, repr=False)
class MeshGroups(OfOneProcess):
    """The groups of one rank in one open mesh. All methods are local."""

    plan: GroupPlan  # the layout and the groups of the mesh
    rank: int
    groups: Groups  # its groups; none when the mesh is closed
    registry: GroupRegistry  # the groups of the mesh and of its views
    view_id: int  # the id of this view in the registry
    round_id: int  # the id of the agreement round in which the mesh was built
    built_by: Call  # the call that built it
    world: weakref.ref[dist.ProcessGroup]  # the default group of its job, as long as that exists
    startup: Startup  # the seconds of this rank until the mesh was there, by phase
    # the groups that were requested before, by the arguments; empty when the mesh is closed
    requested: dict[tuple[str, ...], dist.ProcessGroup] = field(default_factory=dict)
    # the DeviceMesh of all axes, of which all others are slices; None before the first
    root: DeviceMesh | None = None
    # the groups over which ranks have compared a move
    compared: set[dist.ProcessGroup] = field(default_factory=set)
    # this rank's groups of single edges, by axis and edge between two coordinates
    edges: dict[str, dict[Edge, dist.ProcessGroup]] = field(default_factory=dict)
    num_samplers: int = 0  # those that this mesh has made
    # the keys that this rank was the first to write in the part of the store of this mesh
    posted: set[str] = field(default_factory=set)
    committed: int = 0  # the steps that ``mesh.commit()`` has let this rank take
    is_closed: bool = False
    is_replaced: bool = False  # whether ``recover`` or ``admit`` has returned another
    pid: int = field(default_factory=os.getpid)  # the process of the rank

    @property
    def held(self) -> list[tuple[Axes, dist.ProcessGroup]]:
        """This rank's groups with their axes, those of single edges and of later dims included."""
        held = dict(self.groups.by_key)
        view, groups = self.registry.open_views.get(self.view_id), self.registry.groups
        for key, names in () if view is None else view.groups.items():
            if (group := groups.get(key)) is not None and group not in held.values():
                held.setdefault(names[0], group)
        return [*held.items()]

    @property
    def extended_by(self) -> Call:
        """The call that builds an equal mesh with more groups; over groups of the user, a view."""
        return self.built_by if self.built_by.name == "build_mesh" else Call("mesh.view")

    def get(self, axes: tuple[Names, ...]) -> dist.ProcessGroup:
        """Return this rank's group over the axes, from the earlier requests if possible."""
        try:
            if self.world() is dist.GroupMember.WORLD:
                return self.requested[axes]  # type: ignore[index]
        except (KeyError, TypeError):  # not requested before, or a list; or no default group
            pass
        return self.find(*axes)

    @quotes_call("mesh.group")  # here, so that the common path of mesh.group has no wrapper
    def find(self, *axes: Names) -> dist.ProcessGroup:
        """Return this rank's group over the axes; without axes, that of the whole mesh."""
        names = parse_axes(axes) if axes else self.plan.layout.axes
        check_axes_exist(names, self.plan.layout.axes)
        self.check_open()
        if not self.plan.has(names):
            raise missing_group_error(self.plan, names, self.extended_by)
        check_member(self.plan.layout, self.rank)
        key = names if names in self.groups.by_key else self.plan.group_key(names)
        group = self.groups.by_key[key]
        if names:
            self.requested[names if axes else ()] = group
        return group

    def collective_group(self, axes: tuple[Names, ...]) -> dist.ProcessGroup:
        """Return this rank's group over the axes, after a check that it may communicate here."""
        self.check_can_communicate()
        return self.get(axes)

    def check_can_communicate(self) -> None:
        """Raise if the mesh is not usable, or if this process is a fork of the rank."""
        self.check_usable()
        check_own_process(self.rank, self.pid)

    def gradient_group(self, *, experts: bool = False) -> dist.ProcessGroup:
        """Return this rank's group over which gradients are averaged."""
        sizes = self.plan.layout.sizes
        averaged = gradient_axes(sizes, experts=experts)
        if not unknown_axes(sizes):
            return self.get(averaged or ("dp",))
        choices = [axes for axes in axes_with_unknown(sizes, averaged) if axes]
        groups = [Call("mesh.group", axes) for axes in choices if self.plan.has(axes)]
        missing = [" ".join(axes) for axes in choices if not self.plan.has(axes)]
        requested = [" ".join(axes) for axes in self.plan.requested]
        build = f"{self.extended_by.name}(..., groups={[*requested, *missing]})"
        ways = [*map(str, groups), *([f"a group of {build}"] if missing else [])]
        raise unknown_role_error(sizes, f"{', or '.join(ways)}.")

    def check_usable(self) -> None:
        """Raise if the mesh is closed, or if this rank is outside it."""
        self.check_open()
        check_member(self.plan.layout, self.rank)

    def check_open(self) -> None:
        """Raise if the mesh is closed, or if the job in which it was built has ended."""
        has_job = self.world() is dist.group.WORLD
        if has_job and not self.is_closed:
            return
        if self.is_replaced:
            line = "mesh.recover() or mesh.admit() has returned another mesh."
            fix = "mesh = mesh.recover(), or mesh = mesh.admit(), and use that mesh."
            raise MeshkitError(line, fix=fix)
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
        self.edges.clear()
        self.compared.clear()
        return self.registry.release(self.view_id)


@dataclass(frozen=True)
class GroupEntry:
    """A process group that a rank holds.

    Attributes:
        members: its global ranks in order; empty if the group is gone.
        origin: ``"default"``, ``"created"`` by meshkit, ``"external"`` if the user created it, or
            ``"gone"`` if the user has destroyed it since.
        backend: its backend.
        seconds: its timeout; None if torch does not expose it.
        uses: the id of each open view that uses it, with the axes there.
    """

    members: tuple[int, ...]
    origin: str
    backend: str
    seconds: float | None
    uses: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class GroupsReport:
    """The process groups of one rank in a mesh and all its open views. ``str`` is a table.

    Attributes:
        rank: the rank.
        views: id to sizes as text, for the open views.
        groups: each group once, the largest first.
    """

    rank: int
    views: Mapping[int, str]
    groups: tuple[GroupEntry, ...]

    @property
    def communicators(self) -> int:
        """The number of process groups that these views use, the default group included."""
        return len(self.groups)

    def __str__(self) -> str:
        created = sum(group.origin == "created" for group in self.groups)
        groups = count_noun(self.communicators, "process group")
        head = f"rank {self.rank} holds {groups}, {created} created."
        views = (f"view {view}: {sizes}" for view, sizes in self.views.items())
        rows = []
        for group in self.groups:
            timeout = "" if group.seconds is None else f" {group.seconds:g} s"
            ranks = f"{count_noun(len(group.members), 'rank')} {format_value([*group.members])}"
            uses = "; ".join(f"{view}: {axes}" for view, axes in group.uses)
            rows.append((ranks, group.origin, f"{group.backend}{timeout}", uses))
        lines = format_table(rows).split("\n")
        return "\n  ".join([head, *views, *lines])


def report_groups(mesh: MeshGroups) -> GroupsReport:
    """Return every group of the open views that this rank holds, the largest first. Local."""
    mesh.check_open()
    registry, views = mesh.registry, mesh.registry.open_views
    keys_of: dict[dist.ProcessGroup, list[GroupKey]] = {}
    for key in dict.fromkeys(key for view in views.values() for key in view.groups):
        origin, group = registry.find(key)
        held = dist.group.WORLD if origin == "default" else group
        if held is not None and registry.uses(key):
            keys_of.setdefault(held, []).append(key)  # external: of any backend and timeout
    entries = []
    for group, keys in keys_of.items():
        uses = tuple(sorted(use for key in keys for use in registry.uses(key)))
        limit = timeout_of(group)
        seconds = None if limit is None else limit.total_seconds()
        try:
            members = tuple(dist.get_process_group_ranks(group))
            facts = registry.find(keys[0])[0], backend_of(group)
            entries.append(GroupEntry(members, *facts, seconds, uses))
        except (KeyError, ValueError):  # destroyed by the user who created it
            entries.append(GroupEntry((), "gone", "", None, uses))
    names = {view_id: view.layout.sizes_text for view_id, view in views.items()}
    return GroupsReport(mesh.rank, names, tuple(sorted(entries, key=lambda e: -len(e.members))))
