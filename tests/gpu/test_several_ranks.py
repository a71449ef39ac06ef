"""Several ranks on one GPU.

gloo moves CUDA tensors through the host. nccl takes several ranks on one GPU if each names another
host (``own_host`` on PYTHONPATH, as ``.ci/gpu`` has it), or from NCCL 2.30 on if a variable is 1.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.testing.faults import Strike, play

LIMIT = 8.0
BUSY = 5.0


def supports_shared_gpu() -> bool:
    """Return whether nccl takes several ranks on one GPU here."""
    names = "NCCL_HOSTID" in os.environ
    return torch.cuda.is_available() and (names or torch.cuda.nccl.version() >= (2, 30))


UNSHARED = "no rank names a host of its own, and nccl is below 2.30"
BACKENDS = [
    "gloo",
    pytest.param("nccl", marks=pytest.mark.skipif(not supports_shared_gpu(), reason=UNSHARED)),
]


def join(backend: str) -> meshkit.Mesh:
    """Return a mesh of all ranks, each on GPU 0."""
    meshkit.init(backend=backend, device="cuda:0", arrival_timeout=60, timeout=60)
    return meshkit.build_mesh(dp=-1, sp=2, timeout=LIMIT, arrival_timeout=30)


@pytest.fixture(autouse=True)
def _allow_shared_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")


def compute(backend: str) -> Any:
    """Return the results of an all-reduce over each axis, and close in order."""
    mesh = join(backend)
    results = []
    for axis in ("dp", "sp"):
        total = torch.full((4,), float(mesh.rank), device="cuda:0")
        dist.all_reduce(total, group=mesh.group(axis))
        results.append(int(total[0]))
    mesh.agree("lr", 0.1)
    mesh.barrier()
    mesh.close()
    meshkit.shutdown()
    return results


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_of_a_shared_gpu_add_up(backend: str, num_ranks: int) -> None:
    layout = meshkit.Layout(dp=num_ranks // 2, sp=2)
    found = meshkit.spawn(compute, num_ranks, (backend,), timeout=120)
    expected = [
        [int(layout.peers(rank, axis).sum()) for axis in ("dp", "sp")] for rank in range(num_ranks)
    ]
    assert found == expected


def disagree(backend: str) -> Any:
    """Request different meshes, so that no group may be made."""
    meshkit.init(backend=backend, device="cuda:0", arrival_timeout=60, timeout=60)
    sizes = {"dp": 2} if meshkit.init().rank else {"tp": 2}
    try:
        meshkit.build_mesh(sizes)
    except meshkit.DisagreementError as error:
        return sorted(error.requests)
    return "through"


@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_that_disagree_raise_together(backend: str) -> None:
    assert meshkit.spawn(disagree, 2, (backend,), timeout=120) == [[0, 1]] * 2


def stop_in_guard(strike: Strike, backend: str) -> Any:
    """Stop rank 1 before a collective; the others report it, abort, and leave."""
    mesh = join(backend)
    dist.all_reduce(torch.ones(1, device="cuda:0"), group=mesh.group())
    torch.cuda.synchronize()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mesh)
        stack.enter_context(mesh.guard(timeout=LIMIT))
        if mesh.rank == 1:
            strike.stop()
        dist.all_reduce(torch.ones(1, device="cuda:0"), group=mesh.group())
        torch.cuda.synchronize()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_stopped_rank_is_named_and_its_groups_are_aborted(backend: str) -> None:
    played = play(stop_in_guard, 2, (backend,), timeout=120)
    assert (played.fired, played.ends[1]) == (1, "stopped")
    outcome = played.outcomes[0]
    assert outcome.kind == "CollectiveError", outcome
    assert outcome.missing_ranks == (1,)
    assert played.seconds(0) < 2 * LIMIT + BUSY


def start_again(strike: Strike, backend: str) -> Any:
    """Fail on rank 1 in a guard; then close, leave, and build again on all ranks."""
    mesh = join(backend)
    try:
        with mesh, mesh.guard(timeout=LIMIT):
            if mesh.rank == 1:
                strike.note()
                raise ValueError("bad sample")
            dist.all_reduce(torch.ones(1, device="cuda:0"), group=mesh.group())
            torch.cuda.synchronize()
    except (ValueError, meshkit.CollectiveError):
        pass
    del mesh
    meshkit.shutdown()
    time.sleep(0.5)
    with join(backend) as again:
        total = torch.ones(1, device="cuda:0")
        dist.all_reduce(total, group=again.group())
        result = int(total)
    meshkit.shutdown()
    return result


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_job_recovers_after_the_error_of_one_rank(backend: str) -> None:
    played = play(start_again, 2, (backend,), timeout=180)
    assert played.fired == 1
    assert [played.outcomes[rank].text for rank in (0, 1)] == ["2", "2"]
