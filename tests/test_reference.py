"""The pages of the reference: their tables, and that they have every public name."""

from __future__ import annotations

import importlib
import re
from functools import cached_property
from pathlib import Path

import pytest

from meshkit import Mesh
from tests.pages import ROOT

FOLDER = ROOT / "docs" / "reference"
ENTRY = re.compile(r"^::: (\S+)$(?:\n    options:\n      heading: (\S+))?", re.M)
TABLE = re.compile(r"(?<=^\|---\|---\|\n)(?:\|.*\n)*", re.M)
ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")
PAGES = [path for path in sorted(FOLDER.glob("*.md")) if path.stem != "index"]


def summary(path: str) -> str:
    """Return the first line of the docstring of an object, as Markdown."""
    parts = path.split(".")
    start = next(n for n in range(len(parts), 0, -1) if is_module(parts[:n]))
    value: object = importlib.import_module(".".join(parts[:start]))
    for name in parts[start:]:
        value = vars(value)[name] if isinstance(value, type) else getattr(value, name)
    if isinstance(value, cached_property):
        value = value.func
    line = str(value.__doc__).splitlines()[0]
    return ROLE.sub(r"`\1`", line).replace("``", "`").replace("|", "\\|")


def is_module(parts: list[str]) -> bool:
    """Return whether a dotted path is a module of meshkit."""
    path = ROOT.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def rows(text: str) -> str:
    """Return the table of a page: each entry, with the first line of its docstring."""
    entries = [(path, heading or path.rsplit(".", 1)[1]) for path, heading in ENTRY.findall(text)]
    return "".join(f"| [`{name}`](#{path}) | {summary(path)} |\n" for path, name in entries)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_begins_with_the_table_of_its_names(page: Path, updates_docs: bool) -> None:
    text = page.read_text()
    if updates_docs:
        page.write_text(text := TABLE.sub(lambda _: rows(text), text, count=1))
    assert text.index("|---|") < text.index(":::")
    (table,) = TABLE.findall(text)
    assert table == rows(text)


def test_every_method_of_a_mesh_has_an_entry() -> None:
    text = "".join(page.read_text() for page in PAGES)
    names = re.findall(r"^::: meshkit\.mesh\.mesh\.Mesh\.(\w+)$", text, re.M)
    assert sorted(names) == sorted(name for name in vars(Mesh) if not name.startswith("_"))


def test_each_module_that_a_method_names_is_on_the_page_of_how_the_methods_work() -> None:
    text = "".join(str(vars(Mesh)[name].__doc__) for name in vars(Mesh) if name[0] != "_")
    named = set(re.findall(r":mod:`([\w.]+)`", text))
    listed = [path for path, _ in ENTRY.findall((FOLDER / "mechanisms.md").read_text())]
    assert sorted(listed) == sorted(named) != []
