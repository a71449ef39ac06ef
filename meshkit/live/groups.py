"""Create and destroy the process groups of a plan, and gather over them.

Only this module creates groups of a mesh. The steps of a :class:`GroupPlan` have the same order on
every rank. Groups that the registry holds, and the default group, are used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from ..core.axes import check_axes_exist, parse_axes
from ..core.errors import SpecError
from ..core.group_plan import Axes, GroupPlan, missing_group_error
from ..core.ranks import Strides
from ..core.sizes import STANDARD_AXES
from ..core.text import Ints
from ..core.topology import Topology
from ..launch.job import Job
from ..launch.log import log_line
from ..launch.times import Time, format_timeout, parse_timeout
from ..launch.torch_internals import (
    COUNTS_OWN_GROUPS,
    KEEPS_ORDER,
    advance_group_counter,
    bound_device,
    can_split,
    clear_dtensor_cache,
    connects_at_creation,
    default_timeout,
    takes_part_in_split,
    timeout_of,
)
from .group_registry import GroupKey, GroupRegistry, Groups

DESCRIPTION = "meshkit"  # begins the description of each group that a mesh creates


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


class GroupRequest(NamedTuple):
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
    requests: list[GroupRequest]
    found: dict[Axes, dist.ProcessGroup | None]
    missing: list[GroupRequest]
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
    requests = list_requests(plan, options, backend)
    found: dict[Axes, dist.ProcessGroup | None] = {}
    missing: list[GroupRequest] = []
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


def list_requests(plan: GroupPlan, options: GroupOptions, backend: str) -> list[GroupRequest]:
    """Return one request for each set of groups in the plan, in the order of creation.

    The last one may be the group of each rank alone, which every absent standard axis has.
    """
    timeouts, requests = options.timeouts, []
    default = timeouts.default or default_timeout(backend)
    for step in plan.steps:
        axes = plan.keys[step.axes]
        timeout = timeouts.by_key.get(axes, default)
        description = f"{DESCRIPTION} {' '.join(step.axes) or 'mesh'}"
        key = plan.layout.strides(*step.axes), backend, timeout
        requests.append(GroupRequest(axes, description, step.members, timeout, key))
    if () not in plan.keys.values() and not STANDARD_AXES.issubset(plan.layout.axes):
        timeout, members = timeouts.by_key.get((), default), plan.layout.grid.reshape(-1, 1)
        key = (), backend, timeout
        requests.append(GroupRequest((), f"{DESCRIPTION} rank", members, timeout, key))
    return requests


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
    # the group of one rank is used only by axes that the mesh does not have
    used: dict[GroupKey, tuple[Axes, ...]] = dict.fromkeys(key_of.values(), ())
    for axes, plan_key in groups.plan.keys.items():
        used[key_of[plan_key]] += (axes,)
    return Groups({axes: group for axes, group in by_key.items() if group is not None}, used, new)


def complete_count(groups: FoundGroups, job: Job, options: GroupOptions, before: int) -> None:
    """Advance torch's group counter as a complete creation would, from the count before it. Local.

    A failed creation stops at a different group on each rank. Later groups would get different
    names there.
    """
    if not dist.is_initialized():
        return
    creator = _Creator.read(job.world.rank, options, job.arrival_timeout)
    count = before + sum(map(creator.num_names, groups.missing))
    missing = max(0, count - dist.get_pg_count())
    if creator.is_bound or dist.get_world_size() == 1 or advance_group_counter(missing):
        return  # all ranks take part in each creation
    for _ in range(2 * missing):  # torch may not count the group whose creation has failed
        if dist.get_pg_count() < count:
            dist.new_group([0 if job.world.rank else 1])  # a group of another rank


def log_send_time(plan: GroupPlan, groups: Groups, backend: str, connect: timedelta) -> None:
    """Log how long a send waits along a pipeline, if that is less than the group's timeout.

    gloo keeps the timeout under which a group connected, and sends and receives wait that long.
    ``wait`` of one send or receive takes a time of its own.
    """
    group = groups.by_key.get(plan.group_key(("pp",)))
    if group not in groups.created or group.size() == 1 or not connects_at_creation(backend):
        return
    timeout = timeout_of(group)
    if timeout is not None and timeout > connect:
        log_line(
            "send and recv along pp wait %s, a fifth of arrival_timeout, not %s; "
            "irecv(...).wait(timedelta(...)) waits longer",
            *(format_timeout(connect), format_timeout(timeout)),
        )


class _Creator(NamedTuple):
    """One creation of groups: its options, and the facts of the default group, read once.

    Attributes:
        rank: this rank.
        options: the options of the mesh.
        connect_timeout: how long a group may take to connect its members; None if the backend has
            no such timeout.
        is_bound: whether the default group is bound to a device. torch then splits each group from
            it, so that every rank takes part in each creation.
        includes_all: whether that holds for the backend of these groups.
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

    def create_all(self, requests: list[GroupRequest]) -> dict[GroupKey, dist.ProcessGroup | None]:
        """Create the groups of all requests; return this rank's group of each, or None.

        If a creation fails, the groups created before it are destroyed.
        """
        new: dict[GroupKey, dist.ProcessGroup | None] = {}
        created: list[dist.ProcessGroup] = []
        create = {"split": self._split, "local": self._create_alone, "each": self._create_each}
        try:
            for request in requests:
                way = self._way(request.members)
                new[request.key] = create[way](request, created)
                outside = self._ranks_outside(request) if way == "each" else []
                if outside:
                    key = (*request.key[0], (0, 0)), *request.key[1:]
                    group = self._new_group(request, outside)
                    created += [group] if self.rank in outside else []
                    new[key] = group if self.rank in outside else None
        except BaseException:
            destroy_groups(created)
            raise
        return new

    def _ranks_outside(self, request: GroupRequest) -> list[int]:
        """Return the ranks that form one more group, as they are in none of a request.

        torch splits a bound default group on each rank outside a new group, on all of them
        together, so every rank must be inside one (pytorch#145376). That group is not destroyed
        before the mesh, since gloo ranks may still connect.
        """
        if not self.is_bound or self.includes_all:
            return []
        return sorted({*range(dist.get_world_size())}.difference(request.members.ravel().tolist()))

    def num_names(self, request: GroupRequest) -> int:
        """Return how many groups torch counts for a request; torch names groups by that count."""
        ways = {"split": 0, "local": int(COUNTS_OWN_GROUPS), "each": len(request.members)}
        return ways[self._way(request.members)]

    def _way(self, members: Ints) -> Literal["split", "local", "each"]:
        """Return how groups are created: one call splits all, each rank creates its own, or each.

        A split sorts the ranks of each group. A rank creates a group of one rank by itself.
        """
        if self.can_split and (members[:, 1:] > members[:, :-1]).all():
            return "split"
        return "local" if members.shape[1] == 1 and not self.includes_all else "each"

    def _new_group(
        self, request: GroupRequest, ranks: list[int], **more: object
    ) -> dist.ProcessGroup:
        if ranks != sorted(ranks):
            more["sort_ranks"] = False
        timeout = self.connect_timeout or request.timeout
        options: dict[str, Any] = {"backend": self.options.backend, "timeout": timeout, **more}
        group: dist.ProcessGroup = dist.new_group(ranks, group_desc=request.description, **options)
        return group

    def _create_alone(
        self, request: GroupRequest, created: list[dist.ProcessGroup]
    ) -> dist.ProcessGroup | None:
        """Create the group of this rank alone."""
        created.append(self._new_group(request, [self.rank], use_local_synchronization=True))
        if self.rank not in request.members:  # created all the same, for one history of groups
            destroy_groups([created.pop()])
            return None
        return self._set_timeout(request, created[-1])

    def _create_each(
        self, request: GroupRequest, created: list[dist.ProcessGroup]
    ) -> dist.ProcessGroup | None:
        """Create the groups of a request one by one, on every rank."""
        is_own = (request.members == self.rank).any(axis=1)
        index = int(np.argmax(is_own)) if is_own.any() else len(is_own)
        pass_over = partial(self._new_group, request)
        self._pass_over(request.members[:index], pass_over)
        for ranks in request.members[index : index + 1].tolist():
            created.append(self._new_group(request, ranks))
        self._pass_over(request.members[index + 1 :], pass_over)
        return None if index == len(is_own) else self._set_timeout(request, created[-1])

    def _set_timeout(self, request: GroupRequest, group: dist.ProcessGroup) -> dist.ProcessGroup:
        """Give a group, which has connected, the timeout of its collectives."""
        if self.connect_timeout is not None:
            group.set_timeout(request.timeout)
        return group

    def _pass_over(self, others: Ints, new: Callable[[list[int]], object]) -> None:
        """Let torch count groups of other ranks, as it names groups by their number."""
        if not self.is_bound and advance_group_counter(len(others)):
            return
        for ranks in others.tolist():
            new(ranks)

    def _split(
        self, request: GroupRequest, created: list[dist.ProcessGroup]
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
        return group


def is_destroyed_collectively(groups: Iterable[dist.ProcessGroup]) -> bool:
    """Return whether all ranks of these groups must destroy them together, as with NCCL."""
    return any("nccl" in group.name() for group in groups)


def destroy_groups(groups: Iterable[dist.ProcessGroup]) -> None:
    """Destroy groups and release their descriptors and threads. Local on gloo.

    Groups that are destroyed already, with the default group or by the user, are skipped.
    """
    destroyed = [*groups]
    for group in destroyed:
        # ValueError: "Invalid process group specified" for a group that is destroyed already
        with suppress(ValueError, AssertionError):
            dist.destroy_process_group(group)
    if destroyed:
        clear_dtensor_cache()


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> list[torch.Tensor]:
    """Return the tensor of every rank of a group, in group order. Collective over the group."""
    tensor = tensor.contiguous()
    tensors = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(tensors, tensor, group=group)
    return tensors


def gather_bytes(
    content: bytes, size: int, group: dist.ProcessGroup, device: torch.device
) -> list[bytes]:
    """Return the bytes of every rank of a group, each padded to one size. Collective."""
    padded = bytearray(content.ljust(size, b"\0"))
    rows = all_gather(torch.frombuffer(padded, dtype=torch.uint8).to(device), group)
    return [row.cpu().numpy().tobytes() for row in rows]


def check_same_groups(
    job: Job, round_id: int, groups: Mapping[Strides, dist.ProcessGroup | None]
) -> None:
    """Check through the store that the members of each group passed the same one.

    Two groups may have equal members, so torch's names of the groups are compared.

    Cost: one store operation per group.
    """
    if job.store is None:
        return
    store = job.store.part(f"mesh/{round_id}/external")
    for strides, group in groups.items():
        if group is None or group.size() == 1:
            continue
        members = dist.get_process_group_ranks(group)
        post = partial(store.claim, f"{strides}/{members[0]}", group.group_name)
        name = store.within(job.arrival_timeout.total_seconds(), post).decode()
        if name != group.group_name:
            raise SpecError(
                f"ranks {members} passed different groups of these members.",
                f"Rank {dist.get_rank()} passed {group.group_name!r}, another {name!r}.",
                fix="pass the same group on all of them.",
            )
