"""The groups that this rank holds, as they are reported."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from ..core.report import GroupsReport, Held
from ..launch.inside import timeout_of
from .shared import GroupKey, Shared


def reported(rank: int, shared: Shared) -> GroupsReport:
    """Every group of the open views that this rank holds, each once, the largest first. Local."""
    asked = dict.fromkeys(alike for user in shared.users.values() for alike in user.groups)
    found: dict[dist.ProcessGroup, list[GroupKey]] = {}
    for alike in asked:  # a group that was lent stands for all of equal members
        origin, group = shared.find(alike)
        mine = dist.group.WORLD if origin == "default" else group
        if mine is not None:
            found.setdefault(mine, []).append(alike)
    held = [_held(shared, group, alikes) for group, alikes in found.items()]
    views = {birth: user.name for birth, user in shared.users.items()}
    return GroupsReport(rank, views, tuple(sorted(held, key=lambda one: -len(one.members))))


def _held(shared: Shared, group: dist.ProcessGroup, alikes: Sequence[GroupKey]) -> Held:
    uses = tuple(sorted(use for alike in alikes for use in shared.uses(alike)))
    limit = timeout_of(group)
    try:
        members, backend = dist.get_process_group_ranks(group), dist.get_backend(group)
    except (KeyError, ValueError):  # destroyed by whoever made it
        return Held((), "gone", "", None, uses)
    seconds = None if limit is None else limit.total_seconds()
    return Held(tuple(members), shared.find(alikes[0])[0], backend, seconds, uses)
