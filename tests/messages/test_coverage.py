"""Every ``raise`` in core is reached by a case of the snapshot."""

from __future__ import annotations

import ast
import traceback
from pathlib import Path

import meshkit
from meshkit import Layout
from tests.messages.all_cases import CASES
from tests.messages.snapshot import error_of

# The text quotes einops, so it is not in the snapshot.
REFUSED_BY_EINOPS = lambda: Layout(dp=4, sp=2).rearrange("dp -> dp")  # noqa: E731
CORE = Path(meshkit.__file__).parent / "core"


def raises(file: Path) -> dict[tuple[str, int], str]:
    """Return the position and the source of each ``raise`` of a new error, by each of its lines."""
    source = file.read_text()
    nodes = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Raise) and n.exc]
    nodes = [n for n in nodes if not isinstance(n.exc, ast.Name)]  # raised again
    nodes = [n for n in nodes if "AttributeError" not in ast.unparse(n)]  # none of ours
    return {
        (str(file), line): f"{file.relative_to(CORE)}:{node.lineno} {ast.unparse(node)[:60]}"
        for node in nodes
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def test_every_raise_is_reached() -> None:
    sites = {line: site for file in CORE.rglob("*.py") for line, site in raises(file).items()}
    cases = [*CASES.values(), REFUSED_BY_EINOPS]
    errors = [error_of(case) for case in cases]
    frames = [traceback.extract_tb(error.__traceback__)[-1] for error in errors]
    lines = [
        error.raised_at or (frame.filename, frame.lineno or 0)  # cut by the public function, or not
        for error, frame in zip(errors, frames, strict=True)
    ]
    reached = {sites.get(line) for line in lines}
    assert sorted(set(sites.values()) - reached) == []
