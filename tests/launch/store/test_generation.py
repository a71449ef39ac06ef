"""Ranks that joined a different number of times meet in one generation."""

from __future__ import annotations

import ast
import gc
import random
import signal
import time
from contextlib import suppress
from typing import Any

import pytest
import torch.distributed as dist

import meshkit
from meshkit.launch.store.keys import DECISION, JOIN_ROUND, NEWEST
from meshkit.launch.store.rank_lease import acquire_rank
from meshkit.testing.faults import Strike, play
from tests.live.resources import descriptors, threads


def decide(base: dist.Store, generation: int) -> None:
    """Let all ranks complete an init."""
    for name in (JOIN_ROUND.format(generation), JOIN_ROUND.format(generation)[:-1] + "2"):
        dist.PrefixStore(name, base).compare_set(DECISION, "", "all")


def is_over(base: dist.Store, generation: int) -> bool:
    return bool(base.check([f"meshkit/{generation}/over"]))


@pytest.mark.parametrize("seed", range(20))
def test_after_any_exceptions_the_next_start_has_one_generation(seed: int) -> None:
    chance, base = random.Random(seed), dist.HashStore()
    for _ in range(10):
        for _ in range(chance.randrange(4)):  # an exception ends init on one rank
            acquire_rank(base, chance.randrange(3))
        joined: dict[int, int] = {}
        ranks = chance.sample(range(3), 3)
        for rank in ranks:
            joined[rank] = acquire_rank(base, rank).generation
        for rank in ranks:  # a rank that waits in a start that is over joins again
            if is_over(base, joined[rank]):
                joined[rank] = acquire_rank(base, rank).generation
        assert len(set(joined.values())) == 1, (seed, joined)
        assert int(base.get(NEWEST)) == joined[0]
        decide(base, joined[0])


def test_a_late_rank_of_a_first_start_reads_the_decision() -> None:
    base = dist.HashStore()
    decide(base, acquire_rank(base, 0).generation)
    assert acquire_rank(base, 1).generation == 1


class RandomError(Exception):
    """An exception at a random moment, as of Ctrl-C."""


def use_all(limit: float, init_method: str | None) -> None:
    meshkit.init(init_method=init_method, arrival_timeout=limit, timeout=limit)
    with meshkit.build_mesh(dp=-1, timeout=limit, arrival_timeout=limit) as mesh:
        mesh.verify()
    meshkit.shutdown()


def interrupt_at_random(
    strike: Strike, seed: int, rounds: int, init_method: str | None = None
) -> Any:
    """Raise at a random moment on one rank in each round; then start cleanly on all ranks."""
    rank, chance, fired = meshkit.detect().rank, random.Random(seed), []

    def interrupt(*_: object) -> None:
        strike.note()
        fired.append(rank)
        raise RandomError

    signal.signal(signal.SIGALRM, interrupt)
    use_all(20, init_method)
    held, tries = (descriptors(), threads()), []
    for _ in range(rounds):
        odd, delay = chance.randrange(3), chance.random() * 0.3
        with suppress(RandomError, meshkit.MeshkitError, RuntimeError):
            try:
                if rank == odd:
                    signal.setitimer(signal.ITIMER_REAL, delay)
                use_all(3, init_method)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)  # the exception may still come here
        meshkit.shutdown()
        for attempt in range(1, 5):  # noqa: B007  # used after the loop
            try:
                use_all(20, init_method)
                break
            except meshkit.MeshkitError as error:
                last = str(error)
                meshkit.shutdown()
        else:
            raise RuntimeError(f"no start came through in {attempt} tries: {last}")
        tries.append(attempt)
    return max(tries), what_is_left(*held), dist.is_initialized(), len(fired)


def what_is_left(files: int, others: int) -> tuple[int, int]:
    """Return how many descriptors and threads a rank has more than before, once calls have ended.

    A call to the store that an exception has left waits in its thread until its own timeout.
    """
    end = time.monotonic() + 10
    while True:
        gc.collect()  # errors and their frames refer to each other
        left = descriptors() - files, threads() - others
        if left == (0, 0) or time.monotonic() > end:
            return left
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("init_method", [None, "env://"])  # None is a file
def test_the_next_clean_start_works_within_a_few_tries(seed: int, init_method: str | None) -> None:
    played = play(interrupt_at_random, 3, (seed, 8, init_method), timeout=400)
    num_fired = 0
    for rank in range(3):
        outcome = played.outcomes[rank]
        assert outcome.kind == "returned", outcome
        tries, left, is_initialized, fired = ast.literal_eval(outcome.text)
        assert (tries <= 2, left, is_initialized) == (True, (0, 0), False), outcome
        num_fired += fired
    assert num_fired > 0
