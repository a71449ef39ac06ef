"""After n rounds of any kind a store holds what it held after two, over TCP and in a file."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit import Mesh
from meshkit.data.first_batch import KEPT
from meshkit.groups import open_mesh
from meshkit.guard.sampling import BATCH
from meshkit.launch import job
from meshkit.launch.job import current_job
from meshkit.launch.times import TIMES
from meshkit.launch.world import free_port
from meshkit.redistribute import equal_calls
from meshkit.testing.faults import Strike, play
from tests import nccl_like
from tests.faults import free_address
from tests.pool import Pool

RANKS = 4


def root() -> Any:
    """Return torch's store of the job, below all prefixes."""
    store: Any = current_job().store.root  # type: ignore[union-attr]
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def meet() -> None:
    """Wait for all ranks without the store, on the stand-in for NCCL too."""
    together = torch.ones(1)
    dist.all_reduce(together)
    assert together.item() == RANKS


def differing(mesh: Mesh) -> None:
    with pytest.raises(meshkit.DisagreementError):
        mesh.agree("x", mesh.rank)


def failing_on_one_rank(mesh: Mesh) -> None:
    """Fail on rank 0 before it arrives; the others read that as the decision."""
    with pytest.raises(meshkit.MeshkitError):
        meshkit.build_mesh(dp=77 if mesh.rank == 0 else 4)


def recover(mesh: Mesh) -> Mesh:
    """Recover as after a collective that has failed on all ranks, with a guard and a barrier."""
    with mesh.guard(timeout=30):
        mesh.barrier()
    try:
        raise meshkit.CollectiveError("played")
    except meshkit.CollectiveError:
        return mesh.recover()


def recover_at_the_second_try(module: ModuleType, name: str, mesh: Mesh) -> Mesh:
    """Recover with a creation that fails on rank 1 before a function, and then succeeds."""
    original, tries = getattr(module, name), iter([mesh.rank == 1])

    def fail_once(*args: Any, **options: Any) -> Any:
        if next(tries, False):
            raise RuntimeError("played")
        return original(*args, **options)

    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(module, name, fail_once)
        return recover(mesh)


def run_first(mesh: Mesh) -> None:
    with mesh.first_on_node():
        pass
    with mesh.first():
        pass


def transfer(_: Mesh) -> None:
    """Move a state twice in versions that all ranks vote on, to a mesh of other ranks."""
    with (
        meshkit.build_mesh(dp=2, ranks=range(2)) as trainer,
        meshkit.build_mesh(tp=2, ranks=range(1, 3)) as sampler,
    ):
        if trainer.inside or sampler.inside:
            state = {"w": torch.ones(4 if trainer.inside else 2)}
            sync = trainer.transfer({"w": "a -> a/tp"}, to=sampler, like=state, staged=True)
            for _ in range(2):
                sync(state if trainer.inside else None)


def commit(mesh: Mesh) -> None:
    with mesh.guard(timeout=30):
        dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
        mesh.commit()


def device_mesh(_: Mesh) -> None:
    meshkit.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))


def build_and_close(_: Mesh) -> None:
    with meshkit.build_mesh(dp=4) as other, other.guard(timeout=30):
        other.barrier()


def close_after_steps(_: Mesh) -> None:
    """Post the own time of each rank in some steps."""
    with meshkit.build_mesh(dp=4) as other:
        for _ in range(2 * BATCH + 2):
            with other.guard(timeout=30, stragglers=True):
                meet()


def build_of_a_part(_: Mesh) -> None:
    """Use a mesh of two of the ranks, which the others close too or forget."""
    part = meshkit.build_mesh(dp=2, ranks=range(2))
    if part.inside:
        part.barrier()
        part.agree("x", 1)
    if part.inside or part.rank == 3:
        part.close()


def build_a_view(mesh: Mesh) -> None:
    with mesh.view(x=4, order="x") as view, view.view(y=2, x=2, order="y x") as inner:
        view.barrier()
        inner.barrier("x")


def build_over_groups_of_the_user(_: Mesh) -> None:
    layout = meshkit.factor_world(4, dp=4)
    with Mesh.from_groups(layout, {"dp": dist.group.WORLD}) as other:
        other.barrier()


def sample(_: Mesh) -> None:
    with meshkit.build_mesh(dp=4) as other:
        plan = other.batch(global_batch=4, micro_batch=1)
        list(other.sampler(8, plan))


def close_with_spares(_: Mesh) -> None:
    part = meshkit.build_mesh(dp=2, ranks=range(2))
    if not part.inside:
        assert part.recover().recovery.is_over
    part.close()


def close_after_a_failure(_: Mesh) -> None:
    """Report a collective that has failed, which closes the connections of the mesh."""
    part = meshkit.build_mesh(dp=2, ranks=range(2))
    if part.inside:
        with pytest.raises(meshkit.CollectiveError), part.guard(timeout=30):
            raise dist.DistBackendError("played")
        with pytest.raises(meshkit.CollectiveError):
            part.barrier()
    part.close()


def move_to_another_mesh(_: Mesh) -> None:
    """Move a tensor to a mesh of other ranks; rank 3 is in none."""
    first = meshkit.build_mesh(dp=2, ranks=range(2))
    second = meshkit.build_mesh(dp=2, ranks=range(1, 3))
    x = torch.ones(4) if first.inside else None
    if first.inside or second.inside:
        first.redistribute(x, "b/dp -> b", to=second)
    first.close()
    second.close()


def call_unequally(_: Mesh) -> None:
    """Move another shape on one rank, which the ranks of its group find as on NCCL."""
    with pytest.MonkeyPatch().context() as patch:
        patch.setattr(equal_calls, "is_late", lambda _: True)
        other = meshkit.build_mesh(dp=2, tp=2)
        with suppress(meshkit.DisagreementError), other.guard(timeout=30):
            other.redistribute(torch.ones(1, 4) if other.rank == 2 else torch.ones(2, 2), MOVE)
        other.close()


def sample_in_many_epochs(mesh: Mesh) -> None:
    """Make samplers on a mesh that stays open, more than may keep their keys."""
    plan = mesh.batch(global_batch=4, micro_batch=1)
    for epoch in range(KEPT + 2):
        order = torch.randperm(8, generator=torch.Generator().manual_seed(epoch)).tolist()
        list(mesh.sampler(8, plan))
        list(mesh.sampler(8, plan, order=order))


MOVE = "a/tp b -> a b"
KINDS: dict[str, Callable[[Mesh], Any]] = {
    "agree": lambda mesh: mesh.agree("x", 1),
    "barrier": lambda mesh: mesh.barrier(),
    "barrier of a group": lambda mesh: mesh.barrier("dp"),
    "seed": lambda _: meshkit.init(seed="shared"),
    "disagreement": differing,
    "failure": failing_on_one_rank,
    "device mesh": device_mesh,
    "recovery": recover,
    "recovery that fails first": partial(recover_at_the_second_try, job, "create_default_group"),
    "recovery whose mesh fails first": partial(
        recover_at_the_second_try, open_mesh, "create_groups"
    ),
    "first on each node": run_first,
    "transfer": transfer,
    "commit on nccl": commit,
    "close": build_and_close,
    "close after steps": close_after_steps,
    "close a part": build_of_a_part,
    "close a view": build_a_view,
    "close groups of the user": build_over_groups_of_the_user,
    "close with samplers": sample,
    "close with spares": close_with_spares,
    "close after a failure": close_after_a_failure,
    "close after a move": move_to_another_mesh,
    "unequal calls": call_unequally,
    "samplers": sample_in_many_epochs,
}
SLOW_KINDS = {
    "disagreement": 10,
    "failure": 20,
    "device mesh": 30,
    "recovery": 20,
    "recovery that fails first": 3,
    "recovery whose mesh fails first": 3,
    "transfer": 20,
    "commit on nccl": 30,
    "unequal calls": 10,
    "samplers": 15,
}
SLOW_KINDS |= {kind: 30 for kind in KINDS if "close" in kind} | {"close with spares": 10}


def count_keys(kind: str, times: int, url: str) -> tuple[object, object]:
    """Return how many keys and rounds a job holds after two rounds of a kind, and many more."""
    meshkit.shutdown()  # the job of the pool
    options: dict[str, Any] = {}
    if kind == "commit on nccl":
        nccl_like.register()
        options = {"backend": nccl_like.NAME, "device": "cpu", "timeout": 60}
    meshkit.init(init_method=url, seed=0, **options)
    mesh, counts = meshkit.build_mesh(dp=2, tp=2), list[object]()
    assert isinstance(root(), dist.TCPStore if url.startswith("tcp") else dist.FileStore)
    for more in (2, times):
        for _ in range(more):
            result = KINDS[kind](mesh)
            mesh = result if isinstance(result, Mesh) else mesh
        meet()  # no key changes between the two
        held = current_job().counts  # type: ignore[union-attr]
        kept = len(held.last), len(held.endings)
        counts.append((int(root().num_keys()), *kept))
        meet()
    mesh.close()
    meshkit.shutdown()
    return counts[0], counts[1]


@pytest.fixture(params=["tcp", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"tcp://127.0.0.1:{free_port()}" if request.param == "tcp" else f"file://{tmp_path}/keys"


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_leave_no_keys(kind: str, url: str, pool: Pool) -> None:
    for before, after in pool.run(count_keys, kind, 2 + SLOW_KINDS.get(kind, 100) // 8, url):
        assert after == before


def lose_ranks(strike: Strike, url: str) -> list[int]:
    """Lose a rank inside a guard three times, and return how many keys the store holds after each.

    Ranks leave a guard before others, so that the lost rank misses in two of them.
    """
    meshkit.init(init_method=url)
    mesh, counts = meshkit.build_mesh(dp=-1), list[int]()
    for last in (5, 4, 3):
        with suppress(meshkit.CollectiveError):
            while True:
                with mesh.guard(timeout=60):
                    dist.all_reduce(torch.ones(1), group=mesh.group())
                    if strike.rank == last:
                        strike.kill()
        mesh = mesh.recover()
        for _ in range(3):
            mesh.agree("x", 1)
        dist.barrier()
        counts.append(int(root().num_keys()))
        dist.barrier()
    return counts


def test_losses_inside_a_guard_leave_no_key() -> None:
    played = play(lose_ranks, 6, (free_address(),), timeout=120)
    assert [*played.ends.values()].count("SIGKILL") == 3
    for rank in range(3):
        counts = ast.literal_eval(played.outcomes[rank].text)
        assert counts == [counts[0]] * 3


def watch(url: str) -> list[tuple[int, int]]:
    """Return how many keys and bytes a store holds, before and after the looks of a guard."""
    meshkit.shutdown()  # the job of the pool
    meshkit.init(init_method=url)
    held, path = list[tuple[int, int]](), Path(url.removeprefix("file://"))
    with meshkit.build_mesh(dp=4) as mesh, mesh.guard(timeout=60):
        for _ in range(2):
            meet()
            held.append((int(root().num_keys()), path.stat().st_size if path.is_file() else 0))
            meet()
            time.sleep(3 * TIMES.watch)
    meshkit.shutdown()
    return held


def test_a_guard_that_watches_leaves_no_key(url: str, pool: Pool) -> None:
    for before, after in pool.run(watch, url):
        assert after == before


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_two_hundred_rounds_leave_no_keys(kind: str, url: str, pool: Pool) -> None:
    times = 2 * SLOW_KINDS.get(kind, 100)
    for before, after in pool.run(count_keys, kind, times, url, timeout=300):
        assert after == before
