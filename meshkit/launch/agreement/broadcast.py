"""What rank 0 says and all others hear: one key of the store, under a deadline."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from ...core.errors import RankTimeoutError
from ..launchers.world import World
from ..store.client import STORE_GRACE, store_call


def broadcast_from_rank_0(
    store: dist.Store,
    world: World,
    key: str,
    say: Callable[[], str],
    wait: timedelta,
    *,
    what: str,
    fix: str,
) -> str:
    """What rank 0 says, on every rank. Collective; one or two store operations a rank.

    Args:
        store: where the ranks met.
        world: who this process is.
        key: where it stands; one that was never used before.
        say: what rank 0 finds out to say; no other rank calls it.
        wait: how long the others wait for it.
        what: what is to be heard, for the error.
        fix: how to mend it.

    Raises:
        RankTimeoutError: where rank 0 did not say it in time.
    """
    if world.rank == 0:
        words = say()
        store_call(world, STORE_GRACE, lambda: store.set(key, words))
        return words

    def listen() -> str:
        try:
            store.wait([key], wait)
        except dist.DistNetworkError:
            raise
        except RuntimeError as error:  # its deadline; FileStore has no other type for it
            line = f"rank {world.rank} did not hear {what}."
            raise RankTimeoutError(
                line, str(error).partition("\n")[0], fix=fix, missing_ranks=(0,)
            ) from error
        return str(store.get(key).decode())

    return store_call(world, wait.total_seconds() + STORE_GRACE, listen)
