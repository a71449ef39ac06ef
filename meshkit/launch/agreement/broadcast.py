"""A message from rank 0 to all other ranks: one key of the store, under a deadline."""

from __future__ import annotations

from collections.abc import Callable

from ...core.errors import RankTimeoutError
from ..store.deadline import STORE_GRACE, Deadline, store_call, store_wait
from ..store.foreign_value import read_value
from .proposal import Participants


def broadcast_from_rank_0(
    participants: Participants,
    key: str,
    compute: Callable[[], str],
    deadline: Deadline,
    *,
    what: str,
    fix: str,
) -> str:
    """Return the message of rank 0, on every rank. Collective.

    Cost: one store operation on rank 0, two on the others.
    """
    store, world = participants.store, participants.world
    if world.rank == 0:
        message = compute()
        store_call(world, STORE_GRACE, lambda: store.set(key, message))
        return message

    def receive() -> str:
        if store_wait(store, [key], deadline):
            return read_value(key, store.get(key), str)
        raise RankTimeoutError(
            f"rank {world.rank} did not receive {what}.",
            f"Rank 0 did not send it within {deadline}.",
            fix=fix,
            missing_ranks=(0,),
        )

    return store_call(world, deadline.left + STORE_GRACE, receive)
