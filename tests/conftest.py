"""Settings for all tests: hypothesis profile, modules to preload, and the note on slow tests."""

from __future__ import annotations

import signal
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from meshkit.launch import spawn

# Several workers share the machine, so hypothesis must not judge an example by its seconds.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

spawn.PRELOADED += ("tests.preloaded",)

# A script, nohup and some CI systems start a background process with SIGINT ignored. Its children
# inherit that, and tests send SIGINT to their jobs.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Their tests mostly wait for processes, so they start first; the longest is in the first folder.
WAITING = ("tests/testing", "tests/examples", "tests/scenarios", "tests/launch", "tests/live")
NUM_SLOW = pytest.StashKey[int]()
SLOW_FILES = pytest.StashKey[set[Path]]()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for tests alone: ``--doctest-modules`` would search each file of the tests, too."""
    collectors = yield
    return [collector for collector in collectors if type(collector) is pytest.Module]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files whose tests wait first, so that no worker waits alone at the end."""
    items.sort(key=lambda item: _place_of(item.nodeid))


def _place_of(name: str) -> int:
    """Return the place of a test's folder in ``WAITING``, or the one after the last."""
    places = (place for place, folder in enumerate(WAITING) if name.startswith(folder))
    return next(places, len(WAITING))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-docs``, which writes the outputs of the pages anew."""
    parser.addoption("--update-docs", action="store_true", help="rewrite the outputs of the docs")


@pytest.fixture(scope="session")
def slow_files(pytestconfig: pytest.Config) -> set[Path]:
    """Return the files whose slow tests this run leaves out."""
    return pytestconfig.stash.get(SLOW_FILES, set())


@pytest.fixture(scope="session")
def updates_docs(pytestconfig: pytest.Config) -> bool:
    """Return whether the outputs of the pages are to be written anew."""
    return bool(pytestconfig.getoption("--update-docs"))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count the slow tests that this run leaves out."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.config.stash[NUM_SLOW] = item.config.stash.get(NUM_SLOW, 0) + 1
            item.config.stash.setdefault(SLOW_FILES, set()).add(item.path)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the count from a worker of pytest-xdist to the process that prints the summary."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["num_slow"] = session.config.stash.get(NUM_SLOW, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receive the count from a worker. All workers collect, and deselect, the same tests."""
    node.config.stash[NUM_SLOW] = getattr(node, "workeroutput", {}).get("num_slow", 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Report how many slow tests were left out, and how to run them."""
    if number := config.stash.get(NUM_SLOW, 0):
        terminalreporter.line(f"{number} slow tests did not run: pytest -m slow")
