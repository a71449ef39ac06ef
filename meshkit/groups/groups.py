"""Create and destroy the process groups of a plan, and gather over them.

Only this module creates groups of a mesh. The steps of a :class:`GroupPlan` have the same order on
every rank. Groups that the registry holds, and the default group, are used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from ..errors import SpecError
from ..launch.creation import Creation
from ..launch.job import Job, require_job
from ..launch.times import Deadline, Time, format_timeout, parse_timeout
from ..launch.torch_aborts import default_timeout, set_timeout, timeout_of
from ..launch.torch_groups import (
    COUNTS_OWN_GROUPS,
    KEEPS_ORDER,
    SPLITS_KEEP_ORDER,
    advance_group_counter,
    backend_of,
    bound_device,
    can_split,
    connects_at_creation,
    copy_options,
    hidden_device,
    is_nccl,
    takes_part_in_split,
    timeout_of_options,
)
from ..launch.torch_meshes import clear_dtensor_cache
from ..layout.group_plan import Axes, GroupPlan, parse_group
from ..layout.ranks import Strides, message_batches
from ..layout.topology import Topology
from ..text import Ints
from .backends import GroupBackend, backends_by_key
from .registry import GroupKey, GroupRegistry, Groups, MeshGroups

DESCRIPTION = "meshkit"  # begins the description of each group that a mesh creates


class GroupTimeouts(NamedTuple):
    """The timeout of every group."""

    default: timedelta | None  # of all groups without one of their own; None is the backend's
    by_key: Mapping[Axes, timedelta] = {}  # key of the group plan to the timeout of its groups

    @classmethod
    def of(
        cls,
        plan: GroupPlan,
        timeout: Time | Mapping[str, Time] | None,
        default: timedelta | None = None,
    ) -> GroupTimeouts:
        """Return the timeouts that a caller requests."""
        if not isinstance(timeout, Mapping):
            return cls(parse_timeout("timeout", timeout) or default)
        by_key: dict[Axes, timedelta] = {}
        for names, value in timeout.items():
            axes = parse_group(plan, names)
            limit = parse_timeout("timeout", value)
            if limit is not None:  # several sets of axes with one group: the longest counts
                key = plan.group_key(axes)
                by_key[key] = max(limit, by_key.get(key, limit))
        return cls(default, by_key)

    def by_members(self, plan: GroupPlan) -> dict[Strides, timedelta]:
        """Return the timeouts of single groups by the strides of their members."""
        return {plan.layout.strides(key): limit for key, limit in self.by_key.items()}

    def inherit(self, plan: GroupPlan, view: GroupPlan, own: GroupTimeouts) -> GroupTimeouts:
        """Return the timeouts of a view: its own, else those of groups that both plans have."""
        by_members = self.by_members(plan)
        members = {view.group_key(axes): view.layout.strides(axes) for axes in view.axis_sets}
        by_key = {key: by_members[steps] for key, steps in members.items() if steps in by_members}
        return own._replace(by_key={**by_key, **own.by_key})

    def __str__(self) -> str:
        by_axes = [
            f"{' '.join(key)} {format_timeout(self.by_key[key])}" for key in sorted(self.by_key)
        ]
        return ", ".join([format_timeout(self.default), *by_axes])


class GroupOptions(NamedTuple):
    """Options for the creation of the groups of one mesh."""

    backend: str | None  # the requested backend; None is that of the default group
    timeouts: GroupTimeouts
    crossing: Mapping[str, str] = {}  # axis to its policy if its groups cross nodes
    place: Topology | bool = False  # the topology by which ranks are placed; True: by their hosts
    facts: Mapping[str, str] = {}  # what else must be equal on all ranks
    backends: Mapping[Axes, GroupBackend] = {}  # of the groups over single axes


def check_orders(plan: GroupPlan) -> None:
    """Raise if torch would sort the members of a group that are not in ascending order."""
    for step in () if KEEPS_ORDER else plan.steps:
        if (step.members[:, 1:] < step.members[:, :-1]).any():
            raise SpecError(
                f"the ranks of group({' '.join(step.axes)}) are not in ascending order.",
                "torch below 2.12 sorts them, so group ranks would not be coordinates.",
                fix="torch 2.12 or newer; or list axes from the outside in, and ranks ascending.",
            )


class GroupRequest(NamedTuple):
    """All groups over one set of axes."""

    axes: Axes  # key of the group plan
    description: str  # the axes as text, for torch
    members: Ints  # int64 (num_groups, group_size)
    timeout: timedelta | None  # None is the default of its backend, or of each device's
    key: GroupKey  # equal groups are shared under it
    backend: str | None = None  # of these groups alone; None is that of the mesh
    options: object = None  # torch's options of the backend; None are its defaults

    @classmethod
    def of(
        cls,
        axes: Axes,
        name: str,
        members: Ints,
        timeout: timedelta | None,
        steps: Strides,
        own: GroupBackend,
        default: str,
    ) -> GroupRequest:
        """Return the request for groups of a name, with the backend of the mesh as the default."""
        backend = own.name or default
        text = str(own._replace(name=backend))
        key: GroupKey = steps, text, timeout or default_timeout(backend)
        own_name = None if backend == default else backend
        description = f"{DESCRIPTION} {name}"
        return cls(axes, description, members, timeout, key, own_name, own.options)


class FoundGroups(NamedTuple):
    """The groups of a plan that exist, and requests for the missing ones; equal on all ranks."""

    plan: GroupPlan
    requests: list[GroupRequest]  # one for each set of groups, in the order of creation
    found: dict[Axes, dist.ProcessGroup | None]  # key of the group plan to this rank's group
    missing: list[GroupRequest]  # the requests without a group


def find_groups(
    plan: GroupPlan, job: Job, options: GroupOptions, registry: GroupRegistry
) -> FoundGroups:
    """Return which groups of a plan exist. Local."""
    requests = list_requests(plan, options, options.backend or backend_of())
    return match_groups(plan, requests, job, registry)


def match_groups(
    plan: GroupPlan, requests: list[GroupRequest], job: Job, registry: GroupRegistry
) -> FoundGroups:
    """Return which of the requested groups exist. Local."""
    found: dict[Axes, dist.ProcessGroup | None] = {}
    groups = FoundGroups(plan, requests, found, [])
    backend = backend_of()
    default = backend, job.default_timeout or default_timeout(backend)
    everyone = None if registry.is_private else [[*range(dist.get_world_size())]]
    for request in groups.requests:
        origin, group = registry.find(request.key)
        if origin in ("created", "external"):
            found[request.axes] = group
        elif request.key[1:] == default and request.members.tolist() == everyone:
            found[request.axes] = dist.group.WORLD
        elif request.key not in [other.key for other in groups.missing]:  # several axes of one rank
            groups.missing.append(request)
    return groups


def list_requests(plan: GroupPlan, options: GroupOptions, backend: str) -> list[GroupRequest]:
    """Return one request for each set of groups in the plan, in the order of creation."""
    backends = backends_by_key(plan, options.backends)
    whole = {plan.layout.axes: "mesh", (): "rank"}
    requests = []

    def request(axes: Axes, key: Axes, members: Ints) -> None:
        name, own = whole.get(axes, " ".join(axes)), backends.get(key, GroupBackend(None))
        limit = options.timeouts.by_key.get(plan.group_key(axes)) or timeout_of_options(own.options)
        requests.append(
            GroupRequest.of(
                *(key, name, members, limit or options.timeouts.default),
                *(plan.layout.strides(axes), own, backend),
            )
        )

    for step in plan.steps:
        request(step.axes, plan.keys[step.axes], step.members)
    for axes in backends:  # axes of size 1 with a backend of their own
        if not plan.group_key(axes):
            request(axes, axes, plan.layout.groups(axes))
    return requests


def create_groups(
    groups: FoundGroups, job: Job, options: GroupOptions, creation: Creation
) -> Groups:
    """Create the missing groups of a plan. Collective over the default group."""
    new = create_requested(groups.missing, job, options, creation)
    wanted = [request for request in groups.requests if request.axes not in groups.found]
    by_key = groups.found | {request.axes: new[request.key] for request in wanted}
    key_of = {request.axes: request.key for request in groups.requests}
    # the group of one rank is used only by axes that the mesh does not have
    used: dict[GroupKey, tuple[Axes, ...]] = dict.fromkeys(key_of.values(), ())
    for axes, plan_key in groups.plan.keys.items():
        used[key_of[axes if axes in key_of else plan_key]] += (axes,)
    return Groups({axes: group for axes, group in by_key.items() if group is not None}, used, new)


def create_requested(
    requests: list[GroupRequest], job: Job, options: GroupOptions, creation: Creation
) -> dict[GroupKey, dist.ProcessGroup | None]:
    """Create the groups of all requests, or none; return this rank's group of each. Collective."""
    new: dict[GroupKey, dist.ProcessGroup | None] = {}
    try:
        for backend, some in groupby(requests, key=lambda request: request.backend):
            own = options if backend is None else options._replace(backend=backend)
            job.let_guards_report(own.backend or backend_of())
            new |= _Creator.read(job, own, creation).create_all([*some])
    except BaseException:
        destroy_groups(group for group in new.values() if group is not None)
        raise
    return new


def complete_count(groups: FoundGroups, job: Job, options: GroupOptions, before: int) -> None:
    """Advance torch's counter as a complete creation would: later groups get equal names. Local.

    ``before``: the count before the creation. One that was given up may still go on in its thread.
    """
    if not dist.is_initialized():
        return
    creator = _Creator.read(job, options, Creation(Deadline.after(0)))
    count = before
    for request in groups.missing:
        own = options._replace(backend=request.backend or options.backend)
        count += _Creator.read(job, own, creator.creation).num_names(request)
    missing = max(0, count - dist.get_pg_count())
    if creator.is_bound or dist.get_world_size() == 1 or advance_group_counter(missing):
        return  # all ranks take part in each creation
    for _ in range(2 * missing):  # torch may not count the group whose creation has failed
        if dist.get_pg_count() < count:
            dist.new_group([0 if job.world.rank else 1])  # a group of another rank


class _Creator(NamedTuple):
    """One creation of groups: its options, and the facts of the default group, read once."""

    rank: int
    backend: str | None  # the requested one
    creation: Creation  # may be given up
    attempt: timedelta | None  # of gloo to connect, if the store of the groups cannot be asked
    # whether the default group is bound to a device. torch then splits each group from it, so that
    # every rank takes part in each creation
    is_bound: bool
    includes_all: bool  # whether that holds for the backend of these groups
    can_split: bool  # whether one call can split several groups from it, as on NCCL

    @classmethod
    def read(cls, job: Job, options: GroupOptions, creation: Creation) -> _Creator:
        """Read the facts of the default group."""
        is_bound, backend = bound_device() is not None, options.backend or backend_of()
        connects = job.group_store is None and connects_at_creation(backend)
        attempt = creation.attempt if connects else None
        includes_all = is_bound and takes_part_in_split(backend)
        splits = includes_all and can_split(backend)
        rank = job.world.rank
        return cls(rank, options.backend, creation, attempt, is_bound, includes_all, splits)

    def create_all(self, requests: list[GroupRequest]) -> dict[GroupKey, dist.ProcessGroup | None]:
        """Create the groups of all requests, or none; return this rank's group of each, or None."""
        new: dict[GroupKey, dist.ProcessGroup | None] = {}
        created: list[dist.ProcessGroup] = []
        create = {"split": self._split, "local": self._create_alone, "each": self._create_each}
        try:
            for request in requests:
                way = self._way(request.members)
                group = create[way](request, created)
                if group is not None and self.attempt is not None:
                    set_timeout(group, request.timeout)  # it has connected
                new[request.key] = group
                # torch splits a bound default group on all ranks outside a new group together, so
                # every rank must be inside one (pytorch#145376). It stays: gloo ranks may connect
                splits = way == "each" and self.is_bound and not self.includes_all
                if splits and (outside := _ranks_outside(request.members)):
                    key = (*request.key[0], (0, 0)), *request.key[1:]
                    group = self._new_group(request, outside)
                    created += [group] if self.rank in outside else []
                    new[key] = group if self.rank in outside else None
        except BaseException:
            destroy_groups(created)
            raise
        return new

    def num_names(self, request: GroupRequest) -> int:
        """Return how many groups torch counts for a request; torch names groups by that count."""
        ways = {"split": 0, "local": int(COUNTS_OWN_GROUPS), "each": len(request.members)}
        return ways[self._way(request.members)]

    def _way(self, members: Ints) -> Literal["split", "local", "each"]:
        """Return how groups are created: all in one call, by each rank alone, or one by one."""
        if members.shape[1] == 1:
            return "local"
        ascends = (members[:, 1:] > members[:, :-1]).all()
        return "split" if self.can_split and (ascends or SPLITS_KEEP_ORDER) else "each"

    def _new_group(
        self, request: GroupRequest, ranks: list[int], **more: object
    ) -> dist.ProcessGroup:
        if ranks != sorted(ranks):
            more["sort_ranks"] = False
        self.creation.check()
        timeout = self.attempt or request.timeout
        options: Any = {"backend": self.backend, "timeout": timeout, **more}
        options["pg_options"] = copy_options(request.options, timeout or request.key[2])
        group: dist.ProcessGroup = dist.new_group(ranks, group_desc=request.description, **options)
        return group

    def _create_alone(
        self, request: GroupRequest, created: list[dist.ProcessGroup]
    ) -> dist.ProcessGroup | None:
        """Create the group of this rank alone, without a communicator before its first collective.

        Beside a bound default group torch would connect it at once, on all ranks together.
        """
        with hidden_device():
            created.append(self._new_group(request, [self.rank], use_local_synchronization=True))
        if self.rank in request.members:
            return created[-1]
        destroy_groups([created.pop()])  # created all the same, for one history of groups
        return None

    def _create_each(
        self, request: GroupRequest, created: list[dist.ProcessGroup]
    ) -> dist.ProcessGroup | None:
        """Create the groups of a request one by one, on every rank."""
        members = request.members
        own = [*np.flatnonzero((members == self.rank).any(axis=1)), len(members)][0]
        self._pass_over(request, members[:own])
        for ranks in members[own : own + 1].tolist():
            created.append(self._new_group(request, ranks))
        self.creation.check()
        self._pass_over(request, members[own + 1 :])
        return None if own == len(members) else created[-1]

    def _pass_over(self, request: GroupRequest, others: Ints) -> None:
        """Let torch count groups of other ranks, as it names groups by their number."""
        if not self.is_bound and advance_group_counter(len(others)):
            return
        for ranks in others.tolist():
            self._new_group(request, ranks)

    def _split(
        self, request: GroupRequest, created: list[dist.ProcessGroup]
    ) -> dist.ProcessGroup | None:
        """Split this rank's group from the default group, in one call on every rank.

        A split of a part of the ranks can hang when its groups are destroyed, so the ranks in no
        group form one more, and destroy it at once.
        """
        outside = _ranks_outside(request.members)
        group: dist.ProcessGroup = dist.split_group(  # type: ignore[assignment]  # never None here
            split_ranks=[*request.members.tolist(), *([outside] if outside else [])],
            timeout=request.timeout or default_timeout("nccl"),
            pg_options=copy_options(request.options, request.timeout or request.key[2]),
            group_desc=request.description,
        )
        if self.rank in outside:
            destroy_groups([group])
            return None
        created.append(group)
        return group


def _ranks_outside(members: Ints) -> list[int]:
    """Return the ranks of the world that are in none of these groups, ascending."""
    return sorted({*range(dist.get_world_size())}.difference(members.ravel().tolist()))


def is_destroyed_collectively(groups: Iterable[dist.ProcessGroup]) -> bool:
    """Return whether all ranks of these groups must destroy them together, as with NCCL."""
    return any(map(is_nccl, groups))


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


def batch_messages(
    sends: Sequence[tuple[torch.Tensor, int]], receives: Sequence[tuple[torch.Tensor, int]]
) -> list[list[dist.P2POp]]:
    """Return sends and receives, each of a tensor and a global rank, in batches of at most 128.

    Local. Every rank starts its batches in this order, by ``batch_isend_irecv``. NCCL runs the
    messages of a pair in their order, so a send and a receive outside one batch block each other.
    """
    peers = [peer for _, peer in sends], [peer for _, peer in receives]
    return [
        [
            *(dist.P2POp(dist.isend, *sends[index]) for index in sent),
            *(dist.P2POp(dist.irecv, *receives[index]) for index in received),
        ]
        for sent, received in message_batches(dist.get_rank(), dist.get_world_size(), *peers)
    ]


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
    """Check by torch's names of the groups that all members of each passed the same one."""
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


def message_timeout(mesh: MeshGroups) -> timedelta:
    """Return how long a message may take: the least timeout of the mesh, also inside a guard."""
    limits = [limit for group in mesh.groups.by_key.values() if (limit := timeout_of(group))]
    job = require_job()
    return min(limits, default=job.default_timeout or default_timeout(str(job.world.backend)))
