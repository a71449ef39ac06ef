"""Modules that the forkserver of the tests imports once, for all ranks that it starts.

A rank would otherwise import them at its first optimizer, DDP or DTensor, which takes about two
seconds. A rank also imports the test module that holds its function, and pytest with it: 0.1 s.
A rehearsed rank imports the rehearsal and the pipelines, which takes 0.07 s.
"""

from __future__ import annotations

import os
import sys
from functools import cache

import hypothesis  # noqa: F401
import numpy.ma  # noqa: F401  # numpy imports it at the first use of some functions
import pytest  # noqa: F401
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.debug
import torch.distributed.tensor.experimental
import torch.distributed.tensor.parallel  # noqa: F401

import meshkit.rehearse.rehearsal
import meshkit.testing.faults  # noqa: F401
import tests.faults
import tests.nccl_like
import tests.pool  # noqa: F401
from tests.huge_pages import use_huge_pages

sys.dont_write_bytecode = False  # a rank would compile its test module
os.register_at_fork(before=cache(use_huge_pages))  # once, before the first fork
