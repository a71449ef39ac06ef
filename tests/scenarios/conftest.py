"""The jobs of a file of scenarios, which run side by side: most of their time they wait.

Such a file has ``JOBS``, the job of each test by the name of the test, and ``AT_ONCE``, how many of
them run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from meshkit.testing.faults import Played, Strike, play
from tests.side_by_side import side_by_side


def pass_through(strike: Strike) -> str:
    return "through"


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Played]]]:
    """Start the jobs of all selected tests of the file, and yield their results by test name."""
    selected = {item.name for item in request.session.items if item.path == request.path}
    play(pass_through, 1, timeout=120)  # after this the forkserver has imported torch
    jobs = {name: job for name, job in request.module.JOBS.items() if name in selected}
    with side_by_side(jobs, at_once=request.module.AT_ONCE) as results:
        yield results


@pytest.fixture
def played(request: pytest.FixtureRequest, jobs: dict[str, Future[Played]]) -> Played:
    """Wait for the job of this test and return its outcome."""
    return jobs[request.node.name].result()
