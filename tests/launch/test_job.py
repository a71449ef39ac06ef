"""init and shutdown on real processes."""

from __future__ import annotations

import random
import socket
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import current_job as current_job_module
from meshkit.launch import default_group
from meshkit.launch.current_job import current_job


def who() -> Any:
    world = meshkit.init()
    fields = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")
    values = [getattr(world, field) for field in fields]
    return values, world.launcher, str(world.device), world.backend, torch.get_num_threads()


def test_who_am_i() -> None:
    results = meshkit.spawn(who, 3, timeout=60)
    assert results == [([r, 3, r, 3, 0, 1], "spawn", "cpu", "gloo", 1) for r in range(3)]


def idempotent() -> Any:
    first = meshkit.init(timeout=50, seed=1)
    group = dist.group.WORLD
    again = meshkit.init()
    same = meshkit.init(timeout=50, backend="gloo", device="cpu", rank=first.rank)
    told = []
    for arguments in ({"backend": "nccl"}, {"rank": 5}, {"timeout": 9}, {"arrival_timeout": 9}):
        try:
            meshkit.init(**arguments)  # type: ignore[arg-type]
            told.append("accepted")
        except meshkit.LaunchError as error:
            told.append(str(error))
    return again is first, same == first, dist.group.WORLD is group, told


def test_init_is_idempotent_and_refuses_what_contradicts_it() -> None:
    for again, same, group, told in meshkit.spawn(idempotent, 2, timeout=60):
        assert (again, same, group) == (True, True, True)
        assert told[0] == (
            "init(backend='nccl'): the default process group already exists, with backend=gloo.\n"
            "  Fix: the first init() of the program decides; or meshkit.shutdown() before this one."
        )
        assert "init(rank=5): the default process group already exists, with rank=" in told[1]
        assert "with timeout=0:00:50." in told[2]
        assert "with arrival_timeout=0:00:50." in told[3]


def seeded(seed: int | None) -> Any:
    meshkit.init(seed=seed)
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_the_seed_goes_to_python_numpy_and_torch_alike_on_all_ranks() -> None:
    first, second = meshkit.spawn(seeded, 2, (7,), timeout=60)
    assert first == second
    assert meshkit.spawn(seeded, 1, (8,), timeout=60)[0] != first
    assert all(a != b for a, b in zip(*meshkit.spawn(seeded, 1, (8,)), first, strict=True))


def test_without_a_seed_the_generators_are_left_alone() -> None:
    runs = [meshkit.spawn(seeded, 1, (None,), timeout=60)[0][0] for _ in range(2)]
    assert runs[0] != runs[1]


def tcp() -> str:
    """An address on this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def at(method: str | None) -> dict[str, Any]:
    """Arguments of init for a meeting place; None leaves it to spawn's file."""
    return {} if method is None else {"init_method": method}


def times(**arguments: Any) -> Any:
    meshkit.init(**arguments)
    found = current_job()
    return found and (found.timeout, found.arrival_timeout)


def again_and_again(times: int, method: str | None = None) -> Any:
    """init, one all-reduce, shutdown; on one store."""
    sums, generations = [], []
    for _ in range(times):
        meshkit.init(arrival_timeout=20, **at(method))
        total = torch.ones(1)
        dist.all_reduce(total)
        found = current_job()
        sums.append(int(total))
        generations.append(found.generation if found else None)
        meshkit.shutdown()
        meshkit.shutdown()
        sums.append(dist.is_initialized())
    return sums, generations, len(current_job_module._JOBS)


@pytest.mark.parametrize("over", ["file", "tcp"])
def test_join_and_leave_ten_times_on_one_store(over: str) -> None:
    method = tcp() if over == "tcp" else None
    results = meshkit.spawn(again_and_again, 3, (10, method), timeout=100)
    assert [sums for sums, _, _ in results] == [[3, False] * 10] * 3
    assert [records for _, _, records in results] == [0] * 3
    if over == "file":  # which all ranks see to the end
        assert [generations for _, generations, _ in results] == [[*range(1, 11)]] * 3
    assert results[0][1] == results[1][1] == results[2][1]


def one_never_joins(seconds: float, absent: int, method: str | None = None) -> Any:
    if meshkit.detect().rank == absent:
        time.sleep(seconds + 4)
        return None
    began = time.monotonic()
    try:
        meshkit.init(timeout=600, arrival_timeout=seconds, **at(method))
    except meshkit.RankTimeoutError as error:
        return str(error), error.missing_ranks, time.monotonic() - began, dist.is_initialized()
    return "joined"


@pytest.mark.parametrize("over", ["file", pytest.param("tcp", marks=pytest.mark.slow)])
def test_a_rank_that_never_comes_is_named_within_the_deadline(over: str) -> None:
    method = tcp() if over == "tcp" else None
    results = meshkit.spawn(one_never_joins, 4, (1.5, 2, method), timeout=60)
    said = "init(timeout=600, arrival_timeout=1.5"
    said += f", init_method='{method}')" if method else ")"
    # who came first gives up first, and the others obey
    assert max(results[rank][2] for rank in (0, 1, 3)) >= 1.5
    for rank in (0, 1, 3):
        text, missing, seconds, initialised = results[rank]
        assert missing == (2,)
        assert seconds < 1.5 + 3  # as promised in live/README.md
        assert not initialised
        assert text == (
            f"1 of 4 ranks did not arrive at {said} within 1.5 s.\n"
            f"  Missing: 2. Arrived: 0-1, 3 on host {socket.gethostname()}.\n"
            "  Fix: look at the logs of rank 2 first."
        )


def test_rank_0_is_named_too_where_it_would_have_hosted_the_store() -> None:
    method = tcp()
    results = meshkit.spawn(one_never_joins, 3, (1.5, 0, method), timeout=60)
    for rank in (1, 2):
        text, missing, seconds, _ = results[rank]
        assert missing == (0,)
        assert seconds < 1.5 + 3  # as promised in live/README.md
        where = method.removeprefix("tcp://")
        assert text.splitlines()[0] == (
            f"init(timeout=600, arrival_timeout=1.5, init_method='{method}'): "
            f"no store answers rank {rank} at {where} within 1.5 s."
        )


def one_joins_late(seconds: float, folder: str) -> Any:
    """Rank 1 comes when the others have given up; then all try again."""
    gave_up = Path(folder) / "gave_up"
    while meshkit.detect().rank == 1 and not gave_up.exists():
        time.sleep(0.01)
    began = time.monotonic()
    try:
        meshkit.init(arrival_timeout=seconds)
        first = "joined"
    except meshkit.RankTimeoutError as error:
        first = str(error)
        gave_up.touch()
    waited = time.monotonic() - began
    world = meshkit.init(arrival_timeout=20)
    total = torch.ones(1)
    dist.all_reduce(total)
    return first, waited, int(total), world.rank


def test_a_rank_that_comes_late_meets_the_verdict_and_the_next_try_works(
    tmp_path: Path,
) -> None:
    results = meshkit.spawn(one_joins_late, 3, (1.5, str(tmp_path)), timeout=60)
    for first, _, total, _ in results:
        assert "1 of 3 ranks did not arrive at init(" in first
        assert "Missing: 1. Arrived: 0, 2 on host" in first
        assert total == 3
    first, waited, _, _ = results[1]
    assert "\n  Rank 1 came after that.\n" in first
    assert waited < 1


def worker_of_a_loader() -> list[int]:
    """A rank may have children of its own."""
    loader = torch.utils.data.DataLoader(list(range(4)), num_workers=1, batch_size=2)
    return [int(x) for batch in loader for x in batch]


def test_a_rank_may_have_children() -> None:
    assert meshkit.spawn(worker_of_a_loader, 1, timeout=60) == [[0, 1, 2, 3]]


def raw_errors() -> list[str]:
    """What used to come out as someone else's exception."""
    told = []
    for arguments in (
        {"init_method": "tcp://h:abc", "rank": 0, "world_size": 2},
        {"local_rank": "1"},
    ):
        try:
            meshkit.init(**arguments)
            told.append("accepted")
        except meshkit.LaunchError as error:
            told.append(str(error).splitlines()[0])
    world = meshkit.init(seed=np.int64(3))  # type: ignore[arg-type]
    try:
        meshkit.init(device="toaster")
        told.append("accepted")
    except meshkit.LaunchError as error:
        told.append(str(error).splitlines()[0])
    sources = {name for name in world.__dataclass_fields__ if getattr(world, name) is not None}
    told.append(str(sorted(sources - world.sources.keys() - {"launcher", "sources"})))
    return told


def test_nobody_elses_exceptions() -> None:
    (told,) = meshkit.spawn(raw_errors, 1, timeout=60)
    assert told == [
        "init(init_method='tcp://h:abc', rank=0, world_size=2): rank 0 of 2 has no address "
        "of the job's store.",
        "init(local_rank='1'): local_rank is '1'.",
        "init(device='toaster'): torch does not know the device 'toaster'.",
        "[]",
    ]


def times_of(arguments: dict[str, float]) -> Any:
    return times(**arguments)


def test_two_times() -> None:
    def of(**arguments: float) -> object:
        return meshkit.spawn(times_of, 1, (arguments,), timeout=60)[0]

    seconds = [timedelta(seconds=n) for n in (300, 20, 40)]
    assert of() == (None, seconds[0])
    assert of(timeout=20) == (seconds[1], seconds[1])
    assert of(arrival_timeout=40) == (None, seconds[2])
    assert of(timeout=20, arrival_timeout=40) == (seconds[1], seconds[2])


def explicit(path: str) -> Any:
    """The arguments say another rank than the launcher does."""
    said = meshkit.detect()
    world = meshkit.init(
        init_method=f"file://{path}", rank=1 - said.rank, world_size=2, local_rank=0
    )
    return said.rank, world.rank, dist.get_rank(), world.local_rank, dict(world.sources)


def test_explicit_arguments_win(tmp_path: Path) -> None:
    results = meshkit.spawn(explicit, 2, (f"{tmp_path}/store",), timeout=60)
    for said, rank, group_rank, local_rank, sources in results:
        assert rank == group_rank == 1 - said
        assert local_rank == 0
        assert {sources[name] for name in ("rank", "world_size", "local_rank")} == {"argument"}


def refused_arguments() -> list[str]:
    told = []
    bad: list[dict[str, Any]] = [
        {"seed": -1},
        {"seed": True},
        {"timeout": 0},
        {"arrival_timeout": float("nan")},
        {"device": "toaster"},
        {"backend": "smoke"},
        {"rank": -1},
        {"world_size": 0},
        {"rank": 9, "world_size": 8},
        {"init_method": "carrier://pigeon", "rank": 0, "world_size": 2},
    ]
    for arguments in bad:
        try:
            meshkit.init(**arguments)
            told.append("accepted")
        except meshkit.MeshkitError as error:
            told.append(f"{type(error).__name__}: {error}")
    told.append(str(dist.is_initialized()))
    return told


def test_arguments_that_cannot_be_are_refused_before_anything_is_touched() -> None:
    (told,) = meshkit.spawn(refused_arguments, 1, timeout=60)
    assert [text.partition(":")[0] for text in told] == [
        *("SpecError",) * 4,
        *("LaunchError",) * 6,
        "False",
    ]
    assert told[0] == (
        "SpecError: init(seed=-1): seed is -1.\n"
        "  Python, numpy and torch all accept ints from 0 to 4294967295.\n"
        "  Fix: init(seed=0), or seed='shared', which rank 0 draws for all."
    )
    assert told[4] == (
        "LaunchError: init(device='toaster'): torch does not know the device 'toaster'.\n"
        "  Fix: device='cpu' or 'cuda'."
    )
    assert told[8] == (
        "LaunchError: init(rank=9, world_size=8): there is no rank 9 of 8.\n"
        "  Fix: a rank from 0 to 7."
    )
    assert told[9].startswith(
        "LaunchError: init(init_method='carrier://pigeon', rank=0, world_size=2): rank 0 of 2 "
        "has no address of the job's store.\n"
        "  init_method='carrier://pigeon', MASTER_ADDR=None, MASTER_PORT=None (spawn).\n"
        "  Fix: one of these, the same on all ranks:\n"
    )


@pytest.mark.parametrize(
    ("backend", "bound"), [("nccl", True), ("gloo", False), ("cpu:gloo,cuda:nccl", False)]
)
def test_nccl_is_bound_to_its_device_at_once(
    backend: str, bound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for init_process_group: no GPU was ever here."""
    asked: dict[str, Any] = {}
    played = SimpleNamespace(
        init_process_group=lambda name, **options: asked.update(options, backend=name),
        get_rank=lambda: 1,
        get_world_size=lambda: 2,
    )
    monkeypatch.setattr(default_group, "dist", played)
    timed: list[timedelta | None] = []
    monkeypatch.setattr(default_group, "default_group", lambda: None)
    monkeypatch.setattr(default_group, "set_timeout", lambda group, timeout: timed.append(timeout))
    device, connect = torch.device("cuda", 1), timedelta(seconds=2)
    world = meshkit.detect({"RANK": "1", "WORLD_SIZE": "2"})
    world = replace(world, backend=backend, device=device)
    default_group.create_default_group(world, dist.HashStore(), None, connect)
    assert asked["backend"] == backend
    assert asked.get("device_id") == (device if bound else None)
    assert (asked["rank"], asked["world_size"]) == (1, 2)
    # gloo connects under the one time, and is given the other afterwards
    assert (asked["timeout"], timed) == ((None, []) if bound else (connect, [None]))


def test_mpi_says_itself_who_is_who(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for a torch built with MPI; it must say the same as the launcher."""
    left: list[bool] = []
    asked: dict[str, Any] = {}
    played = SimpleNamespace(
        init_process_group=lambda name, **options: asked.update(options),
        get_rank=lambda: 0,
        get_world_size=lambda: 1,
        destroy_process_group=lambda: left.append(True),
    )
    monkeypatch.setattr(default_group, "dist", played)
    world = replace(meshkit.detect({"RANK": "1", "WORLD_SIZE": "2"}), backend="mpi")
    with pytest.raises(meshkit.LaunchError) as caught:
        default_group.create_default_group(world, dist.HashStore(), None, timedelta(seconds=2))
    assert str(caught.value) == (
        "the launcher counts rank 1 of 2, the backend mpi counts 0 of 1.\n"
        "  Fix: start with the mpirun of the MPI that torch was built with."
    )
    assert (asked, left) == ({"timeout": None}, [True])


def test_one_process_in_an_allocation_of_several_tasks_warns_at_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MESHKIT_SPAWN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with pytest.warns(RuntimeWarning, match="SLURM_NTASKS") as caught:
        meshkit.init()
    meshkit.shutdown()
    assert caught[0].filename == __file__
    with pytest.warns(RuntimeWarning, match="SLURM_NTASKS") as caught:
        mesh = meshkit.build_mesh(dp=1)
    mesh.close()
    meshkit.shutdown()
    assert caught[0].filename == __file__
