"""Open a mesh from a proposal: agree, create the missing groups on all ranks, or on none."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import torch.distributed as dist

from ...core.errors import MeshkitError
from ...launch.torch_internals import connects_at_creation
from ..groups.create import create_groups
from ..groups.destroy import destroy_groups
from ..groups.mesh_groups import MeshGroups
from ..groups.registry import Groups
from .proposal import MeshProposal


def open_groups(proposal: MeshProposal) -> MeshGroups:
    """Agree on a mesh and create its groups. Collective over the world."""
    job = proposal.job
    round_id = job.agree(proposal.before_creation())
    warning = None
    if proposal.options.crossing:
        from .hosts import check_crossing

        warning = check_crossing(proposal, round_id)
    groups = job.commit(
        proposal.after_creation(),
        partial(_create, proposal, round_id, warning),
        lambda groups: destroy_groups(groups.created),
        connects=connects_at_creation(proposal.options.backend or str(job.world.backend)),
    )
    identity = job.world.rank, groups, proposal.registry, round_id
    return MeshGroups(proposal.plan, *identity, proposal.built_by, proposal.extended_by)


def _create(
    proposal: MeshProposal,
    round_id: int,
    warning: RuntimeWarning | None,
    connect_timeout: timedelta,
) -> Groups:
    """Create the missing groups on this rank, and check the external ones.

    An error quotes the call, for the ranks to which it is reported.
    """
    job, registry = proposal.job, proposal.registry
    created: tuple[dist.ProcessGroup, ...] = ()
    try:
        groups = create_groups(proposal.plan, job, proposal.options, registry, connect_timeout)
        created = groups.created
        if warning is not None:
            raise warning
        if registry.external_groups:
            from .external import check_same_groups

            check_same_groups(job, round_id, registry.external_groups)
    except BaseException as error:
        destroy_groups(created)
        if isinstance(error, MeshkitError):
            error.quote(proposal.built_by)
        raise
    return groups
