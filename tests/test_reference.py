"""The pages of the reference have every method of a mesh, and each module that a method names."""

from __future__ import annotations

import re

from meshkit import Mesh
from tests.pages import ROOT

FOLDER = ROOT / "docs" / "reference"
ENTRY = re.compile(r"^::: (\S+)$", re.M)
PAGES = [path for path in sorted(FOLDER.glob("*.md")) if path.stem != "index"]


def test_every_method_of_a_mesh_has_an_entry() -> None:
    text = "".join(page.read_text() for page in PAGES)
    names = re.findall(r"^::: meshkit\.mesh\.mesh\.Mesh\.(\w+)$", text, re.M)
    assert sorted(names) == sorted(name for name in vars(Mesh) if not name.startswith("_"))


def test_each_module_that_a_method_names_is_on_the_page_of_how_the_methods_work() -> None:
    text = "".join(str(vars(Mesh)[name].__doc__) for name in vars(Mesh) if name[0] != "_")
    named = set(re.findall(r":mod:`([\w.]+)`", text))
    listed = ENTRY.findall((FOLDER / "mechanisms.md").read_text())
    assert sorted(listed) == sorted(named) != []
