"""The number of a torchrun job's attempt, when several agents share one store.

An agent counts only the restarts that failures of its own workers caused, so the counts of two
agents differ within one attempt::

    agent a    attempt 0, count 0    its worker dies    attempt 1, count 1
    agent b    attempt 0, count 0    restarts with a    attempt 1, count 0
    agent c                          joins              attempt 1, count 0

So the store numbers the attempts. An attempt ends when an agent reconnects with a higher count.
Ranks that wait in it then retry.
"""

from __future__ import annotations

import os
from pathlib import PurePath

import torch.distributed as dist

from ...core.errors import LaunchError
from ..world import World
from . import keys
from .check_in import ProcessIdentity
from .foreign_value import read_number, read_value
from .rank_lease import end_generation, read_lease_holders

COUNT = "TORCHELASTIC_RESTART_COUNT"


def store_of_attempt(world: World, store: dist.Store) -> dist.Store:
    """Return the part of the store that belongs to this attempt of the job. Local.

    torchrun's agent keeps its store over restarts. The keys of an earlier attempt must not be used
    again, and a rank of an earlier attempt that still lives must not wait for exited ranks. Under
    torchrun a world of another size is another attempt too.

    Cost: two store operations under torchrun; else one on rank 0, for a second rank 0 to see.
    """
    if COUNT not in os.environ:
        if world.rank == 0:
            store.compare_set(keys.ATTEMPT, "", "0")
        return dist.PrefixStore(keys.ATTEMPT_PART.format(0), store)
    text = os.environ[COUNT]
    count = int(text) if text.isdecimal() else 0
    own = f"{count} rank {world.rank} on {ProcessIdentity.current()}"
    number = read_number(keys.ATTEMPT, store.compare_set(keys.ATTEMPT, "", "0"))
    while True:
        root = dist.PrefixStore(keys.ATTEMPT_PART.format(number), store)
        base = dist.PrefixStore(str(world.world_size), root)
        key = keys.AGENT.format(_agent())
        agent = read_value(key, root.compare_set(key, "", own), str)
        first, _, process = agent.partition(" ")
        newest = read_number(key, first)
        if newest == count:
            return base
        if newest > count:
            raise _over_error(world, count, f"Attempt {newest} has begun, with {process}")
        newer = store.compare_set(keys.ATTEMPT, str(number), str(number + 1))
        number = read_number(keys.ATTEMPT, newer)
        if root.add(keys.ENDED, 1) == 1:
            _end_attempt(base, world.world_size)


def _end_attempt(base: dist.Store, world_size: int) -> None:
    """Report to all ranks that wait in an attempt that it is over.

    A process that takes a rank after that sees the mark. Cost: one or two store operations per
    rank.
    """
    base.set(keys.PAST, "")
    holders = read_lease_holders(dist.PrefixStore("", base), range(world_size))
    for generation in {holder.generation for holder in holders.values()}:
        end_generation(base, generation)


def _agent() -> str:
    """Return the name of this process' agent: its host, and its folder for worker errors."""
    error = PurePath(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))  # agent/attempt/rank/error.json
    folders = [folder.name for folder in error.parents]
    return "/".join([ProcessIdentity.current().host, *folders[2:3]])


def _over_error(world: World, count: int, evidence: str) -> LaunchError:
    process = ProcessIdentity.current()
    return LaunchError(
        f"rank {world.rank} is of attempt {count} of the job, which is over.",
        f"{evidence}; this is pid {process.pid}.",
        fix=f"end this process (kill {process.pid} on host {process.host}).",
        variables={COUNT: str(count)},
    )
