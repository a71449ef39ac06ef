"""Build the mesh of a running job on a newcomer, which the job has admitted."""

from __future__ import annotations

from dataclasses import replace

from ...core.errors import SpecError
from ...core.text import format_sizes
from ...launch.agreement.admission import Arrival
from ...launch.current_job import set_current_job
from ...launch.recovery.rejoin import NEWCOMER_LIMIT
from ..group_registry import MeshGroups
from ..setup.proposal import MeshProposal, announcing_failure, open_groups
from .recover import Recovered, propose_again
from .recovery import Recovery


def open_mesh_of_job(proposal: MeshProposal, arrival: Arrival) -> Recovered:
    """Return the proposal and the groups of the mesh that the job builds now. Collective.

    Args:
        proposal: the mesh as it was before the first loss, as this rank requests it.
        arrival: the mesh of the job.
    """
    job = replace(proposal.job, arrival=None)
    set_current_job(job)
    with announcing_failure(job.world, proposal.built_by):
        _check_sizes(proposal, arrival)
    new = propose_again(proposal, job, arrival.regrouped.after)
    limit = min(job.arrival_timeout, NEWCOMER_LIMIT)
    groups = open_groups(new._replace(job=replace(job, arrival_timeout=limit)))
    return new, groups, _recovery(groups, arrival)


def _check_sizes(proposal: MeshProposal, arrival: Arrival) -> None:
    """Raise if the job did not begin with the mesh that this rank requests."""
    full, own = dict(arrival.admission.full_sizes), proposal.plan.layout.sizes
    if full != own:
        raise SpecError(
            f"the job that runs began with another mesh: {format_sizes(full)}.",
            f"This rank was started anew, and requests {format_sizes(own)}.",
            fix="start it with the program and the arguments of the other ranks.",
        )


def _recovery(groups: MeshGroups, arrival: Arrival) -> Recovery:
    admission, regrouped = arrival.admission, arrival.regrouped
    number = admission.num_ranks
    return Recovery.of(groups, admission.full_sizes, regrouped, arrival.sources, number)
