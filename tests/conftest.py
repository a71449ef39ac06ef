"""Every test: hypothesis judges nothing by the clock, as two workers share the machine; and what
torch imports late is imported once for all ranks."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from meshkit.launch.processes import PRELOADED

settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

# At its first optimizer, DDP or DTensor a rank would read these by itself: some two seconds, which
# eight of them pay anew in every test. Spawned ranks inherit them; commands and launchers do not.
PRELOADED += ["torch._dynamo", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp"]
PRELOADED += ["torch.distributed.tensor.parallel", "torch.distributed.tensor.experimental"]
