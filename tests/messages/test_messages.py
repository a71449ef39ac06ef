"""Every case raises the error of the snapshot: its class, its attributes and its text.

``python -m pytest tests/messages --snapshot-update`` writes the snapshot anew.
"""

from __future__ import annotations

import ast
import re
import traceback
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from meshkit import Layout
from tests.messages.cases import CASES, error_of
from tests.pure import PURE, ROOT

COMMANDS = ("  Fix: torchrun ", "  Fix: srun ")  # to be copied, without a period
# The text quotes einops, so it is not in the snapshot.
REFUSED_BY_EINOPS = lambda: Layout(dp=4, sp=2).rearrange("dp -> dp")  # noqa: E731


@pytest.mark.parametrize("name", CASES)
def test_an_error_has_its_class_attributes_and_text(name: str, snapshot: SnapshotAssertion) -> None:
    error = error_of(CASES[name])
    parts = ("summary", "evidence", "fix", "call")
    facts = {key: value for key, value in vars(error).items() if key not in parts}
    assert f"{type(error).__name__} {facts}\n{error}" == snapshot
    check_text(str(error))


def check_text(text: str) -> None:
    """Check that a text has the call first, then the evidence, and one fix last."""
    first, *others = text.splitlines()
    assert first.strip()
    assert all(line.startswith("  ") and line[2] != " " for line in others)
    assert not any(line.startswith("  Fix: ") for line in others[:-1])
    assert all(line.endswith((".", "?")) or line.startswith(COMMANDS) for line in (first, *others))
    assert not re.search(r"\b1 (ranks|positions|axes)\b", text)


def raises(file: Path) -> dict[tuple[str, int], str]:
    """Return the position and the source of each ``raise`` of a new error, by each of its lines."""
    nodes = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Raise) and n.exc]
    nodes = [n for n in nodes if not isinstance(n.exc, ast.Name)]  # raised again
    others = re.compile("AttributeError|TypeError")  # none of ours
    nodes = [n for n in nodes if not others.search(ast.unparse(n))]
    return {
        (str(file), line): f"{file.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)[:60]}"
        for node in nodes
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def test_every_raise_without_torch_has_a_case() -> None:
    sites = {line: site for file in PURE for line, site in raises(file).items()}
    errors = [error_of(call) for call in (*CASES.values(), REFUSED_BY_EINOPS)]
    frames = [frame for e in errors for frame in traceback.extract_tb(e.__traceback__)]
    reached = {sites.get((frame.filename, frame.lineno or 0)) for frame in frames}
    assert sorted(set(sites.values()) - reached) == []
