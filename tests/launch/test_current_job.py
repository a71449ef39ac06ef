"""The job of the default group, and its methods without a store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

import meshkit
from meshkit.launch.agreement.consensus import commit
from meshkit.launch.agreement.proposal import Proposal
from meshkit.launch.current_job import Job, current_job, require_job, set_current_job
from meshkit.launch.store.deadline import ARRIVAL
from meshkit.launch.world import World

WORLD = World(0, 2, 0, None, None, None, None, None, "hand-written")
PROPOSAL = Proposal("build_mesh", {"sizes": "dp=2"}, "ranks disagree.")


@pytest.fixture
def default_group() -> Iterator[dist.Store]:
    """Create a default group of one rank, and yield its store."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield store
    dist.destroy_process_group()


def test_without_a_default_group_there_is_no_job() -> None:
    assert current_job() is None
    with pytest.raises(meshkit.LaunchError, match="no default process group"):
        require_job()


def test_a_default_group_of_someone_else_is_a_job(default_group: dist.Store) -> None:
    job = require_job()
    assert (job.world.rank, job.world.world_size, job.generation) == (0, 1, 0)
    assert (job.timeout, job.arrival_timeout) == (timedelta(minutes=30), ARRIVAL)
    assert job.default_timeout == timedelta(minutes=30)
    assert job.leave is None
    assert current_job() is job
    assert job.agree(PROPOSAL) == 1
    assert job.agree(PROPOSAL) == 2


def test_rounds_at_a_store_of_someone_else_continue_after_the_job(
    default_group: dist.Store,
) -> None:
    first = require_job()
    assert first.agree(PROPOSAL) == 1
    again = Job(first.world, first.store, None, ARRIVAL, 0, None)
    set_current_job(again)
    assert require_job().agree(PROPOSAL) == 2


def test_a_part_of_the_world_has_rounds_of_its_own(default_group: dist.Store) -> None:
    job = require_job()
    assert job.agree(PROPOSAL) == 1
    assert job.agree(PROPOSAL, ranks=[0], prefix="mesh/1/") == 1


def test_without_a_store_a_rank_waits_for_no_other_rank() -> None:
    job = Job(WORLD, None, None, ARRIVAL, 0, None)
    assert job.participants() is None
    assert job.agree(PROPOSAL) == 0
    undone: list[int] = []
    participants, wait = job.participants(), job.arrival_timeout
    created = commit(PROPOSAL, participants, wait, lambda _: 7, undone.append, connects=True)
    assert created == 7
    job.announce_failure(PROPOSAL, ValueError("x"))
    assert undone == []
