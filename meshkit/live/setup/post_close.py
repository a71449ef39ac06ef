"""Tell the ranks outside a mesh that a rank inside has closed it."""

from __future__ import annotations

from contextlib import suppress

from ...launch.current_job import Job
from ...launch.store import keys
from ...launch.store.deadline import DeadlineExceededError, run_with_deadline
from ..groups.mesh_groups import MeshGroups

CLOSE_TIME = 1.0  # seconds in which a rank posts that it has closed the mesh


def post_close(mesh: MeshGroups, job: Job) -> None:
    """Let spares know that this rank needs no recovery any more. Local.

    Cost: one store operation, if ranks of the job are outside the mesh.
    """
    store, layout = job.store, mesh.plan.layout
    is_needed = layout.num_ranks < job.world.world_size and mesh.rank in layout
    if store is None or mesh.is_closed or mesh.view_id or not is_needed:
        return
    key = keys.CLOSED.format(mesh.round_id, mesh.rank)
    with suppress(RuntimeError, DeadlineExceededError):  # spares lose the store, too
        run_with_deadline(CLOSE_TIME, lambda: store.set(key, ""))
