"""Close a mesh: post its end for ranks that wait, and destroy the groups that no view uses."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial

import torch.distributed as dist

from ...core.errors import RankTimeoutError
from ...launch.agreement.proposal import Proposal
from ...launch.current_job import Job
from ...launch.store.client import hosted_by_rank_0
from ...launch.store.deadline import Deadline, DeadlineExceededError, run_with_deadline
from ...launch.store.file_store import check_file
from ...launch.store.keys import CLOSED, WAITING
from ...launch.torch_internals import abort_all_groups
from ..groups import destroy_groups, is_destroyed_collectively
from ..group_registry import MeshGroups
from .agree_on_value import agree_in_mesh
from .proposal import describe_coordinate

CONFLICT = "ranks disagree about the end of a mesh."
STATUS = "place/{}"  # rank, in the store of a mesh's guards
POST_TIME = 1.0  # seconds in which a rank posts the end of a mesh
SPARE_TIME = 5.0  # seconds that rank 0, which may host the store, stays for spares


def close_mesh(mesh: MeshGroups, job: Job, *, failed: bool) -> None:
    """Destroy the created groups of a mesh that no open view uses.

    Local on gloo. Collective over the mesh on NCCL, unless an error has ended the block of the
    mesh: then groups are aborted, as the other ranks may not come.
    """
    if not failed and mesh.plan.layout.num_ranks < job.world.world_size:
        _release_spares(mesh, job)
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


def _release_spares(mesh: MeshGroups, job: Job) -> None:
    """Let spares know that this rank needs no recovery any more. Local.

    Rank 0, which may host the store, stays up to 5 s for spares that wait in a recovery.

    Cost: one store operation.
    """
    store, is_inside = job.store, mesh.rank in mesh.plan.layout
    if store is None or mesh.is_closed or mesh.view_id or not is_inside:
        return
    stays = job.world.rank == 0 and hosted_by_rank_0(job.world)
    deadline = Deadline.after(SPARE_TIME if stays else 0)

    def post() -> None:
        store.set(CLOSED.format(mesh.round_id, mesh.rank), "")
        waiting = WAITING.format(mesh.round_id)
        while stays and store.add(waiting, 0) > 0 and deadline.sleep(0.05):
            pass

    with suppress(RuntimeError, DeadlineExceededError):  # spares lose the store, too
        run_with_deadline(POST_TIME + deadline.left, post)


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
