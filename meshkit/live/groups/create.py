"""Create the process groups of a plan: the only place in which meshkit creates groups of a mesh.

The steps of a :class:`GroupPlan` have the same order on every rank. Groups that the registry holds,
and the default group, are used again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch.distributed as dist

from ...core.axes import check_axes_exist, parse_axes
from ...core.errors import MeshkitError, SpecError
from ...core.group_plan import Axes, GroupPlan, missing_group_error
from ...core.sizes import STANDARD_AXES
from ...core.text import Ints
from ...launch.current_job import Job
from ...launch.store.deadline import Time, format_timeout, parse_timeout
from ...launch.torch_internals import (
    COUNTS_OWN_GROUPS,
    KEEPS_ORDER,
    advance_group_counter,
    bound_device,
    can_split,
    connects_at_creation,
    default_timeout,
    takes_part_in_split,
)
from .destroy import destroy_groups
from .mesh_groups import GroupKey, GroupRegistry, Groups

if TYPE_CHECKING:
    from ...core.topology import Topology


class GroupTimeouts(NamedTuple):
    """The timeout of every group.

    Attributes:
        default: for all groups without a timeout of their own; None is the default of the backend.
        by_key: key of the group plan to the timeout of its groups.
    """

    default: timedelta | None
    by_key: Mapping[Axes, timedelta] = {}

    @classmethod
    def of(
        cls,
        plan: GroupPlan,
        timeout: Time | Mapping[str, Time] | None,
        default: timedelta | None = None,
    ) -> GroupTimeouts:
        """Return the timeouts that a caller requests."""
        if timeout is None:
            return cls(default)
        if not isinstance(timeout, Mapping):
            return cls(parse_timeout("timeout", timeout) or default)
        by_key: dict[Axes, timedelta] = {}
        for names, value in timeout.items():
            axes = parse_axes(names)
            check_axes_exist(axes, plan.layout.axes)
            if not plan.has(axes):
                raise missing_group_error(plan, axes)
            limit = parse_timeout("timeout", value)
            if limit is not None:  # several sets of axes with one group: the longest counts
                key = plan.group_key(axes)
                by_key[key] = max(limit, by_key.get(key, limit))
        return cls(default, by_key)

    def __str__(self) -> str:
        by_axes = [
            f"{' '.join(key)} {format_timeout(limit)}" for key, limit in sorted(self.by_key.items())
        ]
        return ", ".join([format_timeout(self.default), *by_axes])


class GroupOptions(NamedTuple):
    """Options for the creation of the groups of one mesh, computed once per mesh.

    Attributes:
        backend: the backend that the caller requests; None is that of the default group.
        timeouts: the timeout of each group.
        world_timeout: the timeout of the default group. It serves a mesh of the whole world only
            if the timeouts are equal. None is the default of the backend.
        crossing: axis to its policy if its groups cross nodes; all other axes may cross.
        place: the topology by which ranks were placed; True if ranks were placed by the hosts of
            their check-ins, False if they were not placed.
    """

    backend: str | None
    timeouts: GroupTimeouts
    world_timeout: timedelta | None = None
    crossing: Mapping[str, str] = {}
    place: Topology | bool = False


def check_orders(plan: GroupPlan) -> None:
    """Raise if torch would sort the members of a group that are not in ascending order."""
    for step in () if KEEPS_ORDER else plan.steps:
        if (step.members[:, 1:] < step.members[:, :-1]).any():
            axes = " ".join(step.axes) or "the whole mesh"
            raise SpecError(
                f"the ranks of group({axes}) are not in ascending order.",
                "torch below 2.12 sorts them, so group ranks would not be coordinates.",
                fix="torch 2.12 or newer; or list axes from the outside in, and ranks ascending.",
            )


class FoundGroups(NamedTuple):
    """The groups of a plan that exist, and requests for those that are missing; equal on all ranks.

    Attributes:
        plan: the plan.
        requests: one request for each set of groups, in the order of creation.
        found: key of the group plan to this rank's group, or None.
        missing: the requests without a group.
        connects: whether the default group serves without all connections that the plan needs.
        every_pair: whether it then connects every pair, as the group of an axis.
    """

    plan: GroupPlan
    requests: list[_GroupRequest]
    found: dict[Axes, dist.ProcessGroup | None]
    missing: list[_GroupRequest]
    connects: bool
    every_pair: bool

    @property
    def is_complete(self) -> bool:
        """Return whether nothing is left to create."""
        return not self.missing and not self.connects


def find_groups(
    plan: GroupPlan, job: Job, options: GroupOptions, registry: GroupRegistry
) -> FoundGroups:
    """Return which groups of a plan exist. Local."""
    backend = options.backend or str(dist.get_backend())
    requests = _list_requests(plan, options, backend)
    found: dict[Axes, dist.ProcessGroup | None] = {}
    missing: list[_GroupRequest] = []
    connects = every_pair = False
    default = dist.get_backend(), options.world_timeout or default_timeout(backend)
    everyone = [[*range(dist.get_world_size())]]
    for request in requests:
        provenance, group = registry.find(request.key)
        if provenance != "default":
            found[request.axes] = group
        elif request.key[1:] == default and request.members.tolist() == everyone:
            found[request.axes] = dist.group.WORLD
            every_pair = len(request.axes) == 1
            connects = not (job.connections.all if every_pair else job.connections.near)
        else:
            missing.append(request)
    return FoundGroups(plan, requests, found, missing, connects, every_pair)


def create_groups(
    groups: FoundGroups, job: Job, options: GroupOptions, connect_timeout: timedelta
) -> Groups:
    """Create the missing groups of a plan. Collective over the default group."""
    if groups.connects:  # first of all: every rank comes here after the agreement
        job.connections.connect(every_pair=groups.every_pair)
    creator = _Creator.read(job.world.rank, options, connect_timeout)
    new = creator.create_all(groups.missing)
    by_key = groups.found | {request.axes: new[request.key] for request in groups.missing}
    key_of = {request.axes: request.key for request in groups.requests}
    # no axis of the mesh may use the last one, only absent axes
    used: dict[GroupKey, tuple[Axes, ...]] = dict.fromkeys(key_of.values(), ())
    for axes, plan_key in groups.plan.keys.items():
        used[key_of[plan_key]] += (axes,)
    return Groups({axes: group for axes, group in by_key.items() if group is not None}, used, new)


def complete_count(groups: FoundGroups, job: Job, options: GroupOptions, before: int) -> None:
    """Advance torch's group counter as a complete creation would, from the count before it. Local.

    Otherwise the next groups would have different names on the rank that failed.
    """
    if dist.is_initialized():
        creator = _Creator.read(job.world.rank, options, job.arrival_timeout)
        creator.complete_count(groups.missing, before)


class _GroupRequest(NamedTuple):
    """All groups over one set of axes.

    Attributes:
        axes: key of the group plan.
        description: the axes as text, for torch.
        members: int64 (num_groups, group_size).
        timeout: how long a collective may take.
        key: the key under which equal groups are shared.
    """

    axes: Axes
    description: str
    members: Ints
    timeout: timedelta
    key: GroupKey


def _list_requests(plan: GroupPlan, options: GroupOptions, backend: str) -> list[_GroupRequest]:
    """Return one request for each set of groups in the plan, in the order of creation.

    The last one may be the group of each rank alone, which every absent standard axis has.
    """
    timeouts, requests = options.timeouts, []
    default = timeouts.default or default_timeout(backend)
    for step in plan.steps:
        axes = plan.keys[step.axes]
        timeout = timeouts.by_key.get(axes, default)
        description = f"meshkit {' '.join(step.axes) or 'mesh'}"
        key = plan.layout.strides(*step.axes), backend, timeout
        requests.append(_GroupRequest(axes, description, step.members, timeout, key))
    if () not in plan.keys.values() and not STANDARD_AXES.issubset(plan.layout.axes):
        timeout, members = timeouts.by_key.get((), default), plan.layout.grid.reshape(-1, 1)
        key = (), backend, timeout
        requests.append(_GroupRequest((), "meshkit rank", members, timeout, key))
    return requests


class _Creator(NamedTuple):
    """One creation of groups: its options, and the facts of the default group, read once.

    Attributes:
        rank: this rank.
        options: the options of the mesh.
        connect_timeout: how long a group may take to connect its members; None if the backend has
            no such timeout.
        is_bound: whether the default group is bound to a device.
        includes_all: whether torch splits each group from the default group, so that every rank
            takes part in each creation.
        can_split: whether one call can split several groups from the default group, as on NCCL.
    """

    rank: int
    options: GroupOptions
    connect_timeout: timedelta | None
    is_bound: bool
    includes_all: bool
    can_split: bool

    @classmethod
    def read(cls, rank: int, options: GroupOptions, connect_timeout: timedelta) -> _Creator:
        """Read the facts of the default group."""
        bound, backend = bound_device(), options.backend or str(dist.get_backend())
        connect = connect_timeout if connects_at_creation(backend) else None
        includes_all = bound is not None and takes_part_in_split(backend)
        splits = includes_all and can_split(backend)
        return cls(rank, options, connect, bound is not None, includes_all, splits)

    def create_all(self, requests: list[_GroupRequest]) -> dict[GroupKey, dist.ProcessGroup | None]:
        """Create the groups of all requests; return this rank's group of each, or None.

        If a creation fails, the groups created before it are destroyed.
        """
        new: dict[GroupKey, dist.ProcessGroup | None] = {}
        created: list[dist.ProcessGroup] = []
        try:
            for request in requests:
                new[request.key] = self._create(request, created)
        except BaseException:
            destroy_groups(created)
            raise
        return new

    def complete_count(self, requests: list[_GroupRequest], before: int) -> None:
        """Let torch count the groups that a failed creation did not reach."""
        self._advance_counter_to(before + sum(map(self._num_names, requests)))

    def _create(
        self, request: _GroupRequest, created: list[dist.ProcessGroup]
    ) -> dist.ProcessGroup | None:
        """Create all groups of a request on every rank; return this rank's group, or None.

        The group is added to ``created`` as soon as it exists.
        """
        way = self._way(request.members)
        if way == "split":
            return self._split(request, created)
        timeout = self.connect_timeout or request.timeout
        backend, description = self.options.backend, request.description
        new = partial(dist.new_group, timeout=timeout, backend=backend, group_desc=description)
        if way == "local":
            created.append(new([self.rank], use_local_synchronization=True))
            if self.rank not in request.members:  # created all the same, for one history of groups
                destroy_groups([created.pop()])
                return None
        else:
            is_own = (request.members == self.rank).any(axis=1)
            index = int(np.argmax(is_own)) if is_own.any() else len(is_own)
            self._pass_over(request.members[:index], new)
            for ranks in request.members[index : index + 1].tolist():
                keep: dict[str, Any] = {"sort_ranks": False} if ranks != sorted(ranks) else {}
                created.append(new(ranks, **keep))
                _check_members(created[-1], ranks)
            self._pass_over(request.members[index + 1 :], new)
            if index == len(is_own):
                return None
        if self.connect_timeout is not None:
            created[-1].set_timeout(request.timeout)
        return created[-1]

    def _way(self, members: Ints) -> Literal["split", "local", "each"]:
        """Return how groups are created: one call splits all, each rank creates its own, or each.

        A split sorts the ranks of each group. A rank creates a group of one rank by itself.
        """
        if self.can_split and (members[:, 1:] > members[:, :-1]).all():
            return "split"
        return "local" if members.shape[1] == 1 and not self.includes_all else "each"

    def _num_names(self, request: _GroupRequest) -> int:
        """Return how many groups torch counts for a request; torch names groups by that count."""
        if self._way(request.members) == "local":
            return int(COUNTS_OWN_GROUPS)
        return len(request.members) if self._way(request.members) == "each" else 0

    def _pass_over(self, others: Ints, new: Callable[[list[int]], object]) -> None:
        """Let torch count groups of other ranks, as it names groups by their number."""
        if not self.is_bound and advance_group_counter(len(others)):
            return
        for ranks in others.tolist():
            new(ranks)

    def _advance_counter_to(self, count: int) -> None:
        """Advance torch's group counter to the value after a complete creation.

        A failed creation stops at a different group on each rank, and later groups would get
        different names. Nothing is done if all ranks take part in each creation.
        """
        missing = max(0, count - dist.get_pg_count())
        if self.is_bound or dist.get_world_size() == 1 or advance_group_counter(missing):
            return
        for _ in range(2 * missing):  # torch may not count the group whose creation has failed
            if dist.get_pg_count() < count:
                dist.new_group([0 if self.rank else 1])  # a group of another rank

    def _split(
        self, request: _GroupRequest, created: list[dist.ProcessGroup]
    ) -> dist.ProcessGroup | None:
        """Split this rank's group from the default group, in one call on every rank.

        The ranks that are in no group form one more group and destroy it at once. A split of a
        part of the ranks can hang when its groups are destroyed.
        """
        parts: list[list[int]] = request.members.tolist()
        outside = sorted(set(range(dist.get_world_size())).difference(*parts))
        group: dist.ProcessGroup = dist.split_group(  # type: ignore[assignment]  # never None here
            split_ranks=[*parts, *([outside] if outside else [])],
            timeout=request.timeout,
            group_desc=request.description,
        )
        if self.rank in outside:
            destroy_groups([group])
            return None
        created.append(group)
        _check_members(group, next(ranks for ranks in parts if self.rank in ranks))
        return group


def _check_members(group: dist.ProcessGroup, ranks: list[int]) -> None:
    """Raise if torch created another group than requested."""
    members = dist.get_process_group_ranks(group)
    if members != ranks or group.rank() != ranks.index(dist.get_rank()):
        raise MeshkitError(
            f"new_group({ranks}) returned a group of {members}.",
            fix="report this with the version of torch.",
        )
