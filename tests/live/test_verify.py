"""mesh.verify: every group proved and timed."""

from __future__ import annotations

import meshkit
from tests.live import guard_jobs as jobs


def test_every_group_is_proved_and_the_slow_rank_is_named() -> None:
    by_rank = meshkit.spawn(jobs.verifies, 8, ({"dp": 2, "sp": 2, "tp": 2}, 5), timeout=120)
    assert len({str(one) for one in by_rank}) == 1  # all know the same
    groups, rows, slowest, waited, text = by_rank[0]
    assert sorted(groups) == [
        (("dp",), 4, 2),
        (("dp", "sp"), 2, 4),
        (("dp", "sp", "tp"), 1, 8),
        (("sp",), 4, 2),
        (("tp",), 4, 2),
    ]
    assert slowest == 5
    assert 0.03 < waited < 1
    for seconds, most, members in rows:
        assert 0 < seconds <= most < 1
        assert 5 in members  # its peers wait for it in every group
    assert f"slowest rank: 5 (dp=1 sp=0 tp=1), its peers wait {waited * 1e3:.3f} ms for it" in text


def test_a_part_of_the_world_and_a_mesh_of_one() -> None:
    part = {"dp": 2, "ranks": [2, 0]}
    zero, one, two = meshkit.spawn(jobs.verifies, 3, (part, None), timeout=60)
    assert one == "CoordinateError"
    assert zero[0] == two[0] == [(("dp",), 1, 2)]
    ((groups, rows, slowest, waited, _),) = meshkit.spawn(jobs.verifies, 1, ({"dp": 1}, None))
    assert (groups, rows, slowest, waited) == ([], [], None, 0.0)


def test_a_group_of_other_ranks_is_told_on_every_rank() -> None:
    told = meshkit.spawn(jobs.verifies_wrong_groups, 4, timeout=60)
    assert {kind for kind, _ in told} == {"MeshkitError"}
    assert {text for _, text in told} == {
        "mesh.verify(): the group over dp is not the one the mesh says.\n"
        "  A gather over it met other ranks, or in another order, on ranks 3.\n"
        "  Fix: close the mesh and build it again; report this with the version of torch."
    }


def test_a_rank_that_never_comes_is_behind() -> None:
    told, _ = meshkit.spawn(jobs.verify_hangs, 2, timeout=60)
    assert told["kind"] == "CollectiveError"
    assert told["missing"] == [1]
    assert "Silent: rank 1 (dp=1)" in told["text"]
