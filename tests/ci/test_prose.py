"""The check of the English of docstrings finds forbidden beginnings, and no others."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / ".ci" / "prose.py"


@pytest.fixture(scope="module")
def prose() -> Any:
    """Return the module ``.ci/prose.py``, which is in no package."""
    spec = importlib.util.spec_from_file_location("prose", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("docstring", "count"),
    [
        ("Return the ranks of a group.", 0),
        ("What a rank asks for.", 1),
        ("What to do if an axis crosses nodes: error or warning.", 1),
        ("Return the ranks. Of these, the first leads. Where it is, others are.", 2),
        ("Return whatever offers that.", 0),
        ("Return x.\n\n    Args:\n        x: what it is. That is none.", 2),
        ("Return x.\n\n    Example:\n        >>> print('What is it?')\n        What is it?", 0),
    ],
)
def test_forbidden_beginnings_are_counted(
    prose: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], docstring: str, count: int
) -> None:
    (tmp_path / "module.py").write_text(f'def f(x):\n    """{docstring}"""\n')
    assert prose.main([str(tmp_path)]) == min(count, 1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == count + 1
    assert lines[-1] == f"{count} sentences begin with What, Who, Of, Where or That."


def test_the_check_is_short() -> None:
    assert len(FILE.read_text().splitlines()) <= 60
