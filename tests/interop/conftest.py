"""Import the library of a test file once, in a forkserver of its own, not in every rank."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.forkserver import _forkserver as server

import pytest

from meshkit.launch.spawn import start_method


@pytest.fixture(scope="module", autouse=True)
def _library(request: pytest.FixtureRequest) -> Iterator[None]:
    """Preload the modules that the file lists in ``LIBRARY``."""
    server._stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(start_method, "_preloaded", start_method._preloaded)  # restored at the end
        start_method.preload(*getattr(request.module, "LIBRARY", []))
        yield
    server._stop()
