"""The claim of a rank on its physical device."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import join
from meshkit.launch.join import device_claim
from meshkit.launch.world import World

HOST = socket.gethostname()


def world_on(device: str) -> World:
    """Return rank 3 of a job on nccl."""
    world = meshkit.detect({"RANK": "3", "WORLD_SIZE": "4"})
    return replace(world, device=torch.device(device), backend="nccl")


def test_a_device_without_a_uuid_has_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(uuid=f"GPU-{device.index}")

    module = SimpleNamespace(get_device_properties=properties)
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    assert [*device_claim(world_on("cuda:1"))] == ["device/GPU-1"]
    monkeypatch.setattr(module, "get_device_properties", lambda _: SimpleNamespace())
    assert device_claim(world_on("cuda:1")) == {}
    assert device_claim(world_on("cpu")) == {}


def time_init() -> Any:
    """Join; return the error, the seconds, and whether a group is left."""
    began = time.monotonic()
    try:
        meshkit.init(arrival_timeout=30)
    except meshkit.MeshkitError as error:
        seconds = time.monotonic() - began
        return type(error).__name__, str(error), seconds, dist.is_initialized()
    return "joined"


def share_a_device(uuids: list[str | None], backend: str) -> Any:
    """Join as if the ranks used devices with these UUIDs and that backend."""
    uuid = uuids[meshkit.detect().rank]
    claim = join.device_claim

    def claim_gpu(world: World) -> Any:
        return claim(replace(world, device=torch.device("cuda", 0), backend=backend))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(join, "device_uuid", lambda device: uuid)
        patch.setattr(join, "device_claim", claim_gpu)
        return time_init()


def test_two_ranks_on_one_device_are_named_on_all_ranks() -> None:
    uuids = ["GPU-a", "GPU-b", "GPU-c", "GPU-b"]
    results = meshkit.spawn(share_a_device, 4, (uuids, "nccl"), timeout=60)
    kinds, texts, seconds, joined = zip(*results, strict=True)
    assert set(kinds) == {"LaunchError"}
    assert len(set(texts)) == 1
    assert (max(seconds) < 15, joined) == (True, (False,) * 4)
    line, evidence, fix = texts[0].splitlines()
    assert line == (
        "init(arrival_timeout=30): ranks 1 and 3 use one device, "
        "and nccl needs one device per rank."
    )
    assert evidence.startswith(f"  Both compute on cuda GPU-b: rank 1 (host {HOST}, pid ")
    assert fix == (
        "  Fix: start one rank per device, or give each its own: device='cuda:<local rank>', or "
        "CUDA_VISIBLE_DEVICES; or init(backend='gloo')."
    )


@pytest.mark.parametrize(
    ("uuids", "backend", "shares"),
    [
        (["GPU-a", "GPU-b"], "nccl", "0"),
        (["GPU-a", "GPU-a"], "gloo", "0"),
        (["GPU-a", "GPU-a"], "cpu:nccl,cuda:gloo", "0"),
        ([None, None], "nccl", "0"),
        (["GPU-a", "GPU-a"], "nccl", "1"),
    ],
)
def test_a_device_that_ranks_may_share_is_accepted(
    uuids: list[str | None], backend: str, shares: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", shares)
    results = meshkit.spawn(share_a_device, 2, (uuids, backend), timeout=60)
    assert results == ["joined"] * 2
