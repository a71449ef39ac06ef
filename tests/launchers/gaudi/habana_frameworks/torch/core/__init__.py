"""Register the device hpu with torch, as the bridge does: one module per process."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import torch

if "HABANA_VISIBLE_MODULES" in os.environ and "HLS_MODULE_ID" not in os.environ:
    raise ImportError("imported before HLS_MODULE_ID was set")

hpu = ModuleType("torch.hpu")
hpu.current = None
# the real bridge reads its rank when it is imported, and uses rank -1 of 1 without the variables
hpu.identity = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]


def device_count() -> int:
    if "STAND_IN_DEVICES" in os.environ:
        return int(os.environ["STAND_IN_DEVICES"])
    return len(os.environ.get("HABANA_VISIBLE_MODULES", "0").split(","))


def set_device(index: int) -> None:
    hpu.current = index


hpu.device_count, hpu.set_device = device_count, set_device
torch.hpu = hpu
sys.modules["torch.hpu"] = hpu
