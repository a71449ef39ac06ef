"""The claim of a rank on its physical device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from meshkit.core.call import Call
from meshkit.launch.device_claim import device_claim

CALL = Call("init")


def test_a_device_without_a_uuid_is_claimed_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(uuid=f"GPU-{device.index}")

    module = SimpleNamespace(get_device_properties=properties)
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    (claim,) = device_claim(3, torch.device("cuda", 1), "nccl")
    assert (claim.key, claim.value) == ("device/GPU-1", "3")
    monkeypatch.setattr(module, "get_device_properties", lambda _: SimpleNamespace())
    assert device_claim(3, torch.device("cuda", 1), "nccl") == ()
    assert device_claim(3, torch.device("cpu"), "nccl") == ()
