"""The files of meshkit without torch, as the contract of imports in pyproject.toml lists them.

``python -m tests.pure`` prints their tests.
"""

from __future__ import annotations

import re
from pathlib import Path

import meshkit

ROOT = Path(meshkit.__file__).parents[1]
_CONTRACT = (ROOT / "pyproject.toml").read_text().partition('name = "what is pure')[2]
_NAMES = re.findall(r'"meshkit\.([\w.]+)",', _CONTRACT.partition("forbidden_modules")[0])
PURE = [
    file
    for path in (ROOT / "meshkit" / name.replace(".", "/") for name in _NAMES)
    for file in (path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")])
]
_MIRRORS = [
    ROOT / "tests" / file.relative_to(ROOT / "meshkit").with_name(f"test_{file.name}")
    for file in PURE
]
TESTS = sorted(
    {str(file.relative_to(ROOT)) for file in _MIRRORS if file.exists()}
    | {
        "tests/laws",
        "tests/messages",
        *(f"tests/layout/test_{name}.py" for name in ("rank_tables", "values")),
    }
    | {f"tests/redistribute/test_{name}.py" for name in ("drawings", "laws", "transitions")}
)

if __name__ == "__main__":
    print(*TESTS)
