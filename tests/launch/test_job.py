"""The job of the default group, and its rounds."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

import meshkit
from meshkit.launch.generation import LEASE, Lease
from meshkit.launch.job import Job, Membership, current_job, require_job, set_current_job
from meshkit.launch.judges import Process, RankState
from meshkit.launch.store import Store
from meshkit.launch.times import ARRIVAL
from meshkit.launch.world import World

WORLD = World(0, 2, 0, None, None, None, None, None, "hand-written")
FACTS = {"sizes": "dp=2"}


@pytest.fixture
def default_group() -> Iterator[dist.Store]:
    """Create a default group of one rank, and yield its store."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield store
    dist.destroy_process_group()


def agree(job: Job, part: str = "") -> int:
    if not part:
        return job.agree("build_mesh", FACTS, "ranks disagree.")
    agreement = job.agreement("build_mesh", part=part)
    assert agreement is not None
    agreement.same(FACTS)
    return agreement.number


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
    assert [agree(job), agree(job), agree(job, "mesh/1")] == [1, 2, 1]
    assert job.processes()[0].host


def test_rounds_at_a_store_of_someone_else_continue_after_the_job(
    default_group: dist.Store,
) -> None:
    first = require_job()
    assert agree(first) == 1
    set_current_job(Job(first.world, first.store, None, ARRIVAL, first.membership))
    assert agree(require_job()) == 2


def test_a_new_job_ends_the_one_before_although_its_group_lives() -> None:
    """Ctrl-C in the callback of a weak reference leaves the entry of a dead group, too."""
    groups, jobs = [], []
    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        groups.append(dist.group.WORLD)
        set_current_job(Job(WORLD, None, None, ARRIVAL, Membership(0, range(2), 2)))
        jobs.append(weakref.ref(require_job()))
        dist.destroy_process_group()
    assert [job() is None for job in jobs] == [True, False]


def test_without_a_store_a_rank_waits_for_no_other_rank() -> None:
    job = Job(WORLD, None, None, ARRIVAL, Membership(0, range(2), 2))
    assert job.agreement("build_mesh") is None
    assert agree(job) == 0
    assert job.look([1]) == {}


def test_an_epoch_knows_which_ranks_are_lost() -> None:
    membership = Membership(2, (0, 2, 3), 5)
    assert membership.lost == [1, 4]
    job = Job(WORLD, None, None, ARRIVAL, membership)
    assert [job.next_recovery(), job.next_recovery()] == [3, 4]


def test_a_process_elsewhere_has_ended_once_another_one_holds_its_rank() -> None:
    """No process of this machine is asked; later memberships hold the leases of the start."""
    attempt = Store(dist.HashStore(), WORLD)
    first, second = (Process("elsewhere", pid, "other machine", "", "1") for pid in (7, 8))
    attempt.set(LEASE.format(2), json.dumps(Lease(first, "a", 1)))
    attempt.set(LEASE.format(3), json.dumps(Lease(second, "b", 2)))
    membership, known = Membership(1, (0, 2, 3), 4), {1: first, 2: first}
    job = Job(WORLD, None, None, ARRIVAL, membership, attempt=attempt, known=known)
    states = {rank: seen.state for rank, seen in job.look([1, 2]).items()}
    assert states == {1: RankState.UNKNOWN, 2: RankState.ENDED}
