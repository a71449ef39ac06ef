"""The mesh on real gloo processes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import meshkit
from meshkit.groups import groups as create
from meshkit.groups import requests
from meshkit.launch.torch_aborts import timeout_of
from meshkit.launch.torch_groups import KEEPS_ORDER
from tests.faults import create_every_group, error_of, fail_new_group
from tests.membership import all_reduce_members, gather_members
from tests.pool import Pool
from tests.promises import BUSY
from tests.resources import descriptors, live_groups, threads

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


Request = dict[str, Any]


def reach_members(worlds: list[tuple[Request, list[str]]]) -> None:
    """Check the coordinate and the members of each group by collectives: law 11."""
    for request, groups in worlds:
        sizes = {k: v for k, v in request.items() if k not in ("ranks", "order")}
        ranks = list(request.get("ranks", range(8)))
        layout = meshkit.factor_world(len(ranks), order=request.get("order"), **sizes)
        averaged = tuple(axis for axis in ("dp", "cp", "sp") if axis in {*sizes, "dp"})
        axis_sets = [(), *((axis,) for axis in sorted({*sizes, "dp"})), averaged]
        with meshkit.build_mesh(**request, groups=groups) as mesh:
            assert mesh.inside == (mesh.rank in ranks)
            if not mesh.inside:
                continue
            place = ranks.index(mesh.rank)
            assert mesh.coordinate == layout.coordinate(place)
            for axes in (*axis_sets, *(tuple(names.split()) for names in groups)):
                # the layout of positions is a second derivation of who belongs together
                expected = [ranks[int(p)] for p in layout.peers(place, *axes)]
                assert gather_members(mesh, *axes) == expected, (request, axes)
                assert all_reduce_members(mesh, *axes) == sorted(expected)
                assert expected[mesh.group(*axes).rank()] == mesh.rank


def test_law_11_a_collective_over_a_group_reaches_exactly_its_members(pool: Pool) -> None:
    worlds = [
        (sizes, groups)
        for sizes, groups in WORLDS
        if KEEPS_ORDER or not ("ranks" in sizes or "order" in sizes or "tp dp" in groups)
    ]
    pool.run(reach_members, worlds)


def on_fake_backend(rank: int, count: int, work: Callable[[], Any]) -> Any:
    """Run a function on one rank of a world on the fake backend of torch."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
    try:
        return work()
    finally:
        dist.destroy_process_group()


def play_fake_worlds() -> None:
    """Compare all ranks with init_device_mesh, which is law 10; build a mesh of a larger world."""
    for sizes in ({"dp": 4, "sp": 2, "tp": 1}, {"pp": 2, "dp": 3, "tp": 2}):
        layout, names = meshkit.Layout(**sizes), tuple(sizes)

        def ask(names: tuple[str, ...] = names, sizes: dict[str, int] = sizes) -> Any:
            made = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=names)
            groups = {n: dist.get_process_group_ranks(made.get_group(n)) for n in names}
            return [*made.get_coordinate()], groups, made.mesh.tolist()  # type: ignore[misc]

        for rank in range(layout.num_ranks):
            coordinate, groups, grid = on_fake_backend(rank, layout.num_ranks, ask)
            assert list(layout.coordinate(rank).values()) == coordinate
            assert layout.grid.tolist() == grid
            assert groups == {axis: layout.peers(rank, axis).tolist() for axis in sizes}
    layout = meshkit.factor_world(128, sp=2, tp=8)

    def build() -> None:
        with meshkit.build_mesh(sp=2, tp=8) as mesh:
            for axis in ("sp", "tp"):
                ranks = dist.get_process_group_ranks(mesh.group(axis))
                assert ranks == layout.peers(77, axis).tolist()
            assert (mesh.coordinate, mesh.size("dp")) == (layout.coordinate(77), 8)

    on_fake_backend(77, 128, build)


def test_law_10_equal_to_device_mesh_and_a_dry_run_on_the_fake_backend() -> None:
    meshkit.spawn(play_fake_worlds, 1, timeout=60)


PICTURE = """\
dp=4 sp=2 tp=1
      sp=0  sp=1
dp=0     0     1
dp=1     2     3
dp=2     4   [5]
dp=3     6     7"""


def call_getters_on_one_rank(folder: str) -> None:
    """Call every getter on rank 5 alone, while the other ranks take part in no collective."""
    with meshkit.build_mesh(dp=4, sp=2, tp=1) as mesh:
        done = Path(folder) / "done"
        if mesh.rank != 5:
            while not done.exists():  # not in a collective: rank 5 must not need us
                time.sleep(0.01)
            return
        try:
            before = live_groups()
            axis_sets: list[tuple[str, ...]] = [(), ("dp",), ("sp",), ("tp",), ("dp", "sp")]
            groups = [mesh.group(*axes) for axes in axis_sets]
            is_world = [group is dist.group.WORLD for group in groups]
            assert is_world == [True, False, False, False, True]
            assert all(mesh.group(*a) is g for a, g in zip(axis_sets, groups, strict=True))
            assert mesh.coordinate == {"dp": 2, "sp": 1, "tp": 0}
            assert mesh.coordinate is not mesh.coordinate
            sizes = mesh.size(), mesh.size("dp"), mesh.size("dp", "sp"), mesh.size("tp")
            assert sizes == (8, 4, 8, 1)
            peers = [mesh.peers(*axes).tolist() for axes in (("dp",), ("sp",), ())]
            assert peers == [[1, 3, 5, 7], [4, 5], [*range(8)]]
            assert (mesh.neighbor("dp"), mesh.neighbor("dp", -1)) == (7, 3)
            assert mesh.neighbor("dp", 3, wrap=False) is mesh.neighbor("sp", wrap=False) is None
            assert mesh.batch(global_batch=1024, micro_batch=4).accumulation_steps == 64
            assert dist.get_process_group_ranks(mesh.group("tp")) == [5]
            assert repr(mesh) == "Mesh(dp=4, sp=2, tp=1; rank 5: dp=2 sp=1 tp=0)"
            assert str(mesh) == PICTURE
            mesh.device_mesh()
            mesh.device_mesh("(dp sp) tp")
            assert live_groups() == before
        finally:
            done.touch()


def test_getters_answer_on_one_rank_alone_and_never_make_a_group(
    pool: Pool, tmp_path: Path
) -> None:
    pool.run(call_getters_on_one_rank, str(tmp_path))


def share_one_singleton() -> None:
    before = live_groups()
    with meshkit.build_mesh(dp=8, sp=1, tp=1, pp=1) as mesh:
        assert mesh.group("sp") is mesh.group("tp") is mesh.group("pp")
        assert all_reduce_members(mesh, "sp") == [mesh.rank]
        assert live_groups() == before + 1  # dp spans the world: it is the default group


def build_and_close_ten_times() -> None:
    """Check the descriptors and the threads after each build."""
    counts = []
    for _ in range(10):
        more = ["sp dp"] if KEEPS_ORDER else []
        with meshkit.build_mesh(dp=4, sp=2, groups=more) as mesh:
            for axes in ("dp", "sp", *more, ""):
                all_reduce_members(mesh, *axes.split())
            inside = (descriptors(), threads())
        mesh.close()
        counts.append((descriptors(), threads()))
    dist.barrier()
    assert len(set(counts)) == 1, counts
    assert inside[0] > counts[0][0], "the groups cost nothing, so this test sees nothing"
    assert inside[1] > counts[0][1]
    with pytest.raises(meshkit.MeshkitError, match=r"the mesh is closed\.\n  Fix: build_mesh\("):
        mesh.group("dp")
    assert repr(mesh).endswith("; closed)")


def fail_while_creating() -> None:
    """Build a mesh while a call of new_group fails on every rank; then build again."""
    for number, each in (1, False), (2, False), (1, True), (6, True):
        with pytest.MonkeyPatch.context() as slow_way:
            if each:
                create_every_group(slow_way)
            before = (descriptors(), threads())
            with pytest.MonkeyPatch.context() as patch:
                calls = fail_new_group(patch, number, RuntimeError("planted"), together=True)
                # the first rank to fail raises its error; the others quote it
                with pytest.raises((RuntimeError, meshkit.MeshkitError), match="planted"):
                    meshkit.build_mesh(dp=4, sp=2)
            assert len(calls) >= number
            assert (descriptors(), threads()) == before
            with meshkit.build_mesh(dp=4, sp=2) as mesh:
                assert all_reduce_members(mesh, "dp") == [*range(mesh.rank % 2, 8, 2)]


@pytest.mark.parametrize(
    "check", [share_one_singleton, build_and_close_ten_times, fail_while_creating]
)
def test_groups_on_eight_ranks(pool: Pool, check: Callable[[], None]) -> None:
    pool.run(check)


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
    assert meshkit.spawn(request_bad_meshes, 6, (joined,), timeout=60) == [ERRORS] * 6


def request_bad_meshes(joined: bool) -> list[str]:
    """Return the error of each bad request, for which nothing is made."""
    if joined:
        meshkit.init()
    kinds = []
    for request in BAD:
        before = live_groups()
        sizes = request.pop("sizes", None)
        kinds.append((error_of(lambda s=sizes, r=request: meshkit.build_mesh(s, **r)) or "")[0])
        assert (live_groups(), dist.is_initialized()) == (before, joined)
    return kinds


def list_group_names(told_of_each: bool) -> Any:
    """Return the group names, the number that torch counts, and a sum over a group of the user."""
    if told_of_each:
        create_every_group(pytest.MonkeyPatch())
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        groups = [mesh.group(*axes) for axes in ((), ("dp",), ("sp",), ("tp",))]
        own, ones = dist.new_group([1, 2]), torch.ones(1)
        if mesh.rank in (1, 2):
            dist.all_reduce(ones, group=own)
        return [group.group_name for group in groups], dist.get_pg_count(), int(ones)


def test_groups_have_the_names_that_torch_gives_if_it_creates_each() -> None:
    counted, created = (
        meshkit.spawn(list_group_names, 4, (each,), timeout=60) for each in (False, True)
    )
    assert counted == created
    for rank, (groups, count, ones) in enumerate(counted):
        assert len(set(groups)) == 4
        # the default group, those of dp and sp, the user's own, and those of one rank
        assert count == 1 + 2 * 2 + 1 + int(create.COUNTS_OWN_GROUPS)
        assert ones == (2 if rank in (1, 2) else 1)


def build_on_older_torch() -> None:
    """Build meshes as on a torch below 2.12, which sorts the ranks of a group."""
    pytest.MonkeyPatch().setattr(requests, "KEEPS_ORDER", False)
    error = error_of(lambda: meshkit.build_mesh(dp=2, ranks=[1, 0]))
    assert error is not None
    assert (error[0], dist.is_initialized()) == ("SpecError", False)
    ascending = {"dp": 2, "sp": 1, "tp": 1, "order": "tp sp dp", "groups": ["dp tp"]}
    meshkit.build_mesh(**ascending)  # type: ignore[arg-type]


def test_ranks_out_of_order_raise_on_a_torch_that_sorts() -> None:
    meshkit.spawn(build_on_older_torch, 2, timeout=60)


def join_foreign_group(path: str) -> None:
    """Build meshes in a job whose default group the user initialised with a timeout."""
    who, limit = meshkit.detect(), timedelta(seconds=77)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=who.rank,
        world_size=who.world_size,
        timeout=limit,
    )
    world = meshkit.init()
    assert (world.launcher, world.backend, str(world.device)) == ("existing group", "gloo", "cpu")
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        assert timeout_of(mesh.group("dp")) == timeout_of(mesh.group("sp")) == limit
        assert all_reduce_members(mesh, "dp") == [mesh.rank % 2, mesh.rank % 2 + 2]
    with meshkit.build_mesh(dp=2, sp=2, timeout=33) as mesh:
        assert timeout_of(mesh.group("dp")) == timedelta(seconds=33)
        with mesh.guard(timeout=7), meshkit.build_mesh(dp=2, sp=2) as inner:
            assert timeout_of(inner.group("dp")) == limit
    meshkit.shutdown()
    assert dist.is_initialized()
    dist.destroy_process_group()


def test_a_default_group_of_the_user_is_used_and_its_timeout_inherited(tmp_path: object) -> None:
    meshkit.spawn(join_foreign_group, 4, (f"{tmp_path}/store",), timeout=60)


def use_mesh_after_shutdown() -> None:
    """Use a mesh after shutdown, also after a new init."""
    mesh = meshkit.build_mesh(dp=2)
    mesh.group("dp")  # a group that was returned once is not returned for ever
    left = "mesh.group('dp'): the job it was built in has been left.\n"
    for _ in range(2):
        meshkit.shutdown()
        error = error_of(lambda: mesh.group("dp"))
        assert error == ("MeshkitError", f"{left}  Fix: build_mesh(dp=2) again.")
        meshkit.init()
    mesh.close()
    assert repr(mesh).endswith("; closed)")


def test_a_mesh_raises_after_shutdown() -> None:
    meshkit.spawn(use_mesh_after_shutdown, 2, timeout=60)


def arrive_late_on_one_rank(folder: str) -> Any:
    """Call build_mesh on rank 1 only after the others have raised; then build on all ranks."""
    world, gave_up = meshkit.init(), Path(folder) / "gave_up"
    while world.rank == 1 and not gave_up.exists():
        time.sleep(0.01)
    groups, began = live_groups(), time.monotonic()
    try:
        meshkit.build_mesh(dp=2, sp=2, arrival_timeout=5)
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
            "1 of 4 ranks did not arrive at build_mesh(dp=2, sp=2, arrival_timeout=5) within 5 s."
        )
        assert evidence.startswith("  Missing: 1 (dp=0 sp=1). Arrived: 0, 2-3 on host ")
        assert rest[0].startswith(f"  Last seen: 1 on host {socket.gethostname()}, pid ")
        assert rest[1:] == [
            *["  Rank 1 came after that."] * (rank == 1),
            "  All 4 ranks call build_mesh; with ranks=range(2), for example, the others are "
            "outside the mesh.",
            "  Fix: look at the logs of rank 1 first; if it skipped the call, make it there too.",
        ]
        assert (missing, groups) == ((1,), 0)
        assert seconds < 5 + 3 + BUSY  # as promised in tests/scenarios/promises.md
        assert members == [rank // 2 * 2, rank // 2 * 2 + 1]  # the next build works
