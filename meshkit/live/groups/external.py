"""Check process groups that the user created against a layout, and between ranks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch.distributed as dist

from ...core.axes import check_axes_exist, parse_axes
from ...core.errors import SpecError
from ...core.layout import Layout
from ...core.ranks import Strides
from ...launch.current_job import Job
from ...launch.store.deadline import store_call
from .device_mesh import check_members

ExternalGroups = Mapping[str | tuple[str, ...], object]


def check_external_groups(
    layout: Layout, rank: int, groups: ExternalGroups
) -> dict[Strides, dist.ProcessGroup | None]:
    """Return the user's groups by their members, after a check of each. Local."""
    by_members: dict[Strides, dist.ProcessGroup | None] = {}
    for names, value in groups.items():
        axes = parse_axes(names)
        check_axes_exist(axes, layout.axes)
        group = _check_group(layout, rank, axes, value) if rank in layout else None
        members = layout.strides(*axes)
        # groups of one rank have no members here; the first one serves all
        if by_members.setdefault(members, group) is not group and members:
            raise SpecError(f"two groups over {describe_axes(axes)}.", fix="pass one of them.")
    return by_members


def _check_group(
    layout: Layout, rank: int, axes: tuple[str, ...], group: object
) -> dist.ProcessGroup:
    members = layout.peers(rank, *axes)
    if not isinstance(group, dist.ProcessGroup):
        raise SpecError(
            f"the value for {describe_axes(axes)} is no process group of rank {rank}.",
            f"It is {group!r}; the layout has {members.tolist()}.",
            fix=f"the group over {members.tolist()}, which dist.new_group created on all ranks.",
        )
    check_members(axes, group, members, fix=f"the group over {members.tolist()}, in this order.")
    return group


def describe_axes(axes: tuple[str, ...]) -> str:
    """Return axes as text."""
    return " ".join(axes) or "the whole mesh"


def check_same_groups(
    job: Job, round_id: int, groups: Mapping[Strides, dist.ProcessGroup | None]
) -> None:
    """Check through the store that the members of each group passed the same one.

    Two groups may have equal members, so torch's names of the groups are compared.

    Cost: one store operation per group.
    """
    if job.store is None:
        return
    store = dist.PrefixStore(f"mesh/{round_id}/external", job.store)
    for strides, group in groups.items():
        if group is None or group.size() == 1:
            continue
        members = dist.get_process_group_ranks(group)
        post = partial(store.compare_set, f"{strides}/{members[0]}", "", group.group_name)
        name = store_call(job.world, job.arrival_timeout.total_seconds(), post).decode()
        if name != group.group_name:
            raise SpecError(
                f"ranks {members} passed different groups of these members.",
                f"Rank {dist.get_rank()} passed {group.group_name!r}, another {name!r}.",
                fix="pass the same group on all of them.",
            )
