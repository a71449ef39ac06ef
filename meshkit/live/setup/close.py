"""Close a mesh: destroy the groups that no open view uses."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial

import torch.distributed as dist

from ...core.errors import RankTimeoutError
from ...launch.agreement.proposal import Proposal
from ...launch.current_job import Job
from ...launch.store.deadline import DeadlineExceededError, run_with_deadline
from ...launch.store.file_store import check_file
from ..groups.destroy import abort_groups, destroy_groups, is_destroyed_collectively
from ..groups.mesh_groups import MeshGroups
from .agree_on_value import agree_in_mesh
from .proposal import describe_coordinate

CONFLICT = "ranks disagree about the end of a mesh."
STATUS = "place/{}"  # rank, in the store of a mesh's guards
POST_TIME = 1.0  # seconds


def close_mesh(mesh: MeshGroups, job: Job, *, failed: bool) -> None:
    """Destroy the created groups of a mesh that no open view uses.

    Local on gloo. Collective over the mesh on NCCL, unless an error has ended the block of the
    mesh: then groups are aborted, as the other ranks may not come.
    """
    if not failed and mesh.plan.layout.num_ranks < job.world.world_size:
        from .post_close import post_close

        post_close(mesh, job)
    together = is_destroyed_collectively(mesh.groups.by_key.values())
    groups = mesh.release()
    try:
        if together and failed:
            abort_groups(groups)
        elif together:
            _agree_to_close(mesh, job)
    except BaseException:
        abort_groups(groups)
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


def guard_store(store: dist.Store, round_id: int) -> dist.Store:
    """Return the part of a job's store for the guards of one mesh."""
    return dist.PrefixStore(f"mesh/{round_id}/guard", store)


def post_end(mesh: MeshGroups, job: Job, call: str) -> None:
    """Post the call by which this rank stops using a mesh. Local.

    Cost: one store operation, which does not wait for an answer.
    """
    store = job.store
    if mesh.is_closed or store is None or mesh.plan.layout.num_ranks == 1:
        return
    status = json.dumps({"rank": mesh.rank, "ended_by": call, "call": 0})
    keys = guard_store(store, mesh.round_id)
    with suppress(RuntimeError, RankTimeoutError, DeadlineExceededError):  # nobody could read it
        check_file(store)
        run_with_deadline(POST_TIME, lambda: keys.set(STATUS.format(mesh.rank), status))
