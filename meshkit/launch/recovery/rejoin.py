"""Leave the default group of a job that has lost ranks, and create one of the ranks that live.

The ranks are numbered anew, from 0, as torch requires. They use a new part of the same store, with
leases of their own, so that no key of the broken groups and no lost rank disturbs them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import cast

import torch.distributed as dist

from ..agreement.consensus import commit
from ..agreement.proposal import Participants, Proposal
from ..current_job import Job, Origin, set_current_job
from ..default_group import create_default_group
from ..log import Startup
from ..store import keys
from ..store.deadline import STORE_GRACE, store_call
from ..store.rank_lease import LeaseHolder
from ..torch_internals import clear_dtensor_cache, connects_at_creation
from ..world import World

RECOVERIES = "recoveries"  # the number of recoveries so far, in the counter of a job
FAILURE = "a rank could not create the default process group of the ranks that live."
SOURCE = "mesh.recover()"
# in which the ranks of a job and the newcomers that it admits create their groups
NEWCOMER_LIMIT = timedelta(seconds=30)


def origin_of(job: Job) -> Origin:
    """Return the start of a job: its own, if it has not been recovered."""
    size = job.world.world_size
    return job.origin or Origin(cast(dist.Store, job.store), range(size), size, job.generation)


def leave_default_group() -> None:
    """Destroy the default group and all groups made on it, if it exists. Local."""
    if dist.is_initialized():
        dist.destroy_process_group()
        clear_dtensor_cache()


def rejoin(job: Job, number: int, old_ranks: Sequence[int], limit: timedelta) -> Job:
    """Create the default group of the ranks that live, and make it the current job. Collective.

    On failure no default group is left.

    Args:
        job: the job that has lost ranks; its default group is destroyed.
        number: the number of this recovery, the same on all ranks.
        old_ranks: the rank in that job of each new rank.
        limit: how long the ranks may take to create the group.
    """
    origin = origin_of(job)
    base = dist.PrefixStore(keys.RECOVERED.format(number), origin.store)
    world = _renumber(job.world, old_ranks)
    store_call(world, STORE_GRACE, lambda: _take_lease(base, world.rank))
    store = dist.PrefixStore(keys.GENERATION.format(1), base)
    participants = Participants.of(store, world, Counter({RECOVERIES: number}))
    group_store = dist.PrefixStore("default_group", store)
    connections = commit(
        Proposal("mesh.recover", {}, FAILURE, stage="the end of "),
        participants,
        limit,
        lambda connect: create_default_group(world, group_store, job.default_timeout, connect),
        lambda _: leave_default_group(),
        connects=connects_at_creation(str(world.backend)),
    )
    first = tuple(int(origin.ranks[rank]) for rank in old_ranks)
    new = replace(
        job,
        world=world,
        store=store,
        counter=participants.counter,
        connections=connections,
        startup=Startup(),
        origin=origin._replace(ranks=first),
    )
    set_current_job(new)
    return new


def _renumber(world: World, old_ranks: Sequence[int]) -> World:
    """Return the world of the ranks that live, without facts about nodes that may be wrong now."""
    return replace(
        world,
        rank=list(old_ranks).index(world.rank),
        world_size=len(old_ranks),
        local_world_size=None,
        node_rank=None,
        num_nodes=None,
        sources={**world.sources, "rank": SOURCE, "world_size": SOURCE},
    )


def _take_lease(base: dist.Store, rank: int) -> None:
    """Write the process of this rank, for the errors of others. Cost: one store operation."""
    base.set(keys.LEASE.format(rank), json.dumps(LeaseHolder.current()._asdict()))
