"""The examples in the docstrings of Mesh: each runs on 8 ranks, and rank 5 prints its output."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.live import mesh as module

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
SPECIAL = {"__getitem__", "__contains__"}
RANK = 5  # whose output the examples show


def examples() -> dict[str, doctest.DocTest]:
    """Return the doctest of each attribute of Mesh."""
    finder = doctest.DocTestFinder()
    found = finder.find(meshkit.Mesh, "mesh", module)
    found += finder.find(meshkit.Mesh.rng.func, "mesh.rng", module)  # a cached property
    return {test.name.removeprefix("mesh."): test for test in found if test.examples}


def run_examples() -> dict[str, str]:
    """Run the examples of every attribute in one job; return what failed on this rank."""
    meshkit.init(device="cpu")
    failures: dict[str, str] = {}
    with meshkit.build_mesh(dp=4, sp=2) as mesh:
        for name, test in examples().items():
            test.globs = {"mesh": mesh, "meshkit": meshkit, "torch": torch, "dist": dist}
            report: list[str] = []
            runner = doctest.DocTestRunner(optionflags=FLAGS)
            runner.run(test, out=report.append)
            if report:
                failures[name] = "".join(report)
    return failures


def test_the_examples_print_the_output_of_rank_5() -> None:
    assert meshkit.spawn(run_examples, 8, timeout=300)[RANK] == {}


@pytest.mark.parametrize(
    "name", [name for name in vars(meshkit.Mesh) if not name.startswith("_") or name in SPECIAL]
)
def test_every_attribute_has_an_example(name: str) -> None:
    if name == "recover":  # it needs a loss: docs/how-to/recover.md runs it
        return
    value: Any = vars(meshkit.Mesh)[name]
    assert name in examples(), value
