"""mesh.recover and mesh.admit: what they keep, what they refuse, and what they leave behind."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.core.judges import Process
from meshkit.launch.newcomer import Admission
from meshkit.live import admission, recovery
from meshkit.testing.faults import Strike, play
from tests.live.faults import error_of
from tests.live.resources import descriptors, live_groups, threads

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
    return descriptors(), threads(), live_groups()


def recover_often() -> Any:
    """Recover twenty times; return what the process holds after the second and the last time."""
    mesh = meshkit.build_mesh(dp=2, tp=2, groups=["dp tp"], timeout={"tp": 500})
    counts = []
    for number in range(TIMES):
        mesh = fail(mesh, step=number)
        assert mesh.recovery.step == number
        assert total(mesh, "tp") == [3, 7][mesh.coordinate["dp"]]
        if number in (1, TIMES - 1):
            counts.append(count_held())
    return counts, mesh.layout.sizes, str(mesh.recovery), mesh.group("dp", "tp").size()


def test_twenty_recoveries_leave_nothing_behind() -> None:
    for counts, sizes, text, size in meshkit.spawn(recover_often, 4, timeout=300):
        assert counts[0] == counts[1]
        assert sizes == {"dp": 2, "tp": 2}
        assert text == "lost no rank, dp=2 tp=2 -> dp=2 tp=2, 0 moved, from step 19"
        assert size == 4


def misuse() -> Any:
    """Call recover where it is refused; return the errors, and a sum after each."""
    world = meshkit.init()
    mesh = meshkit.build_mesh(dp=2, tp=2)
    errors: dict[str, Any] = {"healthy": error_of(mesh.recover)}
    sums = [total(mesh)]
    if world.rank == 3:
        time.sleep(2.5)  # after the others have decided
    errors["not all"] = error_of(lambda: mesh.recover(arrival_timeout=0.1 + (world.rank != 3)))
    sums.append(total(mesh))
    with mesh.view(x=4) as view:
        errors["view"] = error_of(view.recover)
    errors["step"] = error_of(lambda: mesh.recover(step=-1))
    errors["min_ranks"] = error_of(lambda: mesh.recover(min_ranks=2.5))  # type: ignore[arg-type]
    errors["timeout"] = error_of(lambda: mesh.recover(arrival_timeout=0))
    new = fail(mesh)
    errors["twice"] = error_of(mesh.recover)
    errors["old"] = error_of(lambda: mesh.group("dp"))
    sums.append(total(new))
    errors["too many"] = error_of(lambda: fail(new, min_ranks=5))
    return errors, sums


REFUSALS = {
    "healthy": ("MeshkitError", "the mesh is healthy: all 4 ranks are here."),
    "not all": ("RankTimeoutError", "rank 3 did not call it within 1.1 s."),
    "view": ("MeshkitError", "this mesh is a view"),
    "step": ("SpecError", "step is -1"),
    "min_ranks": ("SpecError", "min_ranks is 2.5"),
    "timeout": ("SpecError", "arrival_timeout is 0"),
    "twice": ("MeshkitError", "has returned another mesh"),
    "old": ("MeshkitError", "has returned another mesh"),
    "too many": ("RankTimeoutError", "4 of 4 ranks live: min_ranks is 5"),
}


def test_misuse_is_refused_and_the_mesh_is_unchanged() -> None:
    for errors, sums in meshkit.spawn(misuse, 4, timeout=120):
        assert sums == [10, 10, 10]
        for name, (kind, text) in REFUSALS.items():
            assert errors[name][0] == kind, name
            assert text in errors[name][1], name


def disagree() -> Any:
    """Recover with steps that are not held for each part, or that one rank lacks; other meshes."""
    errors = []
    for steps in ((4, 5), (4, None)):
        mesh = meshkit.build_mesh(tp=2)
        step = steps[mesh.rank]
        errors.append(error_of(partial(fail, mesh, step=step)))
        meshkit.shutdown()
    first, second = meshkit.build_mesh(dp=2), meshkit.build_mesh(dp=2)
    errors.append(error_of(lambda: fail(first if first.rank else second)))
    return errors


def test_ranks_that_disagree_are_named() -> None:
    for parts, step, meshes in meshkit.spawn(disagree, 2, timeout=120):
        assert parts[0] == step[0] == "SpecError"
        assert "tp=0: step 4 on rank 0." in parts[1]
        assert "tp=1: step 5 on rank 1." in parts[1]
        assert "rank 1 gives no step" in step[1]
        assert meshes[0] == "DisagreementError"


def fail_to_create() -> Any:
    """Recover a mesh whose groups cannot be created; return how often that was tried."""
    mesh, attempts = meshkit.build_mesh(dp=1), []

    def create(proposal: object) -> None:
        attempts.append(proposal)
        assert len(attempts) < 9, "recover does not give up"
        raise dist.DistBackendError("played")

    pytest.MonkeyPatch().setattr(recovery, "open_groups", create)
    with pytest.raises(dist.DistBackendError, match="played"):
        fail(mesh)
    return len(attempts)


def test_recover_gives_up_if_the_groups_of_the_same_ranks_cannot_be_created() -> None:
    assert meshkit.spawn(fail_to_create, 1, timeout=60) == [3]


def watch_the_groups() -> Any:
    """Return whether all groups are aborted, which on nccl ends what waits on them."""
    mesh = meshkit.build_mesh(dp=2, tp=1, timeout=500)
    view, aborted = mesh.view(x=2, timeout=400), []
    expected = [group.group_name for group in (dist.group.WORLD, mesh.group(), view.group("x"))]
    with pytest.MonkeyPatch.context() as patch:
        abort = lambda group: aborted.append(group.group_name)  # noqa: E731
        patch.setattr(dist.ProcessGroup, "abort", abort)
        fail(mesh)
    return {*expected} <= {*aborted}


def test_all_groups_are_aborted() -> None:
    assert meshkit.spawn(watch_the_groups, 2, timeout=120) == [True, True]


def close_under_a_spare() -> Any:
    """Close the mesh while rank 2 waits for a loss; return what its recover reports."""
    mesh = meshkit.build_mesh(dp=2, ranks=range(2))
    if mesh.inside:
        time.sleep(0.5)
        mesh.close()
        return None
    same = mesh.recover()
    return same is mesh, mesh.recovery.is_over


def test_recover_returns_on_a_spare_when_the_mesh_is_closed() -> None:
    assert meshkit.spawn(close_under_a_spare, 3, timeout=120) == [None, None, (True, True)]


def keep_names_and_groups() -> Any:
    mesh = meshkit.build_mesh({"data": 2, "model": 2}, groups=["data model"], backend="gloo")
    before = mesh.recovery
    with contextlib.suppress(meshkit.MeshkitError):
        before.restore({})
    new = fail(mesh)
    _, text = error_of(lambda: new.group("model", "data")) or ("", "")
    return str(before), new.layout.sizes, text, total(meshkit.build_mesh(dp=4))


def test_names_and_groups_of_the_mesh_stay() -> None:
    for before, sizes, text, again in meshkit.spawn(keep_names_and_groups, 4, timeout=120):
        assert (before, sizes, again) == ("no rank was lost", {"data": 2, "model": 2}, 10)
        assert "groups=['data model', 'model data']" in text


def misuse_admit() -> Any:
    """Call admit where it is refused, and on a mesh without a loss."""
    mesh = meshkit.build_mesh(dp=2, ranks=range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "guard_mesh", None, raising=True)  # no rank communicates
        is_same = mesh.inside and mesh.admit(step=3) is mesh
    view = mesh.view(x=2)
    calls = [lambda: mesh.admit(step=-1), mesh.admit, view.admit]
    errors = [error_of(call) for call in calls]
    view.close()
    mesh.close()
    return is_same, *errors, error_of(mesh.admit)


def test_misuse_of_admit_is_refused() -> None:
    by_rank = meshkit.spawn(misuse_admit, 3, timeout=120)
    assert [is_same for is_same, *_ in by_rank] == [True, True, False]
    for rank, (_, step, spare, view, closed) in enumerate(by_rank):
        assert step[0] == "SpecError"
        assert view[0] == closed[0] == "MeshkitError"
        assert "rank 2 is a spare" in spare[1] if rank == 2 else spare is None


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
