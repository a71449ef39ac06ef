"""What the forkserver of the tests imports last, once for all ranks.

At its first optimizer, DDP or DTensor a rank would read these by itself, for some two seconds. What
is there by then is frozen: else each rank begins with a collection of garbage that goes through all
of torch's objects, and copies their pages, for a tenth of a second.
"""

from __future__ import annotations

import gc
from contextlib import suppress

import torch._dynamo

with suppress(ImportError):  # FSDP2 and its like: not in torch 2.6
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.tensor.experimental
    import torch.distributed.tensor.parallel  # noqa: F401

gc.collect()
gc.freeze()
