"""Close a mesh: post its end for ranks that wait, and destroy the groups that no view uses."""

from __future__ import annotations

from functools import partial

from ...launch.agreement.proposal import Proposal
from ...launch.current_job import Job
from ...launch.torch_internals import abort_all_groups
from ..group_registry import MeshGroups
from ..groups import destroy_groups, is_destroyed_collectively
from ..recovery import release_spares
from .agree_on_value import agree_in_mesh
from .proposal import describe_coordinate

CONFLICT = "ranks disagree about the end of a mesh."


def close_mesh(mesh: MeshGroups, job: Job, *, failed: bool) -> None:
    """Destroy the created groups of a mesh that no open view uses.

    Local on gloo. Collective over the mesh on NCCL, unless an error has ended the block of the
    mesh: then groups are aborted, as the other ranks may not come.
    """
    if not failed and mesh.plan.layout.num_ranks < job.world.world_size:
        release_spares(mesh, job)
    together = is_destroyed_collectively(mesh.groups.by_key.values())
    groups = mesh.release()
    try:
        if together and failed:
            abort_all_groups()
        elif together:
            _agree_to_close(mesh, job)
    except BaseException:
        abort_all_groups()
        raise
    finally:
        destroy_groups(groups)


def _agree_to_close(mesh: MeshGroups, job: Job) -> None:
    """Wait until every rank closes this mesh. Collective over its ranks."""
    layout = mesh.plan.layout
    if layout.num_ranks > 1 and mesh.rank in layout:
        fields = {"mesh": f"{mesh.built_by}, number {mesh.round_id}"}
        describe = partial(describe_coordinate, layout)
        proposal = Proposal("mesh.close", fields, CONFLICT, describe_rank=describe)
        agree_in_mesh(proposal, mesh, job)
