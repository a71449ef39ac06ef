"""Ranks of a file begin with its library imported, in a forkserver of the file's own."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.forkserver import _forkserver as server

import pytest

from meshkit.launch.spawn.start_method import PRELOADED


@pytest.fixture(scope="module", autouse=True)
def _library(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the file names in ``LIBRARY`` is imported once, not by every rank of every test."""
    library, before = getattr(request.module, "LIBRARY", []), [*PRELOADED]
    server._stop()
    PRELOADED[-1:-1] = library
    yield
    PRELOADED[:] = before
    server._stop()
