"""Which attempt of the job this is, as torchrun's agents begin one after another at one store.

An agent counts only the restarts that failures of its own workers made, so in one attempt the
counts of two agents differ::

    agent a    attempt 0, count 0    its worker dies    attempt 1, count 1
    agent b    attempt 0, count 0    is told by a       attempt 1, count 0
    agent c                          joins              attempt 1, count 0

So an attempt has a number of its own at the store. It is over when one of its agents comes with a
higher count than before; all who wait in it come again then.
"""

from __future__ import annotations

import os
import socket
from pathlib import PurePath

import torch.distributed as dist

from ...core.errors import LaunchError
from ..launchers.world import World
from .rank_lease import end_generation, lease_holders

COUNT = "TORCHELASTIC_RESTART_COUNT"


def store_of_attempt(world: World, store: dist.Store) -> dist.Store:
    """The store under a prefix of this attempt of the job. Local, two store operations.

    torchrun's agent keeps its store over restarts: what ranks left there before must not be met
    again, and a rank of an earlier attempt that still lives must not wait for ranks that have gone.
    Under torchrun a world of another size is another attempt too.

    Args:
        world: who this process is.
        store: as the agent, or rank 0, hosts it.

    Raises:
        LaunchError: where a later attempt has begun at this process' own agent.
    """
    text = os.environ.get(COUNT, "0")
    count = int(text) if text.isdecimal() else 0
    me = f"{count} rank {world.rank} on host {socket.gethostname()}, pid {os.getpid()}"
    number = int(store.compare_set("attempt", "", "0"))
    while True:
        root = dist.PrefixStore(f"attempt/{number}", store)
        base = dist.PrefixStore(str(world.world_size), root) if COUNT in os.environ else root
        newest, _, who = root.compare_set(f"agent/{_agent()}", "", me).decode().partition(" ")
        if int(newest) == count:
            return base
        if int(newest) > count:
            raise _over(world, count, f"Attempt {newest} has begun, with {who}")
        number = int(store.compare_set("attempt", str(number), str(number + 1)))
        if root.add("ended", 1) == 1:
            _end_all(base, world.world_size)


def is_past(base: dist.Store) -> bool:
    """Whether this attempt is over: to be asked once a seat is taken. One store operation."""
    return bool(base.check(["past"]))


def _end_all(base: dist.Store, world_size: int) -> None:
    """Say to all who wait in an attempt that it is over: one store operation a rank, or two.

    Whoever takes a seat after that sees that the attempt is past.
    """
    base.set("past", "")
    seats = lease_holders(dist.PrefixStore("", base), range(world_size))
    for generation in {holder.generation for holder in seats.values()}:
        end_generation(base, generation)


def _agent() -> str:
    """What tells an agent from others: its host, and the folder where its workers leave errors."""
    error = PurePath(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))  # agent/attempt/rank/error.json
    folders = [folder.name for folder in error.parents]
    return "/".join([socket.gethostname(), *folders[2:3]])


def _over(world: World, count: int, begun: str) -> LaunchError:
    return LaunchError(
        f"rank {world.rank} is of attempt {count} of the job, which is over.",
        f"{begun}; this is pid {os.getpid()}.",
        fix=f"end this process (kill {os.getpid()} on host {socket.gethostname()}).",
        variables={COUNT: str(count)},
    )
