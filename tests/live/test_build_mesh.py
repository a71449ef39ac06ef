"""The path of build_mesh: how many functions and files of meshkit a rank runs."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest

import meshkit

PACKAGE = str(Path(meshkit.__file__).parent) + "/"
INNER = ("<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")
Calls = Counter[tuple[str, str, int]]


def count_calls(joined: bool) -> Calls:
    """Return the functions of meshkit that build_mesh runs on this rank, with their calls.

    Args:
        joined: whether ``init`` has joined the job before.
    """
    calls: Calls = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in INNER:
            file = code.co_filename.removeprefix(PACKAGE)
            calls[file, code.co_name, code.co_firstlineno] += 1

    build = meshkit.build_mesh  # imported before the count
    if joined:
        meshkit.init()
    threading.setprofile(profile)
    sys.setprofile(profile)
    mesh = build(dp=4, sp=2, tp=1)
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    mesh.close()
    return calls


@pytest.mark.parametrize(
    ("joined", "functions", "files"),
    [(True, 60, 14), (False, 109, 26)],  # lower them whenever the path gets shorter
)
def test_build_mesh_runs_few_functions_in_few_files(
    joined: bool, functions: int, files: int
) -> None:
    calls = meshkit.spawn(count_calls, 8, (joined,), timeout=120)[5]
    listing = "\n".join(f"{file} {name} x{count}" for (file, name, _), count in calls.items())
    assert len(calls) <= functions, listing
    assert len({file for file, *_ in calls}) <= files, listing


def test_nothing_is_computed_twice() -> None:
    """Each fact of a group, of the job and of the timeouts is computed once per group."""
    calls = meshkit.spawn(count_calls, 8, (True,), timeout=120)[5]
    times = Counter[str]()
    for (_, name, _), count in calls.items():
        times[name] += count
    assert times["current_job"] == 1  # who this process is
    assert times["strides"] == times["groups"] == 4  # once for each set of groups
    assert times["infer_sizes"] == times["plan_groups"] == times["list_requests"] == 1
