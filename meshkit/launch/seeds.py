"""Seed every random generator a trainer is likely to use, equally on all ranks."""

from __future__ import annotations

import random

import numpy as np
import torch

from ..core.errors import DisagreementError, SpecError
from ..core.validate import parse_integer
from .agreement.broadcast import broadcast_from_rank_0
from .agreement.proposal import Participants
from .store.check_in import ProcessIdentity
from .store.deadline import STORE_GRACE, Deadline, store_call
from .store.foreign_value import read_number, read_value

SHARED = "shared"
SAME_SEED = "pass the same seed on every rank, or seed='shared', which rank 0 draws for all."
Seed = int | str | None


def parse_seed(seed: object) -> Seed:
    """Return the seed as a plain int or ``"shared"``; None stays None."""
    if seed is None or (isinstance(seed, str) and seed == SHARED):
        return seed
    number = parse_integer(seed)
    if number is None or not 0 <= number < 2**32:
        raise SpecError(
            f"seed is {seed!r}.",
            "Python, numpy and torch all accept ints from 0 to 4294967295.",
            fix="seed=0, or seed='shared', which rank 0 draws for all.",
        )
    return number


def compare_seed(participants: Participants | None, seed: Seed) -> int:
    """Compare the seed of a later ``init`` with that of the first rank that called it.

    Local: no rank waits for another. Cost: two store operations.
    """
    if participants is None:
        return 0
    from .agreement.claims import Claimant

    store, world = participants.store, participants.world
    own = Claimant(world.rank, repr(seed), ProcessIdentity.current())

    def compare() -> tuple[int, Claimant]:
        call_id = int(store.add(f"seeds/calls/{world.rank}", 1))
        text = store.compare_set(f"seeds/first/{call_id}", "", own.to_json())
        return call_id, read_value(f"seeds/first/{call_id}", text, Claimant.from_json)

    call_id, first = store_call(world, STORE_GRACE, compare)
    if first.value == own.value:
        return call_id
    claimants = sorted((first, own), key=lambda claimant: claimant.rank)
    raise DisagreementError(
        "ranks disagree about the seed; the ranks now have different seeds.",
        *(f"{claimant}: seed={claimant.value}" for claimant in claimants),
        fix=SAME_SEED,
        requests={claimant.rank: f"seed={claimant.value}" for claimant in claimants},
    )


def draw_seed(
    participants: Participants | None, seed: int | str, call_id: int, deadline: Deadline
) -> int:
    """Return the seed as a number; rank 0 draws ``"shared"``, and the other ranks wait for it."""
    if isinstance(seed, int):
        return seed
    if participants is None:
        return random.SystemRandom().randrange(2**32)
    key = f"seeds/drawn/{call_id}"
    text = broadcast_from_rank_0(
        participants,
        key,
        lambda: str(random.SystemRandom().randrange(2**32)),
        deadline,
        what="the seed that rank 0 draws",
        fix="call init(seed='shared') on every rank, rank 0 included; see rank 0's log.",
    )
    return read_number(key, text)


def seed_all(seed: int) -> None:
    """Seed the global generators of python, numpy and torch, accelerators included."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
