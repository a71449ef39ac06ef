"""init and shutdown on real processes, their seeds and their claims on devices."""

from __future__ import annotations

import os
import random
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import device, join
from meshkit.launch import job as current_job_module
from meshkit.launch.creation import GroupStore
from meshkit.launch.default_group import READ_AT_ONCE
from meshkit.launch.job import require_job
from meshkit.launch.world import MAX_WORLD_SIZE, World
from tests.faults import free_address
from tests.promises import BUSY


def describe_rank() -> Any:
    world = meshkit.init()
    fields = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "num_nodes")
    known = {name for name in world.__dataclass_fields__ if getattr(world, name) is not None}
    unexplained = known - world.sources.keys() - {"launcher", "sources", "size_evidence"}
    values = [getattr(world, field) for field in fields]
    others = world.launcher, str(world.device), world.backend, torch.get_num_threads()
    return values, others, unexplained


def test_init_returns_the_world_of_each_rank_and_the_source_of_each_fact() -> None:
    others = "spawn", "cpu", "gloo", 1
    results = meshkit.spawn(describe_rank, 3, timeout=60)
    assert results == [([r, 3, r, 3, 0, 1], others, set()) for r in range(3)]


def outcome(arguments: dict[str, Any]) -> str:
    """Return the class of the error of init, or "joined"."""
    try:
        meshkit.init(**arguments)
    except meshkit.MeshkitError as error:
        return type(error).__name__
    return "joined"


def repeat_init() -> Any:
    first = meshkit.init(timeout=50, seed=1)
    group = dist.group.WORLD
    again = meshkit.init()
    same = meshkit.init(timeout=50, backend="gloo", device="cpu", rank=first.rank)
    others: list[Any] = [{"backend": "nccl"}, {"rank": 5}, {"timeout": 9}, {"arrival_timeout": 9}]
    assert meshkit.init(bind=False) is first  # gloo is not bound
    is_one = again is first and same == first and dist.group.WORLD is group
    return is_one, {outcome(arguments) for arguments in others}


def test_init_is_idempotent_and_a_contradicting_argument_raises() -> None:
    assert meshkit.spawn(repeat_init, 2, timeout=60) == [(True, {"LaunchError"})] * 2


def join_with_binding(binds: list[bool]) -> str:
    return outcome({"bind": binds[meshkit.detect().rank], "arrival_timeout": 20})


def test_ranks_that_bind_and_that_do_not_disagree() -> None:
    assert meshkit.spawn(join_with_binding, 2, ([True, False],)) == ["DisagreementError"] * 2


def join_with_version(versions: list[str]) -> str:
    with mock.patch.object(torch, "__version__", versions[meshkit.detect().rank]):
        return outcome({"arrival_timeout": 20})


def test_two_versions_of_torch_disagree() -> None:
    versions = ["2.13.0+cpu", "2.12.0+cpu"]
    assert meshkit.spawn(join_with_version, 2, (versions,)) == ["DisagreementError"] * 2


def test_a_job_has_at_most_two_million_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(MAX_WORLD_SIZE))
    assert join.identify().world_size == MAX_WORLD_SIZE
    monkeypatch.setenv("WORLD_SIZE", str(MAX_WORLD_SIZE + 1))
    with pytest.raises(meshkit.LaunchError, match="WORLD_SIZE is 2097153"):
        join.identify()


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"seed": -1}, "SpecError"),
    ({"seed": 2**32}, "SpecError"),
    ({"seed": True}, "SpecError"),
    ({"bind": None}, "SpecError"),
    ({"bind": "cuda:0"}, "SpecError"),
    ({"timeout": 0}, "SpecError"),
    ({"arrival_timeout": float("nan")}, "SpecError"),
    ({"device": "toaster"}, "LaunchError"),
    ({"backend": "smoke"}, "LaunchError"),
    ({"rank": -1}, "LaunchError"),
    ({"world_size": 0}, "LaunchError"),
    ({"local_rank": "1"}, "LaunchError"),
    ({"rank": 9, "world_size": 8}, "LaunchError"),
    ({"init_method": "carrier://pigeon", "rank": 0, "world_size": 2}, "LaunchError"),
    ({"init_method": "tcp://h:abc", "rank": 0, "world_size": 2}, "LaunchError"),
]


def invalid_arguments() -> Any:
    return [outcome(arguments) for arguments, _ in INVALID], dist.is_initialized()


def test_invalid_arguments_raise_before_a_group_exists() -> None:
    expected = [kind for _, kind in INVALID]
    assert meshkit.spawn(invalid_arguments, 1, timeout=60) == [(expected, False)]


TIMEOUTS = {  # arguments of init to the timeout of collectives, and the arrival timeout
    (): (None, 300),
    (("timeout", 20),): (20, 20),
    (("arrival_timeout", 40),): (None, 40),
    (("timeout", 20), ("arrival_timeout", 40)): (20, 40),
}


def timeouts_after_init() -> Any:
    seconds = []
    for arguments in TIMEOUTS:
        meshkit.init(**dict(arguments))
        job = require_job()
        times = job.timeout, job.arrival_timeout
        seconds.append(tuple(time and time.total_seconds() for time in times))
        meshkit.shutdown()
    return seconds


def test_the_timeout_of_collectives_and_the_arrival_timeout() -> None:
    assert meshkit.spawn(timeouts_after_init, 1, timeout=60) == [[*TIMEOUTS.values()]]


def join_repeatedly(times: int, method: str | None = None) -> Any:
    """Join, run one all-reduce and leave, several times on one store."""
    sums, generations = [], []
    for _ in range(times):
        meshkit.init(arrival_timeout=20, init_method=method)
        total = torch.ones(1)
        dist.all_reduce(total)
        job = require_job()  # kept until the next one, or the last rank to leave removes the file
        sums.append(int(total))
        generations.append(job.generation)
        meshkit.shutdown()
        meshkit.shutdown()
        sums.append(dist.is_initialized())
    return sums, generations, len(current_job_module._JOBS)


@pytest.mark.parametrize("over", ["file", "tcp"])
def test_join_and_leave_several_times_on_one_store(over: str) -> None:
    method = free_address() if over == "tcp" else None
    results = meshkit.spawn(join_repeatedly, 3, (5, method), timeout=100)
    assert [sums for sums, _, _ in results] == [[3, False] * 5] * 3
    assert [num_jobs for _, _, num_jobs in results] == [0] * 3
    if over == "file":  # all ranks see the file to the end
        assert [generations for _, generations, _ in results] == [[*range(1, 6)]] * 3
    assert results[0][1] == results[1][1] == results[2][1]


def one_never_joins(seconds: float, absent: int, method: str | None = None) -> Any:
    if meshkit.detect().rank == absent:
        time.sleep(seconds + 4)
        return None
    began = time.monotonic()
    try:
        meshkit.init(timeout=600, arrival_timeout=seconds, init_method=method)
    except meshkit.RankTimeoutError as error:
        return error.missing_ranks, time.monotonic() - began, dist.is_initialized()
    return "joined"


CASES = [("file", 2), *(pytest.param("tcp", rank, marks=pytest.mark.slow) for rank in (2, 0))]


@pytest.mark.parametrize(("over", "absent"), CASES)  # rank 0 hosts the store over tcp
def test_a_missing_rank_is_named_within_the_deadline(over: str, absent: int) -> None:
    method = free_address() if over == "tcp" else None
    results = meshkit.spawn(one_never_joins, 4, (1.5, absent, method), timeout=60)
    del results[absent]
    # the rank that came first decides at its deadline, and the others follow its decision
    assert max(seconds for _, seconds, _ in results) >= (1.5 if absent else 1)
    for missing, seconds, initialised in results:
        assert (missing, initialised) == ((absent,), False)
        assert seconds < 1.5 + 3 + BUSY  # as promised in tests/scenarios/promises.md


def count_reads(method: str | None) -> Any:
    """Return how many addresses each read of a group takes: by default, and as the user chose."""
    counts, read, read_all = list[int](), GroupStore.get, GroupStore.multi_get

    def one(store: GroupStore, key: str) -> Any:
        counts.append(1)
        return read(store, key)

    def several(store: GroupStore, keys: list[str]) -> Any:
        counts.append(len(keys))
        return read_all(store, keys)

    with mock.patch.multiple(GroupStore, get=one, multi_get=several):
        for chosen in (None, "0"):
            if chosen is not None:
                os.environ[READ_AT_ONCE] = chosen
            meshkit.init(init_method=method)
            mesh = meshkit.build_mesh(dp=2, tp=2)
            mesh.verify()
            mesh.close()
            meshkit.shutdown()
            assert os.environ.get(READ_AT_ONCE) == chosen
    return counts


@pytest.mark.parametrize("over", ["file", "tcp"])
def test_a_group_reads_the_addresses_of_all_peers_at_once(over: str) -> None:
    method = free_address() if over == "tcp" else None
    for counts in meshkit.spawn(count_reads, 4, (method,), timeout=60):
        # the default group, those of an axis, and that of one rank; then one by one
        assert counts == [4, 2, 2, 1] + [1] * 9


def one_has_another_build(seed: object) -> Any:
    """Join where a warning is an error, and again where it is not; rank 1 has another build."""
    if meshkit.detect().rank == 1:
        torch.__version__ = torch.__version__.partition("+")[0] + "+other"
    began = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((RuntimeWarning, meshkit.MeshkitError)) as raised:
            meshkit.init(seed=seed, arrival_timeout=20)
    waited = time.monotonic() - began
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        meshkit.init(seed=seed, arrival_timeout=20)
    total = torch.ones(1)
    dist.all_reduce(total)
    return raised.typename, str(raised.value), waited, len(caught), int(total)


@pytest.mark.parametrize("seed", [None, "shared"])  # rank 0 draws it
def test_a_warning_of_another_build_that_is_an_error_reaches_all_ranks(seed: object) -> None:
    results = meshkit.spawn(one_has_another_build, 3, (seed,), timeout=60)
    assert "RuntimeWarning" in {kind for kind, *_ in results}
    for _, text, waited, _, total in results:
        assert "+other" in text
        assert "Fix: install one build of torch on all hosts." in text
        assert waited < 5
        assert total == 3
    assert sum(warned for *_, warned, _ in results) in (1, 2)  # those unlike the first one


def one_joins_late(seconds: float, folder: str) -> Any:
    """Rank 1 comes after the deadline of the others; then all try again."""
    gave_up = Path(folder) / "gave_up"
    while meshkit.detect().rank == 1 and not gave_up.exists():
        time.sleep(0.01)
    began = time.monotonic()
    try:
        meshkit.init(arrival_timeout=seconds)
        missing, is_late = (), False
    except meshkit.RankTimeoutError as error:
        missing, is_late = error.missing_ranks, "Rank 1 came after that." in error.evidence
        gave_up.touch()
    waited = time.monotonic() - began
    meshkit.init(arrival_timeout=20)
    total = torch.ones(1)
    dist.all_reduce(total)
    return missing, is_late, int(total), waited


def test_a_late_rank_reads_the_decision_and_the_next_init_works(tmp_path: Path) -> None:
    results = meshkit.spawn(one_joins_late, 3, (1.5, str(tmp_path)), timeout=60)
    expected = [((1,), rank == 1, 3) for rank in range(3)]
    assert [result[:3] for result in results] == expected
    assert results[1][3] < 1


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


@pytest.mark.parametrize(("rank", "error"), [(0, "RankTimeoutError"), (1, "DisagreementError")])
def test_a_thread_that_joins_while_another_joins_raises(
    rank: int, error: str, tmp_path: Path
) -> None:
    """If it asks for another rank, the first thread would wait for it, and reads that it failed."""
    options = {"init_method": f"file://{tmp_path}/store", "world_size": 2, "local_rank": 0}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(outcome, {**options, "rank": 0, "arrival_timeout": 3})
        while "world" not in join._JOINING:
            time.sleep(0.01)
        with pytest.raises(meshkit.LaunchError, match="another thread"):
            meshkit.init(**options, rank=rank)  # type: ignore[arg-type]
        assert first.result(30) == error
    assert "world" not in join._JOINING


# ------------------------------------------------------------------------ seeds


SEEDS = [7, 7, "shared", "shared", 8, None]


def draw(seeds: list[int | str | None]) -> Any:
    """Return the first number of every generator after each init."""
    draws = []
    for seed in seeds:
        meshkit.init(seed=seed)
        draws.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
    return draws


def test_a_seed_goes_to_all_generators_of_all_ranks() -> None:
    first, *others = meshkit.spawn(draw, 3, (SEEDS,), timeout=60)
    assert others == [first, first]
    assert first[0] == first[1]
    (unseeded,) = meshkit.spawn(draw, 1, ([None],), timeout=60)
    for generator in zip(*first[1:], *unseeded, strict=True):  # "shared" draws a new seed each time
        assert len({*generator}) == 6


DIFFERENT: list[list[int | str | None]] = [[7, 7, 8], [None, 3, 3], [3, "shared", "shared"]]


def join_with_different_seeds() -> Any:
    """Try several seeds, one after the other, each on its rank."""
    errors = []
    for by_rank in DIFFERENT:
        began = time.monotonic()
        with pytest.raises(meshkit.DisagreementError) as caught:
            meshkit.init(arrival_timeout=30, seed=by_rank[meshkit.detect().rank])
        assert time.monotonic() - began < 15
        assert not dist.is_initialized()
        errors.append((str(caught.value).partition("\n")[2], caught.value.requests))
    return errors


def test_different_seeds_are_reported_on_all_ranks() -> None:
    first, *others = meshkit.spawn(join_with_different_seeds, 3, timeout=100)
    assert others == [first, first]
    for by_rank, (_, requests) in zip(DIFFERENT, first, strict=True):
        for rank, seed in enumerate(by_rank):
            assert f"seed={seed!r}" in requests[rank]


def seed_again() -> str:
    """Call init a second time with different seeds on the two ranks."""
    meshkit.init(seed=1)
    dist.barrier()
    kind = outcome({"seed": 5 + meshkit.detect().rank})
    dist.barrier()
    return kind


def test_a_later_seed_that_differs_is_reported_on_the_second_rank() -> None:
    kinds = meshkit.spawn(seed_again, 2, timeout=60)
    assert sorted(kinds) == ["DisagreementError", "joined"]


# ------------------------------------------------------------------------ devices


def world_on(device: str) -> World:
    """Return rank 3 of a job on nccl."""
    world = meshkit.detect({"RANK": "3", "WORLD_SIZE": "4"})
    return replace(world, device=torch.device(device), backend="nccl")


def test_a_device_without_a_uuid_has_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(uuid=f"GPU-{device.index}")

    module = SimpleNamespace(get_device_properties=properties)
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    assert [*join.device_claim(world_on("cuda:1"))] == ["device/GPU-1"]
    monkeypatch.setattr(module, "get_device_properties", lambda _: SimpleNamespace())
    assert join.device_claim(world_on("cuda:1")) == {}
    assert join.device_claim(world_on("cpu")) == {}


# the UUID of each rank's device, backend, permission, NCCL_HOSTID of each rank, "" for none
Sharing = tuple[list[str | None], str, str, list[str]]
UNNAMED = [""] * 4
EXCLUSIVE: list[Sharing] = [
    (["GPU-a", "GPU-b", "GPU-c", "GPU-b"], "nccl", "0", UNNAMED),
    (["GPU-a", "GPU-b", "GPU-c", "GPU-b"], "nccl", "0", ["x", "y", "z", "y"]),
]
SHARED: list[Sharing] = [
    (["GPU-a", "GPU-b", "GPU-c", "GPU-d"], "nccl", "0", UNNAMED),
    (["GPU-a", "GPU-b", "GPU-c", "GPU-d"], "nccl", "0", ["x"] * 4),
    (["GPU-a"] * 4, "gloo", "0", UNNAMED),
    (["GPU-a"] * 4, "cpu:nccl,cuda:gloo", "0", UNNAMED),
    ([None] * 4, "nccl", "0", UNNAMED),
    (["GPU-a"] * 4, "nccl", "1", UNNAMED),
    (["GPU-a"] * 4, "nccl", "0", ["", "x", "y", "z"]),
]


def share_devices() -> Any:
    """Join as if the ranks used devices with some UUIDs and some backend."""
    claim, rank, outcomes = join.device_claim, meshkit.detect().rank, []
    for uuids, backend, allowed, hosts in (*EXCLUSIVE, *SHARED):
        os.environ.update(NCCL_MULTI_RANK_GPU_ENABLE=allowed, NCCL_HOSTID=hosts[rank])

        def claim_gpu(world: World, backend: str = backend) -> Any:
            return claim(replace(world, device=torch.device("cuda", 0), backend=backend))

        began = time.monotonic()
        with (
            mock.patch.object(join, "device_uuid", lambda _, uuid=uuids[rank]: uuid),
            mock.patch.object(join, "device_claim", claim_gpu),
            mock.patch.object(device, "nccl_version", return_value=device.SHARING),
        ):
            try:
                meshkit.init(arrival_timeout=30)
                outcomes.append("joined")
            except meshkit.LaunchError as error:
                outcomes.append(error.summary)
                assert not dist.is_initialized()
        assert time.monotonic() - began < 15
        meshkit.shutdown()
    return outcomes


def test_ranks_share_a_device_only_where_the_backend_allows_it() -> None:
    summary = "ranks 1 and 3 use one device, and nccl needs one device per rank."
    expected = [*[summary] * len(EXCLUSIVE), *["joined"] * len(SHARED)]
    assert meshkit.spawn(share_devices, 4, timeout=100) == [expected] * 4


MISTAKES: list[dict[str, Any]] = [
    *({"seed": 1.5}, {"timeout": -1}, {"device": "nope"}, {"backend": "nope"})
]


def join_with_mistakes() -> list[str]:
    """Join with one mistake after the other on rank 1; return the errors."""
    errors = []
    for mistake in MISTAKES:
        began = time.monotonic()
        with pytest.raises(meshkit.MeshkitError) as caught:
            meshkit.init(arrival_timeout=30, **mistake if meshkit.detect().rank else {})
        assert time.monotonic() - began < 20
        errors.append(str(caught.value))
    return errors


def test_an_invalid_argument_of_one_rank_reaches_the_others() -> None:
    errors = zip(MISTAKES, *meshkit.spawn(join_with_mistakes, 2, timeout=100), strict=True)
    for mistake, others, own in errors:
        assert own.startswith(f"init(arrival_timeout=30, {', '.join(f'{k}=' for k in mistake)}")
        assert "rank 1 (" in others
        assert own.partition(": ")[2] in others
