"""Seed every random generator a trainer is likely to draw from, alike on all ranks."""

from __future__ import annotations

import random
import secrets
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from ..core.errors import Change, DisagreementError, MeshkitError, SpecError, format_error
from ..core.validate import parse_integer
from .agreement.broadcast import broadcast_from_rank_0
from .agreement.claims import Claim, Claimant, conflicting_claim
from .launchers.world import World
from .store.client import STORE_GRACE, store_call

SHARED = "shared"
Seed = int | str | None


def check_seed(seed: object) -> Seed:
    """The seed as a plain int or ``"shared"``; None stays None.

    Raises:
        SpecError: where it is none of these, or not from 0 to 2**32 - 1, numpy's range.
    """
    number = parse_integer(seed)
    if seed is None or (isinstance(seed, str) and seed == SHARED):
        return seed
    if number is None or not 0 <= number < 2**32:
        raise SpecError(
            f"seed is {seed!r}.",
            "Python, numpy and torch all take ints from 0 to 4294967295.",
            fix=(Change(seed=0), ", or seed='shared', which rank 0 draws for all."),
        )
    return number


def seed_claim(seed: Seed, left: str = "no process group was created") -> Claim:
    """The claim that all ranks give the same seed; ``left`` is how a clash leaves the job."""

    def clash(first: Claimant, second: Claimant) -> DisagreementError:
        text = format_error(
            f"ranks disagree about the seed; {left}.",
            f"{first}: seed={first.value}",
            f"{second}: seed={second.value}",
            fix="pass the same seed on every rank, or seed='shared', which rank 0 draws for all.",
        )
        said = {who.rank: f"seed={who.value}" for who in (first, second)}
        return DisagreementError(text, requests=said)

    return Claim("seed", repr(seed), clash)


def check_alike(store: dist.Store | None, world: World, seed: Seed) -> int:
    """Compare the seed of a later call with those of the ranks that came before. No waiting.

    Returns:
        How many times this rank has called so, from 1.

    Raises:
        DisagreementError: on the rank that differs from the first one.
    """
    if store is None:
        return 0
    claim = seed_claim(seed, "rank by rank they are seeded differently now")

    def claimed() -> tuple[int, MeshkitError | None]:
        number = int(store.add(f"seeds/{world.rank}", 1))
        calls = dist.PrefixStore(f"seeds/call/{number}", store)
        return number, conflicting_claim(calls, world.rank, (claim,))

    number, clash = store_call(world, STORE_GRACE, claimed)
    if clash is not None:
        raise clash
    return number


def drawn(
    store: dist.Store | None,
    world: World,
    seed: int | str,
    number: int,
    wait: timedelta,
) -> int:
    """The seed as a number: ``"shared"`` is drawn by rank 0, and the others wait for it.

    Args:
        store: where the ranks met; None for a process that has nobody to meet.
        world: who this process is.
        seed: an int, or ``"shared"``.
        number: which call this is, the same on all ranks.
        wait: how long to wait for rank 0.

    Raises:
        RankTimeoutError: where rank 0 did not draw in time.
    """
    if isinstance(seed, int):
        return seed
    if store is None:
        return secrets.randbelow(2**32)
    words = broadcast_from_rank_0(
        store,
        world,
        f"seeds/drawn/{number}",
        lambda: str(secrets.randbelow(2**32)),
        wait,
        what="the seed that rank 0 draws",
        fix="call init(seed='shared') on every rank, rank 0 included; see rank 0's log.",
    )
    return int(words)


def seed_all(seed: int) -> None:
    """Seed python's, numpy's and torch's global generators, those of accelerators included."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
