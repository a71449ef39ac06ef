"""Import the library of a test file once, in a forkserver of its own, not in every rank.

Files without a library, or whose library is not installed, share the forkserver of the other tests.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from multiprocessing import forkserver

import pytest

from meshkit.launch import worker


@pytest.fixture(scope="module", autouse=True)
def _library(request: pytest.FixtureRequest) -> Iterator[None]:
    """Preload the modules that the file lists in ``LIBRARY``."""
    modules = getattr(request.module, "LIBRARY", [])
    if not modules or importlib.util.find_spec(modules[0].partition(".")[0]) is None:
        yield
        return
    server, start = forkserver._forkserver, forkserver.ForkServer.ensure_running
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "PRELOADED", (*worker.PRELOADED, *modules))
        for name, value in vars(forkserver.ForkServer()).items():  # of a server not yet started
            patch.setattr(server, name, value)
        for place in forkserver, server:
            patch.setattr(place, "ensure_running", partial(start, server))
        yield
        server._stop()
