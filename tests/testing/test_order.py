"""The order of test files: what has no room stands at the end, wherever it is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests import conftest


def test_a_file_outside_the_repository_comes_last(tmp_path: Path) -> None:
    inside = [conftest.ROOT / "tests" / room / "test_x.py" for room in ("live", "core", "examples")]
    items: list[Any] = [SimpleNamespace(path=path) for path in (tmp_path / "test_y.py", *inside)]
    conftest.pytest_collection_modifyitems(items)
    assert [item.path for item in items][-1] == tmp_path / "test_y.py"
