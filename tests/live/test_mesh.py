"""The mesh on real gloo processes."""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch.torch_internals import timeout_of
from meshkit.live import groups as create
from tests.live.faults import create_every_group, error_of, fail_new_group
from tests.live.membership import all_reduce_members, gather_members
from tests.live.resources import descriptors, live_groups, threads
from tests.pool import Pool

RANKS = 8  # of the pool

WORLDS = [
    ({"dp": 4, "sp": 2, "tp": 1}, []),
    ({"dp": 2, "sp": 2, "tp": 2}, ["dp tp", "sp tp", "tp dp"]),
    ({"pp": 2, "dp": 2, "cp": 1, "sp": 2}, ["pp sp"]),
    ({"tp": 8}, []),
    ({"order": "sp dp tp", "dp": 2, "sp": 2, "tp": 2}, []),
    ({"order": "tp dp", "tp": 2}, ["dp tp"]),
    ({"dp": 4, "tp": 2, "ranks": [0, 2, 4, 6, 1, 3, 5, 7]}, []),
    ({"dp": 2, "tp": 2, "ranks": range(4, 8)}, []),
]


def list_axis_sets(sizes: dict[str, object], groups: list[str]) -> list[tuple[str, ...]]:
    axes = {axis for axis in sizes if axis not in ("order", "ranks")} | {"dp"}
    averaged = tuple(axis for axis in ("dp", "cp", "sp") if axis in axes)
    return [(), *((axis,) for axis in sorted(axes)), averaged, *(tuple(g.split()) for g in groups)]


Request = dict[str, Any]


def build_and_collect_members(
    requests: list[Request], axis_sets: list[list[tuple[str, ...]]]
) -> Any:
    """Return for each request the coordinate and, for each set of axes, the members."""
    report = []
    for request, axes_sets in zip(requests, axis_sets, strict=True):
        with meshkit.build_mesh(**request) as mesh:
            if mesh.rank not in mesh.layout:
                report.append(None)
                continue
            rows = {
                axes: (
                    all_reduce_members(mesh, *axes),
                    gather_members(mesh, *axes),
                    mesh.group(*axes).rank(),
                )
                for axes in axes_sets
            }
            report.append((mesh.coordinate, rows))
    return report


def test_law_11_a_collective_over_a_group_reaches_exactly_its_members(pool: Pool) -> None:
    worlds = [
        (sizes, groups)
        for sizes, groups in WORLDS
        if create.KEEPS_ORDER or not ("ranks" in sizes or "order" in sizes or "tp dp" in groups)
    ]
    requests = [{**sizes, "groups": groups} for sizes, groups in worlds]
    sets = [list_axis_sets(sizes, groups) for sizes, groups in worlds]
    reports = pool.run(build_and_collect_members, requests, sets)
    for i, request in enumerate(requests):
        sizes = {k: v for k, v in request.items() if k not in ("groups", "ranks", "order")}
        ranks = list(request.get("ranks", range(8)))
        order = request.get("order")
        layout = meshkit.factor_world(len(ranks), order=order, **sizes)
        for rank in range(8):
            if rank not in ranks:
                assert reports[rank][i] is None
                continue
            coordinate, rows = reports[rank][i]
            place = ranks.index(rank)
            assert coordinate == layout.coordinate(place)
            for axes, (members, ordered, group_rank) in rows.items():
                # the layout of positions is a second derivation of who belongs together
                expected = [ranks[int(p)] for p in layout.peers(place, *axes)]
                assert ordered == expected, (request, axes, rank)
                assert members == sorted(expected)
                assert ordered[group_rank] == rank


def list_group_names(told_of_each: bool) -> Any:
    """Return the group names, the number that torch counts, and a sum over a group of the user."""
    if told_of_each:
        create_every_group(pytest.MonkeyPatch())
    with meshkit.build_mesh(dp=2, sp=2, tp=2, groups=["dp tp"]) as mesh:
        groups = [mesh.group(*axes) for axes in ((), ("dp",), ("sp",), ("tp",), ("dp", "tp"))]
        own, ones = dist.new_group([1, 2, 5]), torch.ones(1)
        if mesh.rank in (1, 2, 5):
            dist.all_reduce(ones, group=own)
        return [group.group_name for group in groups], dist.get_pg_count(), int(ones)


def ask_device_mesh_on_fake_backend(sizes: list[tuple[str, int]]) -> list[Any]:
    """Return the answers of init_device_mesh for each rank of a world, on the fake backend."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    list_group_names, shape = zip(*sizes, strict=True)
    count = int(torch.tensor(shape).prod())
    answers = []
    for rank in range(count):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
        made = init_device_mesh("cpu", shape, mesh_dim_names=list_group_names)
        groups = {n: dist.get_process_group_ranks(made.get_group(n)) for n in list_group_names}
        answers.append((made.get_coordinate(), groups, made.mesh.tolist()))
        dist.destroy_process_group()
    return answers


def test_law_10_equal_to_device_mesh_on_the_fake_backend() -> None:
    for sizes in ([("dp", 4), ("sp", 2), ("tp", 1)], [("pp", 2), ("dp", 3), ("tp", 2)]):
        layout = meshkit.Layout(**dict(sizes))
        (answers,) = meshkit.spawn(ask_device_mesh_on_fake_backend, 1, (sizes,), timeout=60)
        assert len(answers) == layout.num_ranks
        for rank, (coordinate, groups, grid) in enumerate(answers):
            assert list(layout.coordinate(rank).values()) == list(coordinate)
            assert layout.grid.tolist() == grid
            for axis, members in groups.items():
                assert layout.peers(rank, axis).tolist() == members


def call_getters_on_one_rank(folder: str) -> Any:
    """Call every getter on rank 5 alone, while the other ranks take part in no collective."""
    with meshkit.build_mesh(dp=4, sp=2, tp=1) as mesh:
        done = Path(folder) / "done"
        if mesh.rank != 5:
            while not done.exists():  # not in a collective: rank 5 must not need us
                time.sleep(0.01)
            return None
        before = live_groups()
        axis_sets: list[tuple[str, ...]] = [(), ("dp",), ("sp",), ("tp",), ("dp", "sp")]
        groups = [mesh.group(*axes) for axes in axis_sets]
        world = dist.group.WORLD
        answers = {
            "coordinate": mesh.coordinate,
            "sizes": [mesh.size(), mesh.size("dp"), mesh.size("dp", "sp"), mesh.size("tp")],
            "peers": [mesh.peers("dp").tolist(), mesh.peers("sp").tolist(), mesh.peers().tolist()],
            "neighbors": [
                mesh.neighbor("dp"),
                mesh.neighbor("dp", -1),
                mesh.neighbor("dp", 3, wrap=False),
                mesh.neighbor("sp", wrap=False),
            ],
            "steps": mesh.batch(global_batch=1024, micro_batch=4).accumulation_steps,
            "is_world": [group is world for group in groups],
            "again": [
                mesh.group(*axes) is group for axes, group in zip(axis_sets, groups, strict=True)
            ],
            "own": mesh.coordinate is not mesh.coordinate,
            "tp_ranks": dist.get_process_group_ranks(mesh.group("tp")),
            "repr": repr(mesh),
            "str": str(mesh),
        }
        mesh.device_mesh()
        mesh.device_mesh("(dp sp) tp")
        made = live_groups() - before
        done.touch()
        return answers, made


def test_getters_answer_on_one_rank_alone_and_never_make_a_group(
    pool: Pool, tmp_path: Path
) -> None:
    answers, made = pool.run(call_getters_on_one_rank, str(tmp_path))[5]
    assert made == 0
    assert answers == {
        "coordinate": {"dp": 2, "sp": 1, "tp": 0},
        "sizes": [8, 4, 8, 1],
        "peers": [[1, 3, 5, 7], [4, 5], [0, 1, 2, 3, 4, 5, 6, 7]],
        "neighbors": [7, 3, None, None],
        "steps": 64,
        "is_world": [True, False, False, False, True],
        "again": [True] * 5,
        "own": True,
        "tp_ranks": [5],
        "repr": "Mesh(dp=4, sp=2, tp=1; rank 5: dp=2 sp=1 tp=0)",
        "str": "\n".join(
            [
                "dp=4 sp=2 tp=1",
                "      sp=0  sp=1",
                "dp=0     0     1",
                "dp=1     2     3",
                "dp=2     4   [5]",
                "dp=3     6     7",
            ]
        ),
    }


def count_singleton_groups() -> Any:
    """Return whether axes of size 1 share one group, its members, and the number of new groups."""
    before = live_groups()
    with meshkit.build_mesh(dp=8, sp=1, tp=1, pp=1) as mesh:
        alone = mesh.group("tp")
        shared = all(mesh.group(axis) is alone for axis in ("sp", "tp", "pp"))
        return shared, all_reduce_members(mesh, "sp"), live_groups() - before


def test_axes_of_size_one_share_one_singleton_and_the_world_is_the_default_group(
    pool: Pool,
) -> None:
    assert pool.run(count_singleton_groups) == [(True, [rank], 1) for rank in range(8)]


def build_and_close(times: int) -> Any:
    """Build and close many times; return the descriptors and threads after each build."""
    counts = []
    for _ in range(times):
        more = ["sp dp"] if create.KEEPS_ORDER else []
        with meshkit.build_mesh(dp=4, sp=2, groups=more) as mesh:
            for axes in (("dp",), ("sp",), *(tuple(axes.split()) for axes in more), ()):
                all_reduce_members(mesh, *axes)
            inside = (descriptors(), threads())
        mesh.close()
        counts.append((descriptors(), threads()))
    dist.barrier()
    with pytest.raises(meshkit.MeshkitError, match="the mesh is closed"):
        mesh.group("dp")
    return inside, counts, repr(mesh)


def test_close_releases_every_descriptor_and_thread_ten_times(pool: Pool) -> None:
    for inside, counts, text in pool.run(build_and_close, 10):
        assert len(counts) == 10
        assert len(set(counts)) == 1, counts
        assert inside[0] > counts[0][0], "the groups cost nothing, so this test sees nothing"
        assert inside[1] > counts[0][1]
        assert text.endswith("; closed)")


SPEC_ERRORS: list[Request] = [
    {"dp": 4, "sp": 2, "tp": 1},
    {"dp": -1, "sp": -1},
    {"dp": 0},
    {"dp": True},
    {"dp": 2.0},
    {"dp": "4"},
    {"dp": 2, "expert": 3},
    {"dp": 2, "tpp": 3},
    {"sizes": {"timeout": 2, "dp": 3}},
    {"sizes": {"dp": 3}, "dp": 3},
    {"dp": 6, "timeout": -1},
    {"dp": 6, "arrival_timeout": "soon"},
    {"dp": 2, "ranks": [5, 6]},
    {"dp": 2, "ranks": [1, 1]},
    {"sp": 4},
    {"dp": 1, "ranks": range(0)},
    {"dp": 1, "ranks": 5},
    {"sizes": [("dp", 6)]},
]
BAD = [*SPEC_ERRORS, {"dp": 6, "groups": ["dp xp"]}, {"dp": 6, "backend": "smoke"}]
ERRORS = [*["SpecError"] * len(SPEC_ERRORS), "UnknownAxisError", "LaunchError"]


@pytest.mark.parametrize("joined", [False, True])
def test_an_invalid_request_raises_on_every_rank_before_a_group_is_made(joined: bool) -> None:
    results = meshkit.spawn(request_bad_meshes, 6, (joined,), timeout=60)
    assert results == [[(error, False) for error in ERRORS]] * 6


def request_bad_meshes(joined: bool) -> Any:
    """Return for each bad request the error, and whether anything was made for it."""
    if joined:
        meshkit.init()
    outcomes = []
    for request in BAD:
        before = live_groups()
        sizes = request.pop("sizes", None)
        try:
            meshkit.build_mesh(sizes, **request)
            outcomes.append(("accepted", True))
        except meshkit.MeshkitError as error:
            made = live_groups() != before or dist.is_initialized() != joined
            outcomes.append((type(error).__name__, made))
    return outcomes


def fail_while_creating(number: int, each: bool) -> Any:
    """Build a mesh while a call of new_group fails on every rank; then build again."""
    with pytest.MonkeyPatch.context() as slow_way:
        if each:
            create_every_group(slow_way)
        before = (descriptors(), threads())
        with pytest.MonkeyPatch.context() as patch:
            calls = fail_new_group(patch, number, RuntimeError("planted"), together=True)
            # the first rank to fail raises its error; the others quote it, as it may cause theirs
            with pytest.raises((RuntimeError, meshkit.MeshkitError), match="planted"):
                meshkit.build_mesh(dp=4, sp=2)
        assert len(calls) >= number
        assert (descriptors(), threads()) == before
        with meshkit.build_mesh(dp=4, sp=2) as mesh:
            return all_reduce_members(mesh, "dp")


@pytest.mark.parametrize(
    ("number", "each"), [(1, False), (2, False), (1, True), (3, True), (6, True)]
)
def test_after_a_failed_creation_nothing_stays_and_the_next_build_works(
    pool: Pool, number: int, each: bool
) -> None:
    for rank, members in enumerate(pool.run(fail_while_creating, number, each)):
        assert members == [*range(rank % 2, 8, 2)]


def test_groups_have_the_names_that_torch_gives_if_it_creates_each() -> None:
    counted, created = (
        meshkit.spawn(list_group_names, 8, (each,), timeout=60) for each in (False, True)
    )
    assert counted == created
    for rank, (groups, count, ones) in enumerate(counted):
        assert len(set(groups)) == 5
        own = int(create.COUNTS_OWN_GROUPS)  # those of one rank
        assert count == 1 + 3 * 4 + 2 * 2 + 1 + own  # with the default group and the user's own
        assert ones == (3 if rank in (1, 2, 5) else 1)


def build_on_older_torch(request: Request) -> str | None:
    """Build a mesh as on a torch below 2.12, which sorts the ranks of a group."""
    pytest.MonkeyPatch().setattr(create, "KEEPS_ORDER", False)
    outcome = error_of(lambda: meshkit.build_mesh(**request))
    assert dist.is_initialized() == (outcome is None)
    return outcome and outcome[0]


@pytest.mark.parametrize(
    ("requested", "error"),
    [
        ({"dp": 2, "ranks": [1, 0]}, "SpecError"),
        ({"dp": 2, "sp": 1, "tp": 1, "order": "tp sp dp", "groups": ["dp tp"]}, None),  # ascending
    ],
)
def test_ranks_out_of_order_raise_on_a_torch_that_sorts(
    requested: Request, error: str | None
) -> None:
    assert meshkit.spawn(build_on_older_torch, 2, (requested,), timeout=60) == [error] * 2


def join_foreign_group(path: str) -> Any:
    """Build meshes in a job whose default group the user initialised with a timeout."""
    from datetime import timedelta

    who = meshkit.detect()
    limit = timedelta(seconds=77)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=who.rank,
        world_size=who.world_size,
        timeout=limit,
    )
    world = meshkit.init()
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        times = [timeout_of(mesh.group(axis)) for axis in ("dp", "sp")]
        members = all_reduce_members(mesh, "dp")
    with meshkit.build_mesh(dp=2, sp=2, timeout=33) as mesh:
        own = timeout_of(mesh.group("dp"))
        with mesh.guard(timeout=7), meshkit.build_mesh(dp=2, sp=2) as inner:
            times.append(timeout_of(inner.group("dp")))
    meshkit.shutdown()
    still = dist.is_initialized()
    dist.destroy_process_group()
    return world.launcher, world.backend, str(world.device), times, own, members, still


def test_a_default_group_of_the_user_is_used_and_its_timeout_inherited(
    tmp_path: object,
) -> None:
    results = meshkit.spawn(join_foreign_group, 4, (f"{tmp_path}/store",), timeout=60)
    limit, own = timedelta(seconds=77), timedelta(seconds=33)
    for rank, result in enumerate(results):
        members = [rank % 2, rank % 2 + 2]
        expected = ("existing group", "gloo", "cpu", [limit] * 3, own, members, True)
        assert result == expected


def build_on_fake_backend(rank: int, count: int) -> Any:
    """Build the mesh of one rank of a larger world, on the fake backend of torch."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
    with meshkit.build_mesh(sp=2, tp=8) as mesh:
        ranks = {axis: dist.get_process_group_ranks(mesh.group(axis)) for axis in ("sp", "tp")}
        found = mesh.coordinate, ranks, mesh.size("dp")
    dist.destroy_process_group()
    return found


def test_a_dry_run_on_the_fake_backend() -> None:
    ((coordinate, ranks, dp),) = meshkit.spawn(build_on_fake_backend, 1, (77, 128), timeout=60)
    layout = meshkit.factor_world(128, sp=2, tp=8)
    assert coordinate == layout.coordinate(77)
    assert ranks == {axis: layout.peers(77, axis).tolist() for axis in ("sp", "tp")}
    assert dp == 8


def use_mesh_after_shutdown() -> list[str]:
    """Use a mesh after shutdown, also after a new init; return the errors."""
    mesh = meshkit.build_mesh(dp=2)
    mesh.group("dp")  # a group that was returned once is not returned for ever
    outcomes = []
    for _ in range(2):
        meshkit.shutdown()
        try:
            mesh.group("dp")
            outcomes.append("returned")
        except meshkit.MeshkitError as error:
            outcomes.append(str(error))
        meshkit.init()
    mesh.close()
    return [*outcomes, repr(mesh)]


def test_a_mesh_raises_after_shutdown() -> None:
    outcome = (
        "mesh.group('dp'): the job it was built in has been left.\n  Fix: build_mesh(dp=2) again."
    )
    for results in meshkit.spawn(use_mesh_after_shutdown, 2, timeout=60):
        assert results == [outcome, outcome, results[2]]
        assert results[2].endswith("; closed)")


def arrive_late_on_one_rank(folder: str) -> Any:
    """Call build_mesh on rank 1 only after the others have raised; then build on all ranks."""
    world, gave_up = meshkit.init(), Path(folder) / "gave_up"
    while world.rank == 1 and not gave_up.exists():
        time.sleep(0.01)
    groups, began = live_groups(), time.monotonic()
    try:
        meshkit.build_mesh(dp=2, sp=2, arrival_timeout=1)
        first: Any = "built"
    except meshkit.RankTimeoutError as error:
        first = str(error), error.missing_ranks, live_groups() - groups
        gave_up.touch()
    seconds = time.monotonic() - began
    with meshkit.build_mesh(dp=2, sp=2, arrival_timeout=20) as mesh:
        return first, seconds, all_reduce_members(mesh, "sp")


def test_a_rank_missing_at_build_mesh_is_named_with_its_coordinate(
    tmp_path: Path,
) -> None:
    results = meshkit.spawn(arrive_late_on_one_rank, 4, (str(tmp_path),), timeout=60)
    for rank, ((text, missing, groups), seconds, members) in enumerate(results):
        first, evidence, *rest = text.splitlines()
        assert first == (
            "1 of 4 ranks did not arrive at build_mesh(dp=2, sp=2, arrival_timeout=1) within 1 s."
        )
        assert evidence.startswith("  Missing: 1 (dp=0 sp=1). Arrived: 0, 2-3 on host ")
        assert rest[0].startswith(f"  Last seen: 1 on host {socket.gethostname()}, pid ")
        assert rest[1:-1] == (["  Rank 1 came after that."] if rank == 1 else [])
        assert (missing, groups) == ((1,), 0)
        assert seconds < 1 + 3  # as promised in docs/evidence/promises.md
        assert members == [rank // 2 * 2, rank // 2 * 2 + 1]  # the next build works
