"""Numerics: thirty real bugs and their right twins, by ``meshkit.testing.compare_meshes``.

Each bug runs on four meshes, and so does its twin. Beside it stand the checker of spmd_types on the
same programs without annotations, and the loss of 50 steps of Adam on one of the meshes. The table
of all bugs is written into ``results/numerics/bugs.md``, unless the run is quick.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshkit import Layout, Mesh
from meshkit.compare.compare import Report
from meshkit.compare.steps import Fault, Ranks
from meshkit.layout.sizes import parse_sizes
from meshkit.testing import compare_meshes
from tests.compare.miniatures import MINIATURES, Miniature

from .harness import INSTALL, Goal, Row, single
from .report import markdown_table

TABLE = Path(__file__).parent / "results" / "numerics" / "bugs.md"
PEER = "spmd_types, no annotations"
EIGHT = ("dp=8", "tp=8", "dp=2 tp=4", "dp=4 tp=2", "dp=4", "tp=4", "dp=2 tp=2", "tp=2")
CLOSE = 1e-2  # relative, of the loss of each step
LIMIT = 60.0  # seconds of a step on one mesh

Step = Callable[[Mesh], dict[str, Any]]


@dataclass(frozen=True)
class Result:
    """The verdicts on one bug and on its twin."""

    miniature: Miniature
    wrong: Report
    right: Report
    types: str  # what spmd_types says: "found", "not found", "refuses both" or "not installed"
    loss: float  # the largest relative difference of a loss

    @property
    def is_named(self) -> bool:
        """Whether the first difference has the right axes."""
        found = self.wrong.differences
        return bool(found) and {*found[0].axes} == {*self.miniature.axes}


def run(quick: bool) -> list[Row]:
    """Return the rows of all bugs, and the seconds of a comparison over eight meshes."""
    began = time.perf_counter()
    results = [examine(miniature) for miniature in MINIATURES[: 2 if quick else None]]
    first = MINIATURES[0]
    start = time.perf_counter()
    compare_meshes(lambda mesh: first.step(mesh, True), *EIGHT, layout=first.layout)
    eight = time.perf_counter() - start
    rows = [*count_rows(results), single("one comparison over eight meshes", 8, "s", [eight],
                                         Goal("ours", "<=", 60))]  # fmt: skip
    whole = time.perf_counter() - began
    rows.append(single("the whole table", 8, "s", [whole], Goal("ours", "<=", 600)))
    if not quick:
        TABLE.write_text(table(results) + "\n")
    return rows


def examine(miniature: Miniature) -> Result:
    """Return the verdicts on one bug."""
    wrong, right = (
        compare_meshes(step_of(miniature, bug), *miniature.meshes, layout=miniature.layout)
        for bug in (True, False)
    )
    refused, twin = (refused_by_types(miniature, bug) for bug in (True, False))
    types = ("refuses both" if twin else "found") if refused else "not found"
    if refused is None:
        types = "not installed"
    return Result(miniature, wrong, right, types, loss_difference(miniature))


def step_of(miniature: Miniature, is_wrong: bool) -> Step:
    """Return the step of a program or of its twin."""
    return lambda mesh: miniature.step(mesh, is_wrong)


def refused_by_types(miniature: Miniature, is_wrong: bool) -> bool | None:
    """Return whether spmd_types raises on a program; None if it is not installed."""
    try:
        import spmd_types
        import spmd_types.checker
    except ImportError:
        return None

    def step(mesh: Mesh) -> dict[str, Any]:
        try:
            with spmd_types.checker.typecheck():
                miniature.step(mesh, is_wrong)
        except spmd_types.SpmdTypeError:
            return {"refused": 1}
        return {"refused": 0}

    held = run_on(step, miniature.meshes[2])
    return not isinstance(held, Fault) and any(values["refused"] for values in held.values())


def loss_difference(miniature: Miniature) -> float:
    """Return the largest relative difference of the losses of a wrong mesh from those of one rank.

    It is inf if the wrong program ends with an error.
    """

    def step(mesh: Mesh) -> dict[str, Any]:
        return miniature.train(mesh, True)

    mesh = miniature.meshes[2]
    held, one = (
        run_on(step, mesh),
        run_on(step, " ".join(f"{a}=1" for a in parse_sizes(mesh.split()))),
    )
    if isinstance(held, Fault) or isinstance(one, Fault):
        return np.inf
    losses, wanted = (np.asarray(values[0]["losses"]) for values in (held, one))
    return float(np.max(np.abs(losses - wanted) / np.abs(wanted)))


def run_on(step: Step, mesh: str) -> dict[int, Any] | Fault:
    """Return what a step returns on each rank of a mesh."""
    layout, ranks = Layout(parse_sizes(mesh.split())), Ranks(step, LIMIT)
    try:
        return ranks.run(layout.sizes, layout.num_ranks)
    finally:
        ranks.close()


def count_rows(results: list[Result]) -> list[Row]:
    """Return the rows of the bugs that were found, named and not found."""
    number = len(results)
    found = [bool(result.wrong.differences) for result in results]
    types = [result.types for result in results]
    missing = None if "not installed" not in types else f"spmd_types is not installed: {INSTALL}"
    rows = [
        Row("bugs found", 8, PEER, "bugs", sum(found), None if missing else types.count("found"),
            None, Goal("ours", ">=", number), missing),
        single("bugs named with the right axis", 8, "bugs", [sum(r.is_named for r in results)],
               Goal("ours", ">=", 0.9 * number)),
        single("right twins without an alarm", 8, "programs",
               [sum(not result.right.differences for result in results)],
               Goal("ours", ">=", number)),
        single("bugs that keep the loss of 50 steps within 1e-2", 8, "bugs",
               [sum(result.loss <= CLOSE for result in results)]),
    ]  # fmt: skip
    return rows


def table(results: list[Result]) -> str:
    """Return the table of all bugs in Markdown."""
    head = ["bug", "issue", "meshes", "first difference", "cause", "axis", "spmd_types", "loss"]
    lines = [head]
    for result in results:
        mini, rows = result.miniature, result.wrong.differences
        repository, _, number = mini.issue.partition("#")
        link = f"[{mini.issue}](https://github.com/{repository}/issues/{number})"
        cells = [rows[0].name, rows[0].cause, " ".join(rows[0].axes)] if rows else ["-"] * 3
        loss = f"{result.loss:.1g}"
        lines.append([mini.name, link, ", ".join(mini.meshes), *cells, result.types, loss])
    return markdown_table(lines)
