"""The creation of groups, with timeouts of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.groups import groups
from meshkit.launch.torch_aborts import timeout_of
from tests.faults import fail_new_group
from tests.membership import all_reduce_members
from tests.pool import Pool

RANKS = 4  # of the pool


def keep_timeouts() -> None:
    """Check the timeout that torch keeps for each group; the group dp sp equals dp here.

    A mesh of the whole world with its own timeout does not use the default group.
    """

    def seconds(mesh: meshkit.Mesh, axes: str) -> float:
        limit = timeout_of(mesh.group(*axes.split()))
        assert limit is not None
        return limit.total_seconds()

    with meshkit.build_mesh(dp=2, sp=1, tp=2, timeout={"tp": 30}) as mesh:
        times = {axes: seconds(mesh, axes) for axes in ("dp", "tp", "dp sp", "")}
        assert times == {"dp": 1800, "tp": 30, "dp sp": 1800, "": 1800}
        assert mesh.group() is dist.group.WORLD
    with meshkit.build_mesh(dp=4, timeout={"dp": 33}) as mesh:
        assert seconds(mesh, "dp") == seconds(mesh, "") == 33
        assert mesh.group() is not dist.group.WORLD


def fail_on_one_rank_at_the_group_of_one() -> None:
    """Fail on rank 1 when all other groups exist; torch counts equally many on every rank."""
    rank = dist.get_rank()
    with pytest.MonkeyPatch.context() as patch:
        number = 3 if rank == 1 else 0  # after those of dp and of sp
        calls = fail_new_group(patch, number, RuntimeError("planted"), together=False)
        with pytest.raises((RuntimeError, meshkit.MeshkitError), match="planted"):
            meshkit.build_mesh(dp=2, sp=2, arrival_timeout=30)
    assert (len(calls), calls[-1]) == (3, ([rank],))
    count = dist.get_pg_count()
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        mesh.agree("count", count)
        assert len(all_reduce_members(mesh, "dp")) == 2


@pytest.mark.parametrize("check", [keep_timeouts, fail_on_one_rank_at_the_group_of_one])
def test_groups_on_four_ranks(pool: Pool, check: Callable[[], None]) -> None:
    pool.run(check)


def build_on_a_part_of_a_bound_job() -> Any:
    """Return the groups that this rank asks torch for, in a job that is bound to a device."""
    meshkit.init()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "bound_device", lambda: torch.device("cuda:0"), raising=True)
        calls = fail_new_group(patch, -1, ValueError(), together=False)
        mesh = meshkit.build_mesh(dp=2, tp=2, ranks=range(4))
        total = all_reduce_members(mesh, "dp") if mesh.inside else None
    return [ranks for (ranks,) in calls if len(ranks) > 1 or ranks != [mesh.rank]], total


def test_on_a_bound_job_every_rank_is_in_one_group_of_each_kind() -> None:
    """Else the ranks outside would take part in more splits than the others."""
    results = meshkit.spawn(build_on_a_part_of_a_bound_job, 6, timeout=60)
    asked, _ = results[0]
    assert all(calls == asked for calls, _ in results)
    assert asked.count([4, 5]) == 3  # over dp, over tp, over both


def receive_late() -> list[float]:
    """Send over a group of the mesh and over the default group after a fifth of arrival_timeout."""
    meshkit.init(arrival_timeout=10, timeout=40)
    mesh = meshkit.build_mesh(pp=2, dp=2, tp=1, timeout={"pp": 30}, arrival_timeout=10)
    seconds, group = [], mesh.group("pp")
    for sends, over in ((mesh.coordinate["pp"], group), (mesh.rank >= 2, dist.group.WORLD)):
        dist.barrier()
        began, peer = time.monotonic(), mesh.rank ^ 2
        if sends:
            time.sleep(3.5)
            dist.send(torch.ones(1), peer, group=over)
        else:
            dist.recv(torch.ones(1), peer, group=over)
        seconds.append(time.monotonic() - began)
    return seconds


def test_a_receive_waits_as_long_as_its_group_and_not_as_long_as_it_may_connect() -> None:
    for seconds in meshkit.spawn(receive_late, 4, timeout=60):
        assert min(seconds) >= 3.4, seconds  # 2 s to connect


def build_before_closing() -> list[float]:
    """Replace a mesh some times, each time before the old one is closed."""
    mesh, sums = meshkit.build_mesh(dp=2), []
    for _ in range(4):
        old, mesh = mesh, meshkit.build_mesh(dp=2)
        old.close()
        for axis in ("dp", "tp"):
            dist.all_reduce(total := torch.ones(()), group=mesh.group(axis))
            sums.append(total.item())
    return sums


def test_a_mesh_may_be_built_again_and_again_before_the_old_one_is_closed() -> None:
    """torch gives two groups of one rank the same name then."""
    assert meshkit.spawn(build_before_closing, 2, timeout=60) == [[2.0, 1.0] * 4] * 2
