"""Report to the other ranks that this rank's own request is invalid, so that none waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from ...core.call import Call
from ...core.errors import MeshkitError
from ...launch.agreement.consensus import Proposal
from ...launch.current_job import current_job
from ...launch.launchers.world import World
from ...launch.rendezvous.rendezvous import announce_init_failure
from .proposal import CONFLICT

STORE_TIMEOUT = timedelta(seconds=5)  # how long a rank that fails tries to reach the store


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
    if job is None:
        announce_init_failure(Proposal("init", {}, CONFLICT), world, STORE_TIMEOUT, error)
    else:
        job.announce_failure(Proposal("build_mesh", {}, CONFLICT), error)
