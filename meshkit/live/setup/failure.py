"""Report to the other ranks that this rank's own request is invalid, so that none waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...core.call import Call
from ...core.errors import MeshkitError
from ...launch.agreement.consensus import Proposal
from ...launch.current_job import current_job
from ...launch.launchers.world import World
from ...launch.rendezvous.rendezvous import announce_init_failure
from ...launch.store.deadline import Deadline
from .proposal import CONFLICT

STORE_TIMEOUT = 5.0  # seconds that a rank that fails may take to reach the store


@contextmanager
def announcing_failure(world: World, call: Call) -> Iterator[None]:
    """Report a MeshkitError that leaves the block to the other ranks.

    Args:
        world: this process.
        call: the public call, which the other ranks quote.
    """
    try:
        yield
    except MeshkitError as error:
        announce_failure(world, error.quote(call))
        raise


def announce_failure(world: World, error: MeshkitError) -> None:
    """Report an error of this rank, in the round that the other ranks enter.

    Local. It takes about 10 s at most.

    Args:
        world: this process.
        error: the error, which the caller raises.
    """
    job = current_job()
    proposal = Proposal("build_mesh", {}, CONFLICT)
    if job is None:
        announce_init_failure(proposal, world, Deadline.after(STORE_TIMEOUT), error)
    else:
        job.announce_failure(proposal, error)
