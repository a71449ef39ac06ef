"""Tell spares, which wait for a loss, that a rank of the mesh has closed it."""

from __future__ import annotations

from contextlib import suppress

from ...launch.current_job import Job
from ...launch.store import keys
from ...launch.store.client import hosted_by_rank_0
from ...launch.store.deadline import Deadline, DeadlineExceededError, run_with_deadline
from ..groups.mesh_groups import MeshGroups

POST_TIME = 1.0  # seconds in which a rank posts that it has closed the mesh
SPARE_TIME = 5.0  # seconds that rank 0, which may host the store, stays for spares


def post_close(mesh: MeshGroups, job: Job) -> None:
    """Let spares know that this rank needs no recovery any more. Local.

    Rank 0, which may host the store, stays up to 5 s for spares that wait in a recovery.

    Cost: one store operation.
    """
    store, is_inside = job.store, mesh.rank in mesh.plan.layout
    if store is None or mesh.is_closed or mesh.view_id or not is_inside:
        return
    stays = job.world.rank == 0 and hosted_by_rank_0(job.world)
    deadline = Deadline.after(SPARE_TIME if stays else 0)
    waiting = keys.WAITING.format(mesh.round_id)

    def post() -> None:
        store.set(keys.CLOSED.format(mesh.round_id, mesh.rank), "")
        while stays and store.add(waiting, 0) > 0 and deadline.sleep(0.05):
            pass

    with suppress(RuntimeError, DeadlineExceededError):  # spares lose the store, too
        run_with_deadline(POST_TIME + deadline.left, post)
