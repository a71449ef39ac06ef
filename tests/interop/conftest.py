"""Ranks of a test module start with its library imported, from a forkserver of the module's own."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.forkserver import _forkserver as server

import pytest

from meshkit.launch.processes import PRELOADED


@pytest.fixture(scope="module", autouse=True)
def _library(request: pytest.FixtureRequest) -> Iterator[None]:
    """Import the modules in ``LIBRARY`` once, instead of in each rank of each test."""
    library, before = getattr(request.module, "LIBRARY", []), [*PRELOADED]
    server._stop()
    PRELOADED[-1:-1] = library
    yield
    PRELOADED[:] = before
    server._stop()
