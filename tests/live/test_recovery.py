"""mesh.recover and mesh.admit: what they keep, what they refuse, and what they leave behind."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.core.judges import Process
from meshkit.launch.newcomer import Admission
from meshkit.live import admission
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


def recover_often() -> Any:
    """Recover twenty times; return what the process holds after the second and the last time."""
    mesh = meshkit.build_mesh(dp=2, tp=2, groups=["dp tp"], timeout={"tp": 500})
    counts = []
    for number in range(TIMES):
        mesh = fail(mesh, step=number)
        assert mesh.recovery.step == number
        assert total(mesh, "tp") == [3, 7][mesh.coordinate["dp"]]
        if number in (1, TIMES - 1):
            time.sleep(1.2)  # the thread that calls the store ends a second after its last call
            counts.append((descriptors(), threads(), live_groups()))
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
    errors["after healthy"] = total(mesh)
    if world.rank != 3:
        errors["some"] = error_of(lambda: mesh.recover(arrival_timeout=1))
    else:
        time.sleep(2.5)  # after the others have decided
        errors["some"] = error_of(lambda: mesh.recover(arrival_timeout=0.1))
    errors["after some"] = total(mesh)
    view = mesh.view(x=4)
    errors["view"] = error_of(view.recover)
    view.close()
    errors["step"] = error_of(lambda: mesh.recover(step=-1))
    errors["min_ranks"] = error_of(lambda: mesh.recover(min_ranks=2.5))  # type: ignore[arg-type]
    errors["timeout"] = error_of(lambda: mesh.recover(arrival_timeout=0))
    new = fail(mesh)
    errors["twice"] = error_of(mesh.recover)
    errors["old"] = error_of(lambda: mesh.group("dp"))
    errors["after"] = total(new)
    errors["too many"] = error_of(lambda: fail(new, min_ranks=5))
    return errors


def test_misuse_is_refused() -> None:
    by_rank = meshkit.spawn(misuse, 4, timeout=120)
    for rank, errors in enumerate(by_rank):
        kind, text = errors["healthy"]
        assert (kind, text.partition("\n")[0]) == (
            "MeshkitError",
            "mesh.recover(): the mesh is healthy: all 4 ranks are here.",
        )
        assert errors["after healthy"] == errors["after some"] == errors["after"] == 10
        kind, text = errors["some"]
        assert kind == "RankTimeoutError"
        assert "rank 3 did not call it within 1 s." in text
        assert "the mesh is unchanged" in text
        assert "this mesh is a view" in errors["view"][1]
        assert "step is -1" in errors["step"][1]
        assert "min_ranks is 2.5" in errors["min_ranks"][1]
        assert "arrival_timeout is 0" in errors["timeout"][1]
        assert "mesh.recover() or mesh.admit() has returned another mesh" in errors["twice"][1]
        assert "mesh.recover() or mesh.admit() has returned another mesh" in errors["old"][1]
        assert "4 of 4 ranks live: min_ranks is 5" in errors["too many"][1]
        assert errors["twice"][0] == "MeshkitError", rank


def disagree() -> Any:
    """Recover different meshes, and then with steps that nobody can serve."""
    first, second = meshkit.build_mesh(dp=2, tp=2), meshkit.build_mesh(dp=2, tp=2)
    rank = first.rank
    return error_of(lambda: fail(first if rank else second))


def different_steps(step_of: tuple[int | None, ...]) -> Any:
    mesh = meshkit.build_mesh(dp=1, tp=2)
    return error_of(lambda: fail(mesh, step=step_of[mesh.rank]))


def test_ranks_that_disagree_are_named() -> None:
    errors = meshkit.spawn(disagree, 4, timeout=120)
    assert {kind for kind, _ in errors} == {"DisagreementError"}
    assert all("ranks recover different meshes" in text for _, text in errors)
    errors = meshkit.spawn(different_steps, 2, ((4, 5),), timeout=120)
    assert len({text for _, text in errors}) == 1 or errors[0][0] == "SpecError"
    assert all("tp=0: step 4 on rank 0." in text for _, text in errors)
    assert all("tp=1: step 5 on rank 1." in text for _, text in errors)
    errors = meshkit.spawn(different_steps, 2, ((4, None),), timeout=120)
    assert all("rank 1 gives no step, and other ranks do" in text for _, text in errors)


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
    """Close the mesh while rank 2 waits for a loss; return whether it was told."""
    mesh = meshkit.build_mesh(dp=2, ranks=range(2))
    if mesh.inside:
        time.sleep(0.5)
        mesh.close()
        return None
    same = mesh.recover()
    return same is mesh, mesh.recovery.is_over


def test_a_spare_is_told_when_the_mesh_is_closed() -> None:
    assert meshkit.spawn(close_under_a_spare, 3, timeout=120) == [None, None, (True, True)]


def keep_what_was_asked() -> Any:
    mesh = meshkit.build_mesh({"data": 2, "model": 2}, groups=["data model"], backend="gloo")
    before = mesh.recovery
    with contextlib.suppress(meshkit.MeshkitError):
        before.restore({})
    new = fail(mesh)
    text = error_of(lambda: new.group("model", "data"))
    again = meshkit.build_mesh(dp=4)
    return str(before), new.layout.sizes, text, total(again)


def test_names_and_groups_of_the_mesh_stay() -> None:
    for before, sizes, error, again in meshkit.spawn(keep_what_was_asked, 4, timeout=120):
        assert before == "no rank was lost"
        assert sizes == {"data": 2, "model": 2}
        assert error is not None
        assert "groups=['data model', 'model data']" in error[1]
        assert again == 10


def misuse_admit() -> Any:
    """Call admit where it is refused, and on a mesh without a loss."""
    mesh = meshkit.build_mesh(dp=2, ranks=range(2))
    errors: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "guard_mesh", None, raising=True)  # no rank communicates
        errors["same"] = mesh.inside and mesh.admit(step=3) is mesh
    errors["step"] = error_of(lambda: mesh.admit(step=-1))
    errors["spare"] = error_of(mesh.admit)
    view = mesh.view(x=2)
    errors["view"] = error_of(view.admit)
    view.close()
    mesh.close()
    errors["closed"] = error_of(mesh.admit)
    return errors


def test_misuse_of_admit_is_refused() -> None:
    by_rank = meshkit.spawn(misuse_admit, 3, timeout=120)
    assert [errors["same"] for errors in by_rank] == [True, True, False]
    for errors in by_rank:
        assert "step is -1" in errors["step"][1]
        assert "this mesh is a view" in errors["view"][1]
        assert "the mesh is closed" in errors["closed"][1]
    assert by_rank[0]["spare"] is None
    assert "rank 2 is a spare" in by_rank[2]["spare"][1]
    assert "mesh.recover(), which waits" in by_rank[2]["spare"][1]


def ask_often(strike: Strike) -> Any:
    """After a loss ask for newcomers many times; return what the process holds, and the seconds."""
    mesh = meshkit.build_mesh(dp=3)
    try:
        with mesh.guard(timeout=5):
            if mesh.rank == 1:
                strike.kill()
            dist.barrier(group=mesh.group())
    except meshkit.CollectiveError:
        mesh = mesh.recover()
    counts = []
    for number in range(20):
        assert mesh.admit() is mesh
        if number in (1, 19):
            time.sleep(1.2)  # the thread that calls the store ends a second after its last call
            counts.append((descriptors(), threads(), live_groups()))
    return counts[0] == counts[1]


def test_a_look_leaves_nothing_behind() -> None:
    played = play(ask_often, 3, timeout=120)
    assert played.fired == 1
    assert {rank: outcome.text for rank, outcome in played.outcomes.items()} == {
        0: "True",
        2: "True",
    }


def test_an_admission_is_equal_after_its_way_through_the_store() -> None:
    process = Process("b", 311, "boot", "spaces", "8812")
    sizes = {"pp": 1, "dp": 2}
    first = (0, 3, 1, 2)
    sent = Admission(2, first, (process, process), sizes, (1, 0), {"pp": 1, "dp": 4}, None)
    assert Admission.from_json(json.dumps(asdict(sent))) == sent
    assert [*sent.newcomers] == [2, 3]
