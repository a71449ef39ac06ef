"""One world, many views: which groups are shared, who is met in them, and what is left."""

from __future__ import annotations

import itertools

import pytest

import meshkit
from meshkit import Layout
from meshkit.live import create

from . import view_jobs as jobs

pytestmark = pytest.mark.skipif(
    not create.KEEPS_ORDER, reason="views of turned axes: torch 2.13 and newer"
)

FAMILIES = [
    (
        8,
        {"dp": 4, "sp": 2, "tp": 1},
        [{"replicate": 2, "shard": 4}, {"efsdp": 2, "ep": 2, "tp": 2}, {"dp": 4, "sp": -1}],
    ),
    (12, {"pp": 2, "dp": 3, "tp": 2}, [{"x": 12}, {"x": 6, "tp": 2}, {"a": 4, "b": 3}]),
    (1, {"dp": 1}, [{"x": 1, "y": 1}]),
]


def members_of(layout: Layout, rank: int) -> list[tuple[int, ...]]:
    """The member lists of the usual groups that hold a rank, from the grid alone."""
    averaged = [axis for axis in ("dp", "cp", "sp") if axis in layout.axes]
    asked = [list(layout.axes), *([axis] for axis in layout.axes), averaged]
    found = []
    for axes in asked:
        if axes:
            where = [slice(None) if a in axes else layout.coordinate(rank)[a] for a in layout.axes]
            found.append(tuple(layout.grid[tuple(where)].ravel().tolist()))
    return found


@pytest.mark.parametrize(("ranks", "sizes", "others"), FAMILIES)
def test_groups_are_shared_and_each_meets_its_members(
    ranks: int, sizes: dict[str, int], others: list[dict[str, int]]
) -> None:
    layouts = [Layout(**sizes), *(Layout(**sizes).view(**other) for other in others)]
    results = meshkit.spawn(jobs.views, ranks, (sizes, others), timeout=120)
    for rank, (met, _, held, text, before, after) in enumerate(results):
        for layout, groups in zip(layouts, met, strict=True):
            for axes, (summed, gathered) in groups.items():
                row = layout.peers(rank, *axes).tolist()
                assert (summed, gathered) == (sorted(row), row)
        distinct = {row for layout in layouts for row in members_of(layout, rank)}
        for one in held:  # the same report from every view, each group once
            assert sorted(map(tuple, one)) == sorted(distinct | {tuple(range(ranks))})
        assert text.startswith(f"rank {rank} holds {len(held[0])} process group")
        assert after == before
    assert results[0][1] == results[-1][1]  # as many were made on every rank


def test_nothing_is_made_for_a_view_whose_groups_are_all_there() -> None:
    others = [{"dp": 4, "sp": 2, "tp": 1}, {"x": 4, "y": 2}, {"z": 8}, {"dp": 4, "one": 1, "b": 2}]
    for result in meshkit.spawn(jobs.views, 8, ({"dp": 4, "sp": 2, "tp": 1}, others), timeout=60):
        assert result[1] == [0, 0, 0, 0]


def test_the_same_objects() -> None:
    assert (
        meshkit.spawn(jobs.identities, 8, timeout=60)
        == [
            {
                "tp is sp": True,
                "again": True,
                "whole": True,
                "turned": False,
                "another mesh": False,
                "device meshes": [True, True],
            }
        ]
        * 8
    )


def test_a_group_lives_as_long_as_its_last_view_whatever_the_order() -> None:
    layouts = [Layout(dp=2, sp=2, tp=2), Layout(replicate=2, shard=4), Layout(pair=4, tp=2)]
    for rank, (alive, before, after) in enumerate(
        meshkit.spawn(jobs.closing_in_every_order, 8, timeout=120)
    ):
        assert after == before
        steps = iter(alive)
        for order in itertools.permutations(range(3)):
            for at in range(3):
                rest = [layouts[one] for one in range(3) if order.index(one) > at]
                for layout, groups in zip(rest, next(steps), strict=True):
                    assert {axes: row for axes, (_, row) in groups.items()} == {
                        axes: layout.peers(rank, *axes).tolist() for axes in groups
                    }
            assert [kind for kind, _ in next(steps)] == ["MeshkitError"] * 3


def test_the_position_is_the_coordinate_for_every_permutation_of_axes() -> None:
    layout = Layout(dp=2, sp=2, tp=2)
    for rank, (found, turned) in enumerate(meshkit.spawn(jobs.permutations, 8, timeout=60)):
        assert len(found) == 12
        for axes, (right, members) in found.items():
            assert right, axes
            assert members == layout.peers(rank, *axes).tolist()
        assert turned == [[0, 4, 1, 5], [2, 6, 3, 7]]


def test_ranks_that_ask_for_different_views_are_told() -> None:
    for rank, (told, members) in enumerate(meshkit.spawn(jobs.disagreements, 4, timeout=60)):
        assert members == [0, 1, 2, 3]
        kinds = [kind for kind, _ in told]
        assert kinds == ["DisagreementError"] * 2 + [
            "SpecError" if rank == 1 else "DisagreementError",
            "DisagreementError",
        ]
        assert "ranks 0 and 2-3:  x=2 y=2\n" in told[0][1]
        assert "call=build_mesh" in told[1][1]
        assert "make the same calls in the same order" in told[1][1]
        assert "tp dp is not the standard order, dp tp" in told[2][1]
        assert told[3][1].splitlines()[1:] == [
            "  ranks 0 and 2-3:  z=4, open=views 0 (dp=2 sp=2), 1 (x=2 y=2) of mesh 3",
            told[3][1].splitlines()[2],
            "  Fix: close the same views on every rank, and take new ones from the same mesh.",
        ]
        assert told[3][1].splitlines()[2].startswith("  rank 1 (")
        assert told[3][1].splitlines()[2].endswith("z=4, open=views 0 (dp=2 sp=2) of mesh 3")


@pytest.mark.parametrize(("at", "each"), [(1, False), (2, False), (3, True), (6, True)])
def test_after_a_view_that_failed_the_mesh_works_on(at: int, each: bool) -> None:
    for told, fired, before, left, dp, b in meshkit.spawn(
        jobs.failing_view, 8, (at, each), timeout=90
    ):
        assert fired
        assert told is not None
        assert "planted" in told[1]
        assert left == before
        assert (len(dp), len(b)) == (4, 2)


def test_a_view_takes_the_times_of_its_mesh_unless_it_says_its_own() -> None:
    for seconds, shared, whole in meshkit.spawn(jobs.inherited_times, 8, timeout=60):
        assert seconds == [30, 1800, 77, 600]
        assert shared == (True, False)
        assert whole == [44, 44]


def test_times_that_are_said_twice_or_in_other_words() -> None:
    for found, made in meshkit.spawn(jobs.times_said_twice, 4, timeout=60):
        assert found == [
            {"": 1800, "dp": 1800},
            {"": 1800, "dp": 1800, "tp": 1800},
            {"": 1800, "x": 1800, "y": 5},
            {"": 1800, "dp": 1800, "tp": 1800},
        ]
        assert made == 0  # the backend's own time is the same, said in numbers


def test_the_time_of_a_view_is_that_of_arrival_unless_that_is_said() -> None:
    results = meshkit.spawn(jobs.waits_for_a_view, 4, timeout=60)
    for rank in (0, 2, 3):
        for (kind, text), said in zip(
            results[rank], ("timeout=2", "arrival_timeout=2"), strict=True
        ):
            assert kind == "RankTimeoutError"
            assert said in text.splitlines()[0]
            assert text.splitlines()[0].endswith("within 2 s.")


def test_views_closed_in_another_order_where_that_is_a_matter_of_all() -> None:
    for kind, text in meshkit.spawn(jobs.closing_in_another_order, 4, timeout=60):
        assert kind == "DisagreementError"
        assert "mesh=mesh.view(x=2, y=2, timeout=9), number " in text
        assert "mesh=mesh.view(x=2, y=2, timeout=8), number " in text


def test_a_mesh_over_a_part_of_the_world() -> None:
    for rank, (inside, text, found, held) in enumerate(
        meshkit.spawn(jobs.part_of_the_world, 8, timeout=60)
    ):
        assert inside == (2 <= rank < 6)
        if inside:
            assert found == [[2, 3, 4, 5], [2, 3, 4, 5], True]
            assert held == 3
        else:
            assert text == f"Mesh(dp=2, tp=2; rank {rank} is outside; closed)"
            assert [kind for kind, _ in found] == ["CoordinateError"] * 4
            assert all(f"rank {rank} is not in Layout(" in text for _, text in found)
            assert held == 0


def test_several_models_side_by_side() -> None:
    parts = {"actor": range(4), "critic": range(4, 6), "reference": range(6, 8)}
    sizes = {"actor": "dp=2, tp=2", "critic": "dp=2", "reference": "dp=1, tp=2"}
    results = meshkit.spawn(jobs.actors_and_critics, 8, timeout=60)
    for rank, (mine, text, whole, dp) in enumerate(results):
        assert rank in parts[mine]
        assert text.startswith(f"Mesh({sizes[mine]}; rank {rank}: ")
        assert whole == list(parts[mine])
        assert dp == [[0, 2], [1, 3], [0, 2], [1, 3], [4, 5], [4, 5], [6], [7]][rank]


def test_a_rank_that_does_not_come_to_a_view_is_named() -> None:
    results = meshkit.spawn(jobs.late_for_a_view, 4, timeout=60)
    for rank in (0, 2, 3):
        kind, text = results[rank]
        assert kind == "RankTimeoutError"
        assert text.startswith("1 of 4 ranks did not arrive at mesh.view(a=2, b=2) within 2 s.\n")
        assert "Missing: 1 (a=0 b=1)" in text


def test_a_view_can_be_verified_waited_in_and_guarded() -> None:
    for rank, (seen, members) in enumerate(meshkit.spawn(jobs.collectives_of_views, 4, timeout=60)):
        assert sorted(seen) == [("x",), ("x", "y"), ("y",)]
        assert members == [rank % 2, rank % 2 + 2]


def test_a_view_of_a_job_that_was_left() -> None:
    assert set(meshkit.spawn(jobs.shut_down, 2, timeout=60)) == {
        (
            "MeshkitError",
            "mesh.view(x=2): the job it was built in has been left.\n"
            "  Fix: build_mesh(dp=2) again.",
        )
    }
