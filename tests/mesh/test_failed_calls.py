"""Failed calls that a program catches, before a valid call."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

import meshkit
from meshkit.launch.world import free_port
from tests.preloaded_python import run_python

FAIL_AND_GO_ON = """
import os, sys, time
import meshkit
behind, valid = sys.argv[1:]
for _ in range(2):
    time.sleep(1.5 * (os.environ["RANK"] == behind))
    try:
        meshkit.build_mesh(dp=3, sp=5)
    except meshkit.SpecError:
        pass
if valid == "init":
    meshkit.init(seed=0)
print(meshkit.build_mesh(dp=2, arrival_timeout=40).size("dp"))
time.sleep(5 * (os.environ["RANK"] == "0"))  # the host of the store leaves last
"""


@pytest.mark.parametrize(("behind", "valid"), [("0", "init"), ("1", "build_mesh")])
def test_a_valid_call_works_after_failed_calls_that_all_ranks_caught(
    behind: str, valid: str
) -> None:
    """Rank 0 hosts the store. One rank is behind the other."""
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with ThreadPoolExecutor() as threads:
        played = threads.map(
            lambda rank: run_python(
                FAIL_AND_GO_ON,
                behind,
                valid,
                environ={**os.environ, **job, "RANK": rank, "LOCAL_RANK": rank},
            ),
            ["0", "1"],
        )
    ends = [(rank.returncode, rank.stdout, rank.stderr) for rank in played]
    assert [end[:2] for end in ends] == [(0, "2\n")] * 2, ends


def fail_on_rank_0() -> tuple[list[int], float]:
    """Return the ranks that the error of a valid call names, and its seconds; empty on rank 0."""
    for _ in range(2):
        with pytest.raises(meshkit.SpecError):
            meshkit.build_mesh(dp=3, sp=5)
    began, named = time.monotonic(), []
    if meshkit.detect().rank == 0:
        time.sleep(2)  # rank 1 waits in the valid call
        with pytest.raises(meshkit.SpecError):
            meshkit.build_mesh(dp=3)
    else:
        with pytest.raises(meshkit.DisagreementError) as told:
            meshkit.build_mesh(dp=2)
        named = [*told.value.requests]
    seconds = time.monotonic() - began
    assert meshkit.build_mesh(dp=2).size("dp") == 2  # both go on
    return named, seconds


def test_ranks_in_a_valid_call_are_told_at_once_that_one_rank_failed() -> None:
    _, (named, seconds) = meshkit.spawn(fail_on_rank_0, 2, timeout=120)
    assert named == [0]
    assert seconds < 30


def fail_over_the_default_group_of_the_user() -> int:
    """Build a valid mesh after the first build failed on rank 1; return the size of its axis."""
    dist.init_process_group("gloo")
    with pytest.raises(meshkit.MeshkitError):
        meshkit.build_mesh(tp=2 + (dist.get_rank() == 1), arrival_timeout=20)
    with meshkit.build_mesh(tp=2, arrival_timeout=20) as mesh:
        return mesh.size("tp")


def test_a_valid_build_follows_a_failed_first_one_over_the_default_group_of_the_user() -> None:
    assert meshkit.spawn(fail_over_the_default_group_of_the_user, 2, timeout=60) == [2, 2]
