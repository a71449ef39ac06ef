"""mesh.recover and mesh.admit: what they keep, what they refuse, and what they leave behind."""

from __future__ import annotations

import contextlib
import gc
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch.judges import Process
from meshkit.launch.newcomer import Admission
from meshkit.recover import admission, rounds
from meshkit.testing.faults import Strike, play
from tests.faults import error_of
from tests.pool import Pool
from tests.promises import BUSY
from tests.resources import descriptors, live_groups, threads

RANKS = 4  # of the pool
TIMES = 20


def fail(mesh: meshkit.Mesh, **options: Any) -> meshkit.Mesh:
    """Recover as after a collective that has failed on all ranks."""
    try:
        raise meshkit.CollectiveError("played")
    except meshkit.CollectiveError:
        return mesh.recover(**options)


def total(mesh: meshkit.Mesh, *axes: str) -> float:
    x = torch.ones(1) * (mesh.rank + 1)
    dist.all_reduce(x, group=mesh.group(*axes))
    return float(x)


def count_held() -> tuple[int, int, int]:
    """Return the descriptors, the threads and the groups that this process holds."""
    time.sleep(1.2)  # the thread that calls the store ends a second after its last call
    gc.collect()  # an error and its frames may hold groups of the past
    return descriptors(), threads(), live_groups()


def check_refused(kind: str, words: str, call: Callable[[], Any]) -> None:
    error = error_of(call)
    assert error is not None, words
    assert error[0] == kind
    assert words in error[1]


def recover_often() -> None:
    """Recover twenty times, which leaves nothing behind."""
    mesh = meshkit.build_mesh(dp=2, tp=2, groups=["dp tp"], timeout={"tp": 500})
    counts = []
    for number in range(TIMES):
        mesh = fail(mesh, step=number)
        assert mesh.recovery.step == number
        assert total(mesh, "tp") == [3, 7][mesh.coordinate["dp"]]
        if number in (1, TIMES - 1):
            counts.append(count_held())
    assert counts[0] == counts[1]
    assert mesh.layout.sizes == {"dp": 2, "tp": 2}
    text = "lost no rank, dp=2 tp=2 -> dp=2 tp=2, 0 moved, from step 19"
    assert str(mesh.recovery) == text
    assert mesh.group("dp", "tp").size() == 4
    mesh.close()


def misuse_recover() -> None:
    """Call recover where it is refused, which leaves the mesh unchanged."""
    mesh = meshkit.build_mesh(dp=2, tp=2)
    check_refused("MeshkitError", "the mesh is healthy: all 4 ranks are here.", mesh.recover)
    assert total(mesh) == 10
    if mesh.rank == 3:
        time.sleep(2.5)  # after the others have decided
    limit = 0.1 + (mesh.rank != 3)
    late = "rank 3 did not call it within 1.1 s."
    check_refused("RankTimeoutError", late, lambda: mesh.recover(arrival_timeout=limit))
    assert total(mesh) == 10
    with mesh.view(x=4) as view:
        check_refused("MeshkitError", "this mesh is a view", view.recover)
    check_refused("SpecError", "step is -1", lambda: mesh.recover(step=-1))
    bad: Any = 2.5
    check_refused("SpecError", "min_ranks is 2.5", lambda: mesh.recover(min_ranks=bad))
    check_refused("SpecError", "arrival_timeout is 0", lambda: mesh.recover(arrival_timeout=0))
    new = fail(mesh)
    check_refused("MeshkitError", "has returned another mesh", mesh.recover)
    check_refused("MeshkitError", "has returned another mesh", lambda: mesh.group("dp"))
    assert total(new) == 10
    few = "4 of 4 ranks live: min_ranks is 5"
    check_refused("RankTimeoutError", few, lambda: fail(new, min_ranks=5))
    new.close()
    meshkit.shutdown()
    meshkit.init()


def abort_all_groups_and_keep_names() -> None:
    """Recover a mesh and its view: all groups are aborted, which on nccl ends what waits."""
    mesh = meshkit.build_mesh({"data": 2, "model": 2}, groups=["data model"], timeout=500)
    before, view, aborted = mesh.recovery, mesh.view(x=4, timeout=400), []
    assert str(before) == "no rank was lost"
    with contextlib.suppress(meshkit.MeshkitError):
        before.restore({})
    expected = {group.group_name for group in (dist.group.WORLD, mesh.group(), view.group("x"))}
    with pytest.MonkeyPatch.context() as patch:
        abort = lambda group: aborted.append(group.group_name)  # noqa: E731
        patch.setattr(dist.ProcessGroup, "abort", abort)
        new = fail(mesh)
    assert expected <= {*aborted}
    assert new.layout.sizes == {"data": 2, "model": 2}
    words = "groups=['data model', 'model data']"
    check_refused("SpecError", words, lambda: new.group("model", "data"))
    with new, meshkit.build_mesh(dp=4) as other:
        assert total(other) == 10


def close_under_spares() -> None:
    """Close the mesh while ranks 2 and 3 wait for a loss: recover returns there."""
    mesh = meshkit.build_mesh(dp=2, ranks=range(2))
    if mesh.inside:
        time.sleep(0.5)
        mesh.close()
    else:
        assert mesh.recover() is mesh
        assert mesh.recovery.is_over
        mesh.close()
    dist.barrier()


def misuse_admit() -> None:
    """Call admit where it is refused, and on a mesh without a loss."""
    mesh = meshkit.build_mesh(dp=2, ranks=range(2))
    if mesh.inside:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(admission, "guard_mesh", None, raising=True)  # no rank communicates
            assert mesh.admit(step=3) is mesh
        assert mesh.admit() is mesh
    else:
        check_refused("MeshkitError", f"rank {mesh.rank} is a spare", mesh.admit)
    check_refused("SpecError", "step is -1", lambda: mesh.admit(step=-1))
    with mesh.view(x=2) as view:
        check_refused("MeshkitError", "this mesh is a view", view.admit)
    mesh.close()
    check_refused("MeshkitError", "closed", mesh.admit)


@pytest.mark.parametrize(
    "check",
    [
        recover_often,
        misuse_recover,
        abort_all_groups_and_keep_names,
        close_under_spares,
        misuse_admit,
    ],
)
def test_recover_and_admit_on_four_ranks(pool: Pool, check: Callable[[], None]) -> None:
    pool.run(check)


def disagree() -> None:
    """Recover with steps that are not held for each part, or that one rank lacks; other meshes."""
    parts = "tp=0: step 4 on rank 0.\n  tp=1: step 5 on rank 1."
    for steps, words in ((4, 5), parts), ((4, None), "rank 1 gives no step"):
        mesh = meshkit.build_mesh(tp=2)
        check_refused("SpecError", words, partial(fail, mesh, step=steps[mesh.rank]))
        meshkit.shutdown()
    first, second = meshkit.build_mesh(dp=2), meshkit.build_mesh(dp=2)
    check_refused("DisagreementError", "", lambda: fail(first if first.rank else second))


def test_ranks_that_disagree_are_named() -> None:
    meshkit.spawn(disagree, 2, timeout=120)


def fail_to_create() -> Any:
    """Recover a mesh whose groups cannot be created; return how often that was tried."""
    mesh, attempts = meshkit.build_mesh(dp=1), []

    def create(proposal: object) -> None:
        attempts.append(proposal)
        assert len(attempts) < 9, "recover does not give up"
        raise dist.DistBackendError("played")

    pytest.MonkeyPatch().setattr(rounds, "open_groups", create)
    with pytest.raises(dist.DistBackendError, match="played"):
        fail(mesh)
    return len(attempts)


def test_recover_gives_up_if_the_groups_of_the_same_ranks_cannot_be_created() -> None:
    assert meshkit.spawn(fail_to_create, 1, timeout=60) == [3]


def come_after_two_recoveries(folder: Path) -> Any:
    """Recover twice without rank 3, which calls it when the first round has been deleted."""
    mesh = meshkit.build_mesh(dp=4)
    is_over, is_late = folder / "over", mesh.rank == 3
    if is_late:
        wait_for_file(is_over)
        error = error_of(lambda: fail(mesh, arrival_timeout=1))
        (folder / "read").touch()
        return error
    for _ in range(2):
        mesh = fail(mesh, arrival_timeout=1)
    assert mesh.layout.sizes == {"dp": 3}
    mesh.agree("recoveries", 2)
    is_over.touch()
    wait_for_file(folder / "read")  # rank 0 hosts the store
    return None


def wait_for_file(path: Path) -> None:
    until = time.monotonic() + 30 + BUSY
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)


def test_a_rank_that_was_left_out_reads_so_after_its_round_was_deleted(tmp_path: Path) -> None:
    error = meshkit.spawn(come_after_two_recoveries, 4, (tmp_path,), timeout=90)[3]
    assert error[0] == "RankTimeoutError"
    assert "rank 3 was declared lost, as it did not come in time." in error[1]
    assert "The other ranks go on without it, since recovery 2." in error[1]


def admit_often(strike: Strike) -> Any:
    """Call admit many times after a loss; return whether the process holds as much as before."""
    mesh = meshkit.build_mesh(dp=3)
    try:
        with mesh.guard(timeout=5):
            if mesh.rank == 1:
                strike.kill()
            dist.barrier(group=mesh.group())
    except meshkit.CollectiveError:
        mesh = mesh.recover()
    counts = []
    for number in range(TIMES):
        assert mesh.admit() is mesh
        if number in (1, TIMES - 1):
            counts.append(count_held())
    return counts[0] == counts[1]


def test_an_admission_without_newcomers_leaves_nothing_behind() -> None:
    played = play(admit_often, 3, timeout=120)
    assert played.fired == 1
    assert [played.outcomes[rank].text for rank in (0, 2)] == ["True", "True"]


def test_an_admission_is_equal_after_its_way_through_the_store() -> None:
    process = Process("b", 311, "boot", "spaces", "8812")
    sizes = {"pp": 1, "dp": 2}
    first = (0, 3, 1, 2)
    sent = Admission(2, first, (process, process), sizes, (1, 0), {"pp": 1, "dp": 4}, None)
    assert Admission.from_json(json.dumps(asdict(sent))) == sent
    assert [*sent.newcomers] == [2, 3]
