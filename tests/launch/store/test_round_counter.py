"""The number of agreement rounds that a rank has entered."""

from __future__ import annotations

import torch.distributed as dist

from meshkit.launch.store.keys import generation_store
from meshkit.launch.store.round_counter import RoundCounter


def test_a_rank_counts_its_rounds_without_a_store_operation() -> None:
    counter, other = RoundCounter(), RoundCounter()
    assert [counter.next_round(0, prefix) for prefix in ("", "", "mesh/1/")] == [1, 2, 1]
    assert other.next_round(0) == 1


def test_a_store_of_someone_else_counts_the_rounds_of_each_rank() -> None:
    base = dist.HashStore()
    store = generation_store(base, 1)
    assert [RoundCounter(store).next_round(rank) for rank in (3, 3, 4)] == [1, 2, 1]
    assert RoundCounter(store).next_round(3, "mesh/1/") == 1
    assert base.check(["meshkit/1/rounds/3", "meshkit/1/mesh/1/rounds/3"])
