"""Modules that the forkserver of the tests imports last, once for all ranks.

A rank imports the test module of the function that it runs, and with it pytest and hypothesis. This
takes 0.1 s. A rank that uses an optimizer, DDP or DTensor imports the modules of torch below, which
takes 2 s. The objects that exist after these imports are frozen. Otherwise the first garbage
collection of each rank visits all objects of torch and copies their memory pages, for 0.1 s.
"""

from __future__ import annotations

from contextlib import suppress

import torch._dynamo

with suppress(ImportError):  # FSDP2 and its like: not in torch 2.6
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.tensor.experimental
    import torch.distributed.tensor.parallel  # noqa: F401
