"""mesh.admit without newcomers: what it costs, and what it refuses."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch.distributed as dist
from meshkit.launch.agreement.admission import Admission
from meshkit.launch.store.rank_lease import LeaseHolder

import meshkit
from meshkit.live.recovery import admit
from meshkit.testing.faults import Strike, play
from tests.live.faults import error_of
from tests.live.resources import descriptors, live_groups, threads


def misuse() -> Any:
    """Call admit where it is refused, and on a mesh without a loss."""
    mesh = meshkit.build_mesh(dp=2, ranks=range(2))
    errors: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admit, "_share_answer", None, raising=True)  # no rank communicates
        errors["same"] = mesh.inside and mesh.admit(step=3) is mesh
    errors["step"] = error_of(lambda: mesh.admit(step=-1))
    errors["spare"] = error_of(mesh.admit)
    view = mesh.view(x=2)
    errors["view"] = error_of(view.admit)
    view.close()
    mesh.close()
    errors["closed"] = error_of(mesh.admit)
    return errors


def test_misuse_is_refused() -> None:
    by_rank = meshkit.spawn(misuse, 3, timeout=120)
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
    holder = LeaseHolder.current()
    sizes = {"pp": 1, "dp": 2}
    admission = Admission(
        2, (0, 3, 1, 2), (holder, holder), sizes, (1, 0), {"pp": 1, "dp": 4}, None
    )
    assert Admission.from_json(admission.to_json()) == admission
    assert [admission.number_of(rank) for rank in (1, 2)] == [2, 3]
    assert [*admission.newcomers] == [2, 3]
