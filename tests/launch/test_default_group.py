"""The default group: its options, its world, and its end after a failure."""

from __future__ import annotations

import socket
import subprocess
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
from meshkit.launch.creation import Creation, GroupStore
from meshkit.launch.store import Store
from meshkit.launch.times import Deadline
from meshkit.testing.faults import Strike, play

RANKS = 8


@pytest.mark.parametrize(
    ("backend", "device", "bind", "bound"),
    [
        ("nccl", "cuda:1", True, True),
        ("nccl", "cuda:1", False, False),
        ("nccl2", "cuda:1", True, True),
        ("nccl-lazy", "cuda:1", True, True),
        ("nccl-legacy", "cuda:1", True, True),
        ("xccl", "xpu:1", True, True),
        ("hccl", "hpu:0", True, False),  # torch was built without it
        ("gloo", "cuda:1", True, False),
        ("cpu:gloo,cuda:nccl", "cuda:1", True, True),
        ("cpu:gloo,cuda:nccl", "cuda:1", False, False),
        ("cpu:gloo,cuda:nccl", "cpu", True, False),
        ("cpu:gloo,cuda:gloo", "cuda:1", True, False),
    ],
)
def test_nccl_is_bound_to_its_device_at_once(
    backend: str, device: str, bind: bool, bound: bool, monkeypatch: pytest.MonkeyPatch
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
    named: list[object] = []
    monkeypatch.setattr(default_group, "store_global_ranks", named.append)
    own = torch.device(device)
    monkeypatch.setattr(default_group, "accelerator", lambda: {"hpu": None}.get(own.type, own.type))
    monkeypatch.setattr(Creation, "attempt", timedelta(seconds=4))
    world = meshkit.detect({"RANK": "1", "WORLD_SIZE": "2"})
    world = replace(world, backend=backend, device=own)
    default_group.create_default_group(
        world, Store(dist.HashStore(), world), None, bind, Creation(Deadline.after(20))
    )
    assert options_seen["backend"] == backend
    assert options_seen.get("device_id") == (own if bound else None)
    assert len(named) == bound
    assert (options_seen["rank"], options_seen["world_size"]) == (1, 2)
    # gloo alone meets through a store that can be asked, so its messages wait as long as asked for
    is_mixed = backend.startswith("cpu:")  # also with gloo
    assert options_seen["timeout"] == (timedelta(seconds=4) if is_mixed else None)
    assert timed == ([None] if is_mixed else [])
    assert isinstance(options_seen["store"], GroupStore) == (backend == "gloo")


@pytest.mark.parametrize(
    ("backend", "variables", "chosen"),
    [
        ("gloo", {}, True),
        ("cpu:gloo,cuda:nccl", {"LOCAL_WORLD_SIZE": "2"}, True),
        ("nccl", {}, False),
        ("gloo", {"LOCAL_WORLD_SIZE": "4"}, False),  # one host
        ("gloo", {"GLOO_SOCKET_IFNAME": "eth0"}, False),
        ("gloo", {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "2"}, False),  # two agents there
        ("gloo", {"MASTER_ADDR": "127.0.0.2"}, False),  # maybe one host
        ("gloo", {"MASTER_ADDR": "127.0.0.2", "LOCAL_WORLD_SIZE": "2"}, True),
        ("gloo", {"MASTER_ADDR": "no.invalid"}, False),
    ],
)
def test_gloo_uses_the_interface_that_reaches_the_store(
    backend: str, variables: dict[str, str], chosen: bool
) -> None:
    """tests/launchers/test_four_hosts.py uses it, between hosts."""
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    own = {name: found for name in names if (found := address_of(name))}
    if not own:
        pytest.skip("this machine has no interface beside the loopback")
    name, host = next(iter(own.items()))
    environ = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_PORT": "29500"}
    environ = {**environ, "MASTER_ADDR": host, **variables}
    world = replace(meshkit.detect(environ), backend=backend)
    added = default_group.gloo_reaches_others(world, environ)
    assert added == ({"GLOO_SOCKET_IFNAME": name} if chosen else {})


def address_of(name: str) -> str:
    """Return the address of an interface, as the program ip writes it."""
    done = subprocess.run(["ip", "-br", "-4", "addr", "show", name], capture_output=True, text=True)
    return done.stdout.partition("/")[0].split()[-1] if "/" in done.stdout else ""


NO_DUMP = {default_group.DUMP: "0", default_group.DUMP_WAIT: "250"}
NAME, KEEP = default_group.HANDLING, {default_group.KEEP_HANDLING: "1"}


@pytest.mark.parametrize(
    ("backend", "launcher", "environ", "is_set"),
    [
        ("nccl", "hand-written", {}, True),
        ("cpu:gloo,cuda:nccl", "slurm", {}, True),
        ("nccl", "torchrun", {NAME: "1"}, True),
        ("nccl", "torchrun", {NAME: "1", **KEEP}, False),
        ("nccl", "torchrun", {NAME: "3"}, False),
        ("nccl", "slurm", {NAME: "1"}, False),
        ("nccl", "slurm", {default_group.OLD_HANDLING: "1"}, False),
        ("nccl", "slurm", KEEP, False),
        ("gloo", "slurm", {}, False),
        ("gloo", "torchrun", {NAME: "1"}, False),
    ],
)
def test_guards_report_unless_the_user_has_set_the_error_handling(
    backend: str, launcher: str, environ: dict[str, str], is_set: bool
) -> None:
    world = meshkit.detect({"RANK": "1", "WORLD_SIZE": "2"})
    world = replace(world, backend=backend, launcher=launcher)
    expected = {NAME: "0", **NO_DUMP} if is_set else {}
    assert default_group.guards_can_report(world, environ) == expected
    line = "TORCH_NCCL_ASYNC_ERROR_HANDLING=0 TORCH_NCCL_DUMP_ON_TIMEOUT=0 TORCH_NCCL_WAIT_TIMEOUT"
    text = [
        one.partition("_DUMP_MILSEC=250, so")[0] for one in default_group.describe_added(expected)
    ]
    assert text == ([line] if is_set else [])


@pytest.mark.parametrize(
    ("environ", "added"),
    [
        ({NAME: "0"}, {**NO_DUMP}),
        ({default_group.DUMP: "1"}, {NAME: "0", default_group.DUMP_WAIT: "250"}),
        ({default_group.DUMP_WAIT: "9"}, {NAME: "0", default_group.DUMP: "0"}),
        ({NAME: "2"}, {}),
    ],
)
def test_the_dump_of_torch_is_off_where_guards_report(
    environ: dict[str, str], added: dict[str, str]
) -> None:
    world = replace(meshkit.detect({"RANK": "1", "WORLD_SIZE": "2"}), backend="nccl")
    assert default_group.guards_can_report(world, environ) == added


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
            world, Store(dist.HashStore(), world), None, True, Creation(Deadline.after(20))
        )
    assert (options_seen, left) == ({"timeout": None}, [True])


@pytest.mark.parametrize(
    ("rank", "fields", "source"), [("1", (1, 2), "LOCAL_RANK"), ("0", (None, None), None)]
)
def test_facts_of_the_launcher_count_only_if_it_reports_the_rank_of_the_group(
    rank: str,
    fields: tuple[int | None, ...],
    source: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks of torchrun may join a group in an order of their own. Uses a fake of rank 1 of 2."""
    environ = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2"}
    monkeypatch.delenv("MESHKIT_COMPLETED", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(default_group, "backend_of", lambda group: "gloo")
    monkeypatch.setattr(default_group, "_device", lambda group, backend: torch.device("cpu"))
    group: Any = SimpleNamespace(rank=lambda: 1, size=lambda: 2)
    world = default_group.world_from_group(group)
    assert (world.rank, world.world_size) == (1, 2)
    assert (world.local_rank, world.local_world_size) == fields
    assert world.sources.get("local_rank") == source


def destroy_after_a_failure(strike: Strike, kind: str) -> str:
    """Kill a rank, let a collective of the others fail one by one, and destroy the groups."""
    meshkit.init()
    mesh = meshkit.build_mesh(dp=-1, timeout=60)
    mesh.barrier("dp")
    if mesh.rank == 3:
        strike.kill()
    time.sleep(0.5 + (mesh.rank in (1, 2)))  # rank 0 fails first, and then gets data
    numbers = torch.zeros(4_000_000)
    try:
        if kind == "all_reduce":
            dist.all_reduce(numbers, group=mesh.group("dp"))
        else:
            dist.all_to_all_single(numbers, numbers.clone(), group=mesh.group("dp"))
    except RuntimeError:
        time.sleep(2)
        dist.destroy_process_group()
        mesh.close()
        return "destroyed"
    return "no error"


@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all"])
def test_groups_end_after_a_failed_collective(kind: str) -> None:
    """With TORCH_GLOO_LAZY_INIT torch waits for ever in the destructor."""
    played = play(destroy_after_a_failure, 4, (kind,), timeout=60)
    assert played.fired == 3
    assert [played.outcomes[rank].text for rank in range(3)] == ["'destroyed'"] * 3
    assert max(map(played.seconds, range(3))) < 20


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
