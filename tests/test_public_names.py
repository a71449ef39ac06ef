"""The names that ``meshkit`` exports, each imported on its first use."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import meshkit

ROOT = Path(meshkit.__file__).parent


@pytest.mark.parametrize("name", meshkit.__all__)
def test_each_name_is_importable_and_documented(name: str) -> None:
    value = getattr(meshkit, name)
    assert inspect.isclass(value) or inspect.isfunction(value)
    assert value.__name__ == name
    assert value.__doc__
    assert not value.__doc__.startswith(f"{name}(")  # the docstring that a dataclass writes
    if name != "Mesh" and not name.endswith("Error"):  # see tests/mesh/test_mesh_examples.py
        assert "Example:" in value.__doc__
    assert name in dir(meshkit)
    exec(f"from meshkit import {name}", {})


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(meshkit.__file__).read_text())
    imports = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    assert imports == meshkit._MODULE_OF
    for name, path in imports.items():
        assert getattr(meshkit, name).__module__ == f"meshkit.{path}"


def test_a_class_or_function_has_its_name_alone() -> None:
    """A search for a name ends in one file. Only names of the reference may stand in two."""
    modules: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, set()).add(path.name)
    assert len(modules) > 500
    assert {name: files for name, files in modules.items() if len(files) > 1} == {
        "layouts": {"megatron.py", "strategies.py"},
        "main": {"__main__.py", "main.py", "compare.py"},
    }


@pytest.mark.parametrize(
    "folder", sorted(path.parent for path in ROOT.glob("*/__init__.py")), ids=lambda path: path.name
)
def test_the_text_of_a_folder_names_its_files(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert files <= {*re.findall(r"\w+", text)}
    named = re.findall(r"(\S*/)?(\w+)\.py\b", text)
    assert all(
        (ROOT / path / f"{name}.py").exists() if path else name in files for path, name in named
    )


def test_the_changelog_and_the_citation_have_the_version() -> None:
    root = Path(meshkit.__file__).parents[1]
    newest = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == meshkit.__version__
    assert f"\nversion: {meshkit.__version__}\n" in (root / "CITATION.cff").read_text()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'meshkit' has no attribute 'nothing'"):
        _ = meshkit.nothing
    assert not hasattr(meshkit, "numpy")


def test_the_names_of_testing_are_documented() -> None:
    testing = importlib.import_module("meshkit.testing")
    assert testing.__all__ == sorted(set(testing.__all__))
    assert all(getattr(testing, name).__doc__ for name in testing.__all__)
