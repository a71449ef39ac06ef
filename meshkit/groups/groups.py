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
from ..launch.times import Deadline
from ..launch.torch_aborts import default_timeout, set_timeout, timeout_of
from ..launch.torch_groups import (
    COUNTS_OWN_GROUPS,
    SPLITS_KEEP_ORDER,
    advance_group_counter,
    backend_of,
    bound_device,
    can_split,
    connects_at_creation,
    copy_options,
    free_names,
    hidden_device,
    is_nccl,
    takes_part_in_split,
)
from ..launch.torch_meshes import clear_dtensor_cache
from ..layout.group_plan import Axes
from ..layout.ranks import Strides, message_batches
from ..text import Ints
from .registry import GroupKey, Groups, MeshGroups
from .requests import FoundGroups, GroupOptions, GroupRequest


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
    job.counts.made.update(group for group in new.values() if group is not None)
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
        with hidden_device(), free_names():
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
