"""The files of meshkit without torch, as the contract of imports in pyproject.toml lists them."""

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
