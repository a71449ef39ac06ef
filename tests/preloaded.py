"""Modules that the forkserver of the tests imports once for all ranks.

Otherwise each rank imports them at its first optimizer, DDP or DTensor, which takes about 2 s.
"""

from __future__ import annotations

from contextlib import suppress

import torch._dynamo

with suppress(ImportError):  # FSDP2 and its like: not in torch 2.6
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.tensor.experimental
    import torch.distributed.tensor.parallel  # noqa: F401
