"""The table of accelerators, the modules of a node, and shared devices."""

from __future__ import annotations

import pytest

import meshkit
from meshkit.launch import device as accelerators
from meshkit.launch.device import ACCELERATORS, can_share_device, load_bridge


def test_every_row_has_a_device_of_its_own_and_backends() -> None:
    devices = [row.device for row in ACCELERATORS]
    assert len(set(devices)) == len(devices)
    assert all(row.backends for row in ACCELERATORS)


def test_a_bridge_that_cannot_be_imported_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise OSError("libhcl.so")

    monkeypatch.setattr(accelerators, "import_module", fail)
    with pytest.raises(meshkit.LaunchError) as caught:
        load_bridge("npu", 0)
    assert str(caught.value) == (
        "cannot import torch_npu, which makes torch know npu.\n"
        "  OSError: libhcl.so\n"
        "  Fix: repair that package, or init(device='cpu')."
    )


def test_several_ranks_may_share_a_device_unless_the_backend_is_exclusive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NCCL_MULTI_RANK_GPU_ENABLE", raising=False)
    assert can_share_device("cuda", "gloo")
    assert not can_share_device("cuda", "nccl")
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert can_share_device("cuda", "nccl")
    assert not can_share_device("hpu", "hccl")
