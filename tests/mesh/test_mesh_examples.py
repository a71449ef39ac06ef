"""The examples in the docstrings of Mesh: each runs on 8 ranks, and rank 5 prints its output."""

from __future__ import annotations

import doctest

import torch
import torch.distributed as dist

import meshkit

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
RANK = 5  # whose output the examples show


def examples() -> dict[str, doctest.DocTest]:
    """Return the doctest of each attribute of Mesh."""
    tests = doctest.DocTestFinder().find(meshkit.Mesh, "mesh", module=False)
    return {test.name.removeprefix("mesh."): test for test in tests if test.examples}


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
