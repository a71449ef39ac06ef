"""The status of a rank that stops using a mesh, for ranks that still wait for it in a guard."""

from __future__ import annotations

import json
from contextlib import suppress

import torch.distributed as dist

from ...core.errors import RankTimeoutError
from ...launch.current_job import Job
from ...launch.store.deadline import DeadlineExceededError, run_with_deadline
from ...launch.store.file_store import check_file
from ..groups.mesh_groups import MeshGroups

STATUS = "place/{}"  # rank, in the store of a mesh's guards
POST_TIME = 1.0  # seconds


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
