"""Let a rank outside the mesh wait until a rank of the mesh is lost, or the mesh is closed.

Each rank that closes the mesh says so in the store. A rank whose process has ended without that is
lost, also if nobody is left to say so.

Cost: two store operations twice a second, and one more per rank of the mesh every two seconds.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import torch.distributed as dist

from ...launch.current_job import Job
from ...launch.recovery.rejoin import RECOVERIES, origin_of
from ...launch.store import keys
from ...launch.store.deadline import store_call
from ...launch.store.rank_lease import LeaseHolder, read_lease_holders
from ..group_registry import MeshGroups

POLL = 0.25  # seconds between two looks for a loss
LOOKS = 4  # looks for a loss between two looks for ended processes
STORE_TIME = 10.0  # seconds in which the store answers one look


def wait_for_loss(mesh: MeshGroups, job: Job) -> bool:
    """Wait until a rank of the mesh is lost; return False if the mesh was closed instead. Local."""
    store, ranks = cast(dist.Store, job.store), [int(rank) for rank in mesh.plan.layout.grid.flat]
    waiting, call = keys.WAITING.format(mesh.round_id), partial(store_call, job.world, STORE_TIME)
    call(lambda: store.add(waiting, 1))
    holders = store_call(job.world, STORE_TIME, lambda: read_lease_holders(store, ranks))
    for look in itertools.count():
        known = holders if look % LOOKS == 0 else {}
        is_lost = store_call(job.world, STORE_TIME, partial(_look, mesh, job, ranks, known))
        if is_lost is not None:
            break
        time.sleep(POLL)
    call(lambda: store.add(waiting, -1))
    return bool(is_lost)


def _look(
    mesh: MeshGroups, job: Job, ranks: Sequence[int], holders: Mapping[int, LeaseHolder]
) -> bool | None:
    """Return True if a rank is lost, False if all ranks have closed the mesh, None otherwise."""
    store, counter = cast(dist.Store, job.store), cast("dict[str, int]", job.counter)
    recovery = keys.RECOVERY.format(counter[RECOVERIES] + 1)
    if dist.PrefixStore(recovery, origin_of(job).store).check([keys.BEGUN]):
        return True
    closed = {rank: keys.CLOSED.format(mesh.round_id, rank) for rank in ranks}
    if store.check([*closed.values()]):
        return False
    ended = [rank for rank in holders if holders[rank].runs() is False]
    return True if any(not store.check([closed[rank]]) for rank in ended) else None
