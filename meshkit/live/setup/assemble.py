"""The one way to a live mesh: agree, create what is not there yet, or leave nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from ...core.grid.group_plan import GroupPlan
from ...launch.current_job import Job
from ...launch.torch_internals import connects_at_creation
from ..groups.create import create_groups, destroy_groups
from ..groups.options import GroupOptions
from ..groups.registry import GroupRegistry, Groups
from .adopt import check_same
from .hosts import check_crossing
from .proposal import agree_on_mesh, commit_groups


def assemble(
    plan: GroupPlan, record: Job, terms: GroupOptions, shared: GroupRegistry
) -> tuple[Groups, int]:
    """This rank's groups of a plan, and the number of the meeting. Collective over the world.

    Args:
        plan: what is asked for.
        record: what is known of the default group, with the times of this mesh.
        terms: on what terms groups are made.
        shared: the groups that are there. It is not changed.

    Raises:
        DisagreementError: the same on every rank; nothing is made.
        SpecError: where an axis crosses nodes that must not; the same on every rank.
        RankTimeoutError: where ranks did not come in time; what was made is destroyed.
        RuntimeWarning: on rank 0, where warnings are errors; the others are told.
    """

    def make(connect: timedelta) -> Groups:
        if fatal is not None:
            raise fatal
        groups = create_groups(plan, record.world.rank, replace(terms, connect=connect), shared)
        try:
            check_same(record, number, shared)
        except BaseException:
            destroy_groups(groups.created)
            raise
        return groups

    number = agree_on_mesh(plan, record, terms, shared)
    fatal = check_crossing(plan.layout, record, number, terms)
    groups = commit_groups(
        plan.layout,
        record,
        make,
        lambda made: destroy_groups(made.created),
        waits=connects_at_creation(terms.backend or str(record.world.backend)),
    )
    return groups, number
