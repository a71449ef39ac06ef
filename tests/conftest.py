"""Every test: hypothesis judges nothing by the clock, as two workers share the machine; spawned
ranks begin with what torch imports late; and files that compute run beside files that wait."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from meshkit.launch.spawn.start_method import preload

settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")

preload("tests.preloaded")

ROOT = Path(__file__).parents[1]
# About how many seconds a file of each room takes. The files of one dict keep both cores busy, or
# theirs; most of the other's wait for each other, and for deadlines.
COMPUTE = {"launchers": 15, "examples": 15, "interop": 5, "core": 1}
WAIT = {
    "cli": 5,
    "bench": 8,
    "benchmarks": 4,
    "tests": 4,
    "testing": 4,
    "launch": 6,
    "live": 9,
    "scenarios": 15,
}


def room(path: Path) -> str:
    """The folder of a file in tests; ``meshkit`` for the examples in docstrings; else empty."""
    if not path.is_relative_to(ROOT):
        return ""
    *folders, _ = path.relative_to(ROOT).parts
    return folders[1] if len(folders) > 1 and folders[0] == "tests" else folders[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Both halves from their beginning to their end at once, and what is left, short, at the end.

    Two workers take files in this order: mostly one computes while the other waits.
    """
    files = dict.fromkeys(item.path for item in items)
    begins = dict.fromkeys(files, 1.0)
    for half in (COMPUTE, WAIT):
        rooms = list(half)
        mine = sorted((p for p in files if room(p) in half), key=lambda p: rooms.index(room(p)))
        ends = list(accumulate(half[room(path)] for path in mine))
        for path, end in zip(mine, ends, strict=True):
            begins[path] = (end - half[room(path)]) / ends[-1]
    items.sort(key=lambda item: (begins[item.path], str(item.path)))
