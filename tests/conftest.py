"""Settings for all tests: hypothesis profile, modules to preload, and the order of the files."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from meshkit.launch import worker
from tests.forked_worker import interpreter_of_a_worker
from tests.pool import Pool, start_pool
from tests.pure import TESTS

# Every worker reads all tests. Without bytecode each would compile them, which takes ten seconds,
# and every new interpreter would compile meshkit, which takes half a second.
sys.dont_write_bytecode = False
gc.disable()  # until all tests are read, which takes a fifth less
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Several workers share the machine, so hypothesis must not judge an example by its seconds.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

worker.PRELOADED += ("tests.preloaded",)

# A script, nohup and some CI systems start a background process with SIGINT ignored. Its children
# inherit that, and tests send SIGINT to their jobs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Their tests mostly wait for processes, so they start first; the longest is in the first folder.
WAITING = (
    "tests/test_pages",
    *("tests/rehearse", "tests/compare", "tests/testing", "tests/examples"),
    *("tests/scenarios", "tests/launch", "tests/groups", "tests/guard", "tests/recover"),
    *("tests/data", "tests/redistribute", "tests/transfer", "tests/norm", "tests/mesh"),
)

# Tests of milliseconds fill the end of the run.
SHORT = tuple(TESTS)
# The tests of these files share nothing with one another, so that each may run in any worker.
SPREAD = ("tests/test_pages", "tests/rehearse/test_rehearsal", *SHORT)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for tests alone: ``--doctest-modules`` would search each file of the tests, too."""
    collectors = yield
    return [collector for collector in collectors if type(collector) is pytest.Module]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files whose tests wait first, so that no worker waits alone at the end."""
    items.sort(key=lambda item: _place_of(item.nodeid))


def _place_of(name: str) -> int:
    """Return the place of a test's folder in ``WAITING``, or one after the last."""
    if name.startswith(SHORT):
        return len(WAITING) + 1
    return next((n for n, folder in enumerate(WAITING) if name.startswith(folder)), len(WAITING))


def pytest_collection_finish() -> None:
    """Freeze the tests: a collection of garbage in a forked process would copy all their pages."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Fork the workers from one process that has imported torch."""
    for spec in specs:
        spec.python = interpreter_of_a_worker()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, or single tests of the files that are spread."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(SPREAD) else super()._split_scope(nodeid)

    return Scheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-docs``, which writes the outputs of the pages anew."""
    parser.addoption("--update-docs", action="store_true", help="rewrite the outputs of the docs")


@pytest.fixture(scope="session")
def updates_docs(pytestconfig: pytest.Config) -> bool:
    """Return whether the outputs of the pages are to be written anew."""
    return bool(pytestconfig.getoption("--update-docs"))


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """Yield a pool of as many ranks as ``RANKS`` of the module says."""
    with start_pool(request.module.RANKS) as ranks:
        yield ranks
