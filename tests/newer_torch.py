"""Marks of tests of what the oldest torch lacks."""

from __future__ import annotations

import pytest

from meshkit.launch.torch_groups import KEEPS_ORDER
from meshkit.launch.torch_meshes import can_slice

needs_order = pytest.mark.skipif(not KEEPS_ORDER, reason="ranks that do not ascend: torch 2.12")
needs_slices = pytest.mark.skipif(not can_slice(), reason="slices that join dims: torch 2.13")
