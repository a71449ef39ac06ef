"""After n rounds of any kind a store holds what it held after two, over TCP and in a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

import meshkit
from meshkit import Mesh
from meshkit.launch.job import current_job
from meshkit.launch.world import free_port
from tests.pool import Pool

RANKS = 4


def root() -> Any:
    """Return torch's store of the job, below all prefixes."""
    store: Any = current_job().store.root  # type: ignore[union-attr]
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def differing(mesh: Mesh) -> None:
    with pytest.raises(meshkit.DisagreementError):
        mesh.agree("x", mesh.rank)


def failing_on_one_rank(mesh: Mesh) -> None:
    """Fail on rank 0 before it arrives; the others read that as the decision."""
    with pytest.raises(meshkit.MeshkitError):
        meshkit.build_mesh(dp=77 if mesh.rank == 0 else 4)


def device_mesh(_: Mesh) -> None:
    meshkit.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))


KINDS: dict[str, Callable[[Mesh], Any]] = {
    "agree": lambda mesh: mesh.agree("x", 1),
    "barrier": lambda mesh: mesh.barrier(),
    "barrier of a group": lambda mesh: mesh.barrier("dp"),
    "seed": lambda _: meshkit.init(seed="shared"),
    "disagreement": differing,
    "failure": failing_on_one_rank,
    "device mesh": device_mesh,
}
SLOW_KINDS = {"disagreement": 10, "failure": 20, "device mesh": 30}


def count_keys(kind: str, times: int, url: str) -> tuple[int, int]:
    """Return the number of keys after two rounds of a kind, and after many more."""
    meshkit.shutdown()  # the job of the pool
    meshkit.init(**({"init_method": url} if url else {}), seed=0)
    mesh, counts = meshkit.build_mesh(dp=2, tp=2), list[int]()
    assert isinstance(root(), dist.TCPStore if url else dist.FileStore)
    for more in (2, times):
        for _ in range(more):
            KINDS[kind](mesh)
        dist.barrier()  # of torch: no key changes between the two
        counts.append(int(root().num_keys()))
        dist.barrier()
    meshkit.shutdown()
    return counts[0], counts[1]


@pytest.fixture(params=["tcp", "file"])
def url(request: pytest.FixtureRequest) -> str:
    return f"tcp://127.0.0.1:{free_port()}" if request.param == "tcp" else ""


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_leave_no_keys(kind: str, url: str, pool: Pool) -> None:
    for before, after in pool.run(count_keys, kind, 2 + SLOW_KINDS.get(kind, 100) // 3, url):
        assert after == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_rounds_leave_no_keys(kind: str, url: str, pool: Pool) -> None:
    times = 10 * SLOW_KINDS.get(kind, 100)
    for before, after in pool.run(count_keys, kind, times, url, timeout=300):
        assert after == before
