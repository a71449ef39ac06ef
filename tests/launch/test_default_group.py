"""The default group: its options, its world, and the pairs that a large job connects."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import default_group
from meshkit.launch.job import require_job
from meshkit.launch.store import Store
from meshkit.launch.times import TIMES, Deadline
from meshkit.testing.faults import Strike, play
from tests.live.resources import descriptors
from tests.promises import BUSY

RANKS = 8


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
    connected: list[object] = []
    connect = lambda self, group: connected.append(group)  # noqa: E731
    monkeypatch.setattr(default_group.Creation, "connect", connect)
    device, creation = torch.device("cuda", 1), default_group.Creation(Deadline.after(2))
    world = meshkit.detect({"RANK": "1", "WORLD_SIZE": "2"})
    world = replace(world, backend=backend, device=device)
    default_group.create_default_group(world, Store(dist.HashStore(), world), None, creation)
    assert options_seen["backend"] == backend
    assert options_seen.get("device_id") == (device if bound else None)
    assert (options_seen["rank"], options_seen["world_size"]) == (1, 2)
    # gloo connects after its creation, so that messages wait as long as collectives
    assert (options_seen["timeout"], timed) == (None, [] if bound else [None])
    assert connected == ([] if bound else [None])


NAME, KEEP = default_group.HANDLING, {default_group.KEEP_HANDLING: "1"}


@pytest.mark.parametrize(
    ("backend", "launcher", "before", "after"),
    [
        ("nccl", "hand-written", {}, "0"),
        ("cpu:gloo,cuda:nccl", "slurm", {}, "0"),
        ("nccl", "torchrun", {NAME: "1"}, "0"),
        ("nccl", "torchrun", {NAME: "1", **KEEP}, "1"),
        ("nccl", "torchrun", {NAME: "3"}, "3"),
        ("nccl", "slurm", {NAME: "1"}, "1"),
        ("nccl", "slurm", {default_group.OLD_HANDLING: "1"}, None),
        ("nccl", "slurm", KEEP, None),
        ("gloo", "slurm", {}, None),
        ("gloo", "torchrun", {NAME: "1"}, "1"),
    ],
)
def test_guards_report_unless_the_user_has_set_the_error_handling(
    backend: str, launcher: str, before: dict[str, str], after: str | None
) -> None:
    world = meshkit.detect({"RANK": "1", "WORLD_SIZE": "2"})
    environ = dict(before)
    added = default_group.let_guards_report(
        replace(world, backend=backend, launcher=launcher), environ
    )
    assert environ.get(NAME) == after
    assert added == ({NAME: "0"} if after == "0" else {})


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
    with pytest.raises(meshkit.LaunchError, match="counts 0 of 1"):
        default_group.create_default_group(
            world, Store(dist.HashStore(), world), None, default_group.Creation(Deadline.after(2))
        )
    assert (options_seen, left) == ({"timeout": None}, [True])


@pytest.mark.parametrize(
    ("rank", "local_world_size", "source"),
    [("1", 2, "LOCAL_RANK"), ("0", None, "rank, for lack of other facts")],
)
def test_facts_of_the_launcher_count_only_if_it_reports_the_rank_of_the_group(
    rank: str, local_world_size: int | None, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks of torchrun may join a group in an order of their own. Uses a fake of rank 1 of 2."""
    environ = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
    monkeypatch.delenv("MESHKIT_COMPLETED", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(default_group, "dist", SimpleNamespace(get_backend=lambda group: "gloo"))
    monkeypatch.setattr(default_group, "_device", lambda group, backend: torch.device("cpu"))
    group: Any = SimpleNamespace(rank=lambda: 1, size=lambda: 2)
    world = default_group.world_from_group(group)
    assert (world.rank, world.world_size, world.local_rank) == (1, 2, 1)
    assert (world.local_world_size, world.sources["local_rank"]) == (local_world_size, source)


def connect_as_if_large(patch: pytest.MonkeyPatch) -> None:
    """Let a job of eight ranks connect as one of more than 32."""
    patch.setattr(default_group, "EAGER_RANKS", RANKS - 1)


def use_every_pair() -> list[float]:
    """Gather the rank numbers on the last rank, then exchange them; return the exchanged ones."""
    rank, last = torch.tensor([float(dist.get_rank())]), RANKS - 1
    parts = [torch.zeros(1) for _ in range(RANKS)]
    dist.gather(rank, parts if dist.get_rank() == last else None, dst=last)
    received = torch.zeros(RANKS)
    dist.all_to_all_single(received, rank.repeat(RANKS))
    return [float(number) for number in received]


def connected() -> tuple[bool, bool, int]:
    """Return which pairs are connected, and the number of descriptors of this rank."""
    connections = require_job().connections
    return connections.near, connections.all, descriptors()


def connections_of_a_large_job() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        connect_as_if_large(patch)
        meshkit.init()
    states = [connected()]
    variable = os.environ.get(default_group.LAZY)
    with meshkit.build_mesh(dp=4, tp=2) as mesh:  # the default group is that of the whole mesh
        assert mesh.group() is dist.group.WORLD
    states.append(connected())
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    dist.broadcast(torch.ones(1), src=5)
    dist.all_gather([torch.ones(1) for _ in range(RANKS)], torch.ones(1))
    states.append(connected())
    whole = meshkit.build_mesh(dp=RANKS)  # it is the group of an axis, too
    assert whole.group("dp") is dist.group.WORLD
    states.append(connected())
    received = use_every_pair()
    states.append(connected())
    return variable, states, received


def test_a_large_default_group_connects_the_pairs_that_a_mesh_uses() -> None:
    for variable, states, received in meshkit.spawn(connections_of_a_large_job, RANKS, timeout=120):
        assert variable is None  # only while the group is created
        (first, built, used, whole, last) = states
        assert first[:2] == (False, False)
        assert built[:2] == (True, False)
        assert used == built  # common collectives connect no further pair
        assert whole[:2] == (True, True)
        assert last == whole  # nor does any other collective
        assert first[2] < built[2] < whole[2]
        assert received == [float(rank) for rank in range(RANKS)]


def respect_variable(value: str) -> tuple[str | None, bool]:
    os.environ[default_group.LAZY] = value
    with pytest.MonkeyPatch.context() as patch:
        connect_as_if_large(patch)
        meshkit.init()
    return os.environ.get(default_group.LAZY), require_job().connections.all


def test_the_choice_of_the_user_is_kept() -> None:
    assert meshkit.spawn(respect_variable, RANKS, ("0",), timeout=60) == [("0", True)] * RANKS


def lose_rank_while_connecting(strike: Strike, how: str) -> str:
    """Lose a rank when the first pairs connect, and leave the job."""
    with pytest.MonkeyPatch.context() as patch:
        connect_as_if_large(patch)
        world = meshkit.init()
        if world.rank == 3:
            patch.setattr(dist, "barrier", getattr(strike, how))
        try:
            meshkit.build_mesh(dp=4, tp=2, arrival_timeout=4)
        except meshkit.RankTimeoutError as error:
            if error.missing_ranks != (3,):
                raise
            meshkit.shutdown()
            return str(error)
    return "no error"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_rank_lost_while_pairs_connect_is_named_in_time(how: str) -> None:
    played = play(lose_rank_while_connecting, RANKS, (how,), timeout=120)
    assert played.fired == 3
    assert sorted(played.outcomes) == [rank for rank in range(RANKS) if rank != 3]
    for rank, outcome in played.outcomes.items():
        assert "Missing: 3" in outcome.text
        assert played.seconds(rank) <= TIMES.create + 4 + BUSY


def wait_for_late_rank() -> float:
    """Come to a pair that was never used 4 s late, within the timeout of 20 s of the group."""
    with pytest.MonkeyPatch.context() as patch:
        connect_as_if_large(patch)
        meshkit.init(timeout=20)
    began = time.monotonic()
    if dist.get_rank() == 0:
        time.sleep(5)
    parts = [torch.zeros(1) for _ in range(RANKS)]
    dist.gather(torch.ones(1), parts if dist.get_rank() == 3 else None, dst=3)
    return time.monotonic() - began


@pytest.mark.slow
def test_a_pair_that_was_never_used_waits_for_a_late_rank() -> None:
    waits = meshkit.spawn(wait_for_late_rank, RANKS, timeout=120)
    assert 4 < waits[3] < 20


def test_the_device_of_a_group_that_the_user_has_made_on_gaudi(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bridge gives torch a module of the device, and no accelerator."""
    bridge = SimpleNamespace(current_device=lambda: 2)
    monkeypatch.setattr(torch, "hpu", bridge, raising=False)
    monkeypatch.setattr(default_group, "accelerator", lambda: None, raising=True)
    group = cast(dist.ProcessGroup, SimpleNamespace())
    assert default_group._device(group, "hccl") == torch.device("hpu", 2)
    assert default_group._device(group, "gloo") == torch.device("cpu")
