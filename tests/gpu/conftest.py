"""Every test of this folder needs a GPU: ``pytest -m gpu``. Without one it is skipped by name."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and skip them without a GPU."""
    skip = pytest.mark.skip(reason="no GPU: torch.cuda.is_available() is False")
    for item in items:
        if item.nodeid.startswith("tests/gpu/"):
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(skip)
