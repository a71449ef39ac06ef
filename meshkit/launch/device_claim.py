"""The claim of a rank on its physical device, compared by all ranks when they join."""

from __future__ import annotations

import torch

from ..core.errors import LaunchError
from .agreement.claims import Claim, Claimant
from .device.accelerators import can_share_device
from .device.device import backend_for, device_uuid
from .launchers.world import World


def device_claim(world: World) -> tuple[Claim, ...]:
    """Return the claim on this rank's device, or none if the backend lets ranks share it."""
    device = world.device or torch.device("cpu")
    kind = backend_for(str(world.backend), device.type)
    uuid = device_uuid(device) if device.type != "cpu" else None
    if uuid is None or can_share_device(device.type, kind):
        return ()

    def conflict(first: Claimant, second: Claimant) -> LaunchError:
        return LaunchError(
            f"ranks {first.rank} and {second.rank} use one device, and {kind} needs one "
            "device per rank.",
            f"Both compute on {device.type} {uuid}: {first}, {second}.",
            fix="start one rank per device, or give each its own: device='cuda:<local rank>', or "
            "CUDA_VISIBLE_DEVICES; or init(backend='gloo').",
        )

    return (Claim(f"device/{uuid}", str(world.rank), conflict),)
