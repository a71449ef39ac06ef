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
from meshkit.launch import default_group
from meshkit.launch import job as current_job_module
from meshkit.launch.job import current_job
from meshkit.launch.store import Store


def describe_rank() -> Any:
    world = meshkit.init()
    fields = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")
    values = [getattr(world, field) for field in fields]
    return values, world.launcher, str(world.device), world.backend, torch.get_num_threads()


def test_init_returns_the_world_of_each_rank() -> None:
    results = meshkit.spawn(describe_rank, 3, timeout=60)
    assert results == [([r, 3, r, 3, 0, 1], "spawn", "cpu", "gloo", 1) for r in range(3)]


def repeat_init() -> Any:
    first = meshkit.init(timeout=50, seed=1)
    group = dist.group.WORLD
    again = meshkit.init()
    same = meshkit.init(timeout=50, backend="gloo", device="cpu", rank=first.rank)
    errors = []
    for arguments in ({"backend": "nccl"}, {"rank": 5}, {"timeout": 9}, {"arrival_timeout": 9}):
        try:
            meshkit.init(**arguments)  # type: ignore[arg-type]
            errors.append("accepted")
        except meshkit.LaunchError as error:
            errors.append(str(error))
    return again is first, same == first, dist.group.WORLD is group, errors


def test_init_is_idempotent_and_a_contradicting_argument_raises() -> None:
    for again, same, group, errors in meshkit.spawn(repeat_init, 2, timeout=60):
        assert (again, same, group) == (True, True, True)
        assert errors[0] == (
            "init(backend='nccl'): the default process group already exists, with backend=gloo.\n"
            "  Fix: the first init() of the program decides; or meshkit.shutdown() before this one."
        )
        assert "init(rank=5): the default process group already exists, with rank=" in errors[1]
        assert "with timeout=0:00:50." in errors[2]
        assert "with arrival_timeout=0:00:50." in errors[3]


def draw_numbers(seed: int | None) -> Any:
    meshkit.init(seed=seed)
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_the_seed_goes_to_python_numpy_and_torch_alike_on_all_ranks() -> None:
    first, second = meshkit.spawn(draw_numbers, 2, (7,), timeout=60)
    assert first == second
    assert meshkit.spawn(draw_numbers, 1, (8,), timeout=60)[0] != first
    assert all(a != b for a, b in zip(*meshkit.spawn(draw_numbers, 1, (8,)), first, strict=True))


def test_without_a_seed_the_generators_are_left_alone() -> None:
    runs = [meshkit.spawn(draw_numbers, 1, (None,), timeout=60)[0][0] for _ in range(2)]
    assert runs[0] != runs[1]


def tcp_url() -> str:
    """Return an address on this machine with a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def store_arguments(method: str | None) -> dict[str, Any]:
    """Return the arguments of init for a store; None takes the file of spawn."""
    return {} if method is None else {"init_method": method}


def timeouts_after_init(arguments: dict[str, float]) -> Any:
    meshkit.init(**arguments)  # type: ignore[arg-type]
    job = current_job()
    return job and (job.timeout, job.arrival_timeout)


def join_repeatedly(times: int, method: str | None = None) -> Any:
    """Join, run one all-reduce and leave, several times on one store."""
    sums, generations = [], []
    for _ in range(times):
        meshkit.init(arrival_timeout=20, **store_arguments(method))
        total = torch.ones(1)
        dist.all_reduce(total)
        job = current_job()
        sums.append(int(total))
        generations.append(job.generation if job else None)
        meshkit.shutdown()
        meshkit.shutdown()
        sums.append(dist.is_initialized())
    return sums, generations, len(current_job_module._JOBS)


@pytest.mark.parametrize("over", ["file", "tcp"])
def test_join_and_leave_ten_times_on_one_store(over: str) -> None:
    method = tcp_url() if over == "tcp" else None
    results = meshkit.spawn(join_repeatedly, 3, (10, method), timeout=100)
    assert [sums for sums, _, _ in results] == [[3, False] * 10] * 3
    assert [num_jobs for _, _, num_jobs in results] == [0] * 3
    if over == "file":  # all ranks see the file to the end
        assert [generations for _, generations, _ in results] == [[*range(1, 11)]] * 3
    assert results[0][1] == results[1][1] == results[2][1]


def one_never_joins(seconds: float, absent: int, method: str | None = None) -> Any:
    if meshkit.detect().rank == absent:
        time.sleep(seconds + 4)
        return None
    began = time.monotonic()
    try:
        meshkit.init(timeout=600, arrival_timeout=seconds, **store_arguments(method))
    except meshkit.RankTimeoutError as error:
        return str(error), error.missing_ranks, time.monotonic() - began, dist.is_initialized()
    return "joined"


@pytest.mark.parametrize("over", ["file", pytest.param("tcp", marks=pytest.mark.slow)])
def test_a_missing_rank_is_named_within_the_deadline(over: str) -> None:
    method = tcp_url() if over == "tcp" else None
    results = meshkit.spawn(one_never_joins, 4, (1.5, 2, method), timeout=60)
    call = "init(timeout=600, arrival_timeout=1.5"
    call += f", init_method='{method}')" if method else ")"
    # the rank that came first decides at its deadline, and the others follow its decision
    assert max(results[rank][2] for rank in (0, 1, 3)) >= 1.5
    for rank in (0, 1, 3):
        text, missing, seconds, initialised = results[rank]
        assert missing == (2,)
        assert seconds < 1.5 + 3  # as promised in docs/evidence/promises.md
        assert not initialised
        assert text == (
            f"1 of 4 ranks did not arrive at {call} within 1.5 s.\n"
            f"  Missing: 2. Arrived: 0-1, 3 on host {socket.gethostname()}.\n"
            "  Fix: look at the logs of rank 2 first."
        )


@pytest.mark.slow
def test_a_missing_rank_0_that_hosts_the_store_is_named() -> None:
    method = tcp_url()
    results = meshkit.spawn(one_never_joins, 3, (1.5, 0, method), timeout=60)
    for rank in (1, 2):
        text, missing, seconds, _ = results[rank]
        assert missing == (0,)
        assert seconds < 1.5 + 3  # as promised in docs/evidence/promises.md
        endpoint = method.removeprefix("tcp://")
        assert text.splitlines()[0] == (
            f"init(timeout=600, arrival_timeout=1.5, init_method='{method}'): "
            f"no store answers rank {rank} at {endpoint} within 1.5 s."
        )


def one_joins_late(seconds: float, folder: str) -> Any:
    """Rank 1 comes after the deadline of the others; then all try again."""
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


def test_a_late_rank_reads_the_decision_and_the_next_init_works(tmp_path: Path) -> None:
    results = meshkit.spawn(one_joins_late, 3, (1.5, str(tmp_path)), timeout=60)
    for first, _, total, _ in results:
        assert "1 of 3 ranks did not arrive at init(" in first
        assert "Missing: 1. Arrived: 0, 2 on host" in first
        assert total == 3
    first, waited, _, _ = results[1]
    assert "\n  Rank 1 came after that.\n" in first
    assert waited < 1


def load_in_a_worker() -> list[int]:
    """Load data with a child process of this rank."""
    loader = torch.utils.data.DataLoader(list(range(4)), num_workers=1, batch_size=2)
    return [int(x) for batch in loader for x in batch]


def test_a_rank_may_have_children() -> None:
    assert meshkit.spawn(load_in_a_worker, 1, timeout=60) == [[0, 1, 2, 3]]


def invalid_arguments_of_other_libraries() -> list[str]:
    """Return the errors of arguments that torch, numpy or urllib would reject."""
    errors = []
    for arguments in (
        {"init_method": "tcp://h:abc", "rank": 0, "world_size": 2},
        {"local_rank": "1"},
    ):
        try:
            meshkit.init(**arguments)
            errors.append("accepted")
        except meshkit.LaunchError as error:
            errors.append(str(error).splitlines()[0])
    world = meshkit.init(seed=np.int64(3))  # type: ignore[arg-type]
    try:
        meshkit.init(device="toaster")
        errors.append("accepted")
    except meshkit.LaunchError as error:
        errors.append(str(error).splitlines()[0])
    fields = {name for name in world.__dataclass_fields__ if getattr(world, name) is not None}
    texts = {"launcher", "sources", "size_evidence"}
    errors.append(str(sorted(fields - world.sources.keys() - texts)))
    return errors


def test_invalid_arguments_raise_no_error_of_another_library() -> None:
    (errors,) = meshkit.spawn(invalid_arguments_of_other_libraries, 1, timeout=60)
    assert errors == [
        "init(init_method='tcp://h:abc', rank=0, world_size=2): rank 0 of 2 has no address "
        "of the job's store.",
        "init(local_rank='1'): local_rank is '1'.",
        "init(device='toaster'): torch does not know the device 'toaster'.",
        "[]",
    ]


def test_the_timeout_of_collectives_and_the_arrival_timeout() -> None:
    def of(**arguments: float) -> object:
        return meshkit.spawn(timeouts_after_init, 1, (arguments,), timeout=60)[0]

    seconds = [timedelta(seconds=n) for n in (300, 20, 40)]
    assert of() == (None, seconds[0])
    assert of(timeout=20) == (seconds[1], seconds[1])
    assert of(arrival_timeout=40) == (None, seconds[2])
    assert of(timeout=20, arrival_timeout=40) == (seconds[1], seconds[2])


def init_with_other_rank(path: str) -> Any:
    """Pass another rank than the launcher's."""
    detected = meshkit.detect()
    world = meshkit.init(
        init_method=f"file://{path}", rank=1 - detected.rank, world_size=2, local_rank=0
    )
    return detected.rank, world.rank, dist.get_rank(), world.local_rank, dict(world.sources)


def test_explicit_arguments_win(tmp_path: Path) -> None:
    results = meshkit.spawn(init_with_other_rank, 2, (f"{tmp_path}/store",), timeout=60)
    for detected, rank, group_rank, local_rank, sources in results:
        assert rank == group_rank == 1 - detected
        assert local_rank == 0
        assert {sources[name] for name in ("rank", "world_size", "local_rank")} == {"argument"}


def invalid_arguments() -> list[str]:
    errors = []
    invalid: list[dict[str, Any]] = [
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
    for arguments in invalid:
        try:
            meshkit.init(**arguments)
            errors.append("accepted")
        except meshkit.MeshkitError as error:
            errors.append(f"{type(error).__name__}: {error}")
    errors.append(str(dist.is_initialized()))
    return errors


def test_invalid_arguments_raise_before_a_group_exists() -> None:
    (errors,) = meshkit.spawn(invalid_arguments, 1, timeout=60)
    assert [text.partition(":")[0] for text in errors] == [
        *("SpecError",) * 4,
        *("LaunchError",) * 6,
        "False",
    ]
    assert errors[0] == (
        "SpecError: init(seed=-1): seed is -1.\n"
        "  Python, numpy and torch all accept ints from 0 to 4294967295.\n"
        "  Fix: seed=0, or seed='shared', which rank 0 draws for all."
    )
    assert errors[4] == (
        "LaunchError: init(device='toaster'): torch does not know the device 'toaster'.\n"
        "  Fix: device='cpu' or 'cuda'."
    )
    assert errors[8] == (
        "LaunchError: init(rank=9, world_size=8): there is no rank 9 of 8.\n"
        "  Fix: a rank from 0 to 7."
    )
    assert errors[9].startswith(
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
    """Uses a fake of init_process_group, since no GPU is needed."""
    options_seen: dict[str, Any] = {}
    fake = SimpleNamespace(
        init_process_group=lambda name, **options: options_seen.update(options, backend=name),
        get_rank=lambda: 1,
        get_world_size=lambda: 2,
    )
    monkeypatch.setattr(default_group, "dist", fake)
    timed: list[timedelta | None] = []
    monkeypatch.setattr(default_group, "default_group", lambda: None)
    monkeypatch.setattr(default_group, "set_timeout", lambda group, timeout: timed.append(timeout))
    device, connect = torch.device("cuda", 1), timedelta(seconds=2)
    world = meshkit.detect({"RANK": "1", "WORLD_SIZE": "2"})
    world = replace(world, backend=backend, device=device)
    default_group.create_default_group(world, Store(dist.HashStore(), world), None, connect)
    assert options_seen["backend"] == backend
    assert options_seen.get("device_id") == (device if bound else None)
    assert (options_seen["rank"], options_seen["world_size"]) == (1, 2)
    # gloo connects within the first timeout, and gets the other one afterwards
    assert (options_seen["timeout"], timed) == ((None, []) if bound else (connect, [None]))


def test_an_mpi_that_counts_other_ranks_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a fake of a torch built with MPI, which must agree with the launcher."""
    left: list[bool] = []
    options_seen: dict[str, Any] = {}
    fake = SimpleNamespace(
        init_process_group=lambda name, **options: options_seen.update(options),
        get_rank=lambda: 0,
        get_world_size=lambda: 1,
        destroy_process_group=lambda: left.append(True),
    )
    monkeypatch.setattr(default_group, "dist", fake)
    world = replace(meshkit.detect({"RANK": "1", "WORLD_SIZE": "2"}), backend="mpi")
    with pytest.raises(meshkit.LaunchError) as caught:
        default_group.create_default_group(
            world, Store(dist.HashStore(), world), None, timedelta(seconds=2)
        )
    assert str(caught.value) == (
        "the launcher counts rank 1 of 2, the backend mpi counts 0 of 1.\n"
        "  Fix: start with the mpirun of the MPI that torch was built with."
    )
    assert (options_seen, left) == ({"timeout": None}, [True])


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
