"""The number of agreement rounds that a rank has entered."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch.distributed as dist

import meshkit
from meshkit.launch.agreement.consensus import next_round
from meshkit.launch.agreement.proposal import Participants
from meshkit.launch.store.keys import GENERATION

WORLD = replace(meshkit.detect({}), world_size=8)


def test_a_rank_counts_its_rounds_without_a_store_operation() -> None:
    ranks = Participants.of(dist.HashStore(), WORLD, Counter())
    prefixes = ["", "", "mesh/1/"]
    assert [next_round(ranks._replace(prefix=p))[0] for p in prefixes] == [1, 2, 1]
    assert next_round(Participants.of(dist.HashStore(), WORLD, Counter()))[0] == 1


def test_a_store_of_someone_else_counts_the_rounds_of_each_rank() -> None:
    base = dist.HashStore()
    store = dist.PrefixStore(GENERATION.format(1), base)
    worlds = [replace(WORLD, rank=rank) for rank in (3, 3, 4)]
    assert [next_round(Participants.of(store, world))[0] for world in worlds] == [1, 2, 1]
    assert next_round(Participants(store, worlds[0], range(8), "mesh/1/"))[0] == 1
    assert base.check(["meshkit/1/rounds/3", "meshkit/1/mesh/1/rounds/3"])
