"""Jobs that mostly wait, played beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import meshkit


@pytest.fixture(scope="module")
def playing(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[list[Any]]]]:
    """The job of every test of a file that is marked with one, three at a time: half of the
    machine is another worker's."""
    here = [item for item in request.session.items if item.path == request.path]
    marks = {item.name: item.get_closest_marker("job") for item in here}
    with ThreadPoolExecutor(3) as pool:
        yield {
            name: pool.submit(meshkit.spawn, *mark.args, timeout=120)
            for name, mark in marks.items()
            if mark
        }


@pytest.fixture
def by_rank(request: pytest.FixtureRequest, playing: dict[str, Future[list[Any]]]) -> list[Any]:
    """What the job of this test has returned."""
    return playing[request.node.name].result()
