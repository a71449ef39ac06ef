"""Modules that the forkserver of the tests imports once, for all ranks that it starts.

A rank would otherwise import them at its first optimizer, DDP or DTensor, which takes about two
seconds. A rank also imports the test module that holds its function, and pytest with it: 0.1 s.
"""

from __future__ import annotations

import os
from functools import cache

import hypothesis  # noqa: F401
import pytest  # noqa: F401
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.tensor.debug
import torch.distributed.tensor.experimental
import torch.distributed.tensor.parallel  # noqa: F401

from tests.huge_pages import use_huge_pages

os.register_at_fork(before=cache(use_huge_pages))  # once, before the first fork
