"""The names that ``meshkit`` exports, each imported on its first use."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import meshkit
from meshkit.core import errors


@pytest.mark.parametrize("name", meshkit.__all__)
def test_each_name_is_importable_and_documented(name: str) -> None:
    value = getattr(meshkit, name)
    assert inspect.isclass(value) or inspect.isfunction(value)
    assert value.__name__ == name
    assert value.__doc__
    assert value.__doc__.strip()
    assert not value.__doc__.startswith(f"{name}(")  # the docstring that a dataclass writes
    assert name in dir(meshkit)
    exec(f"from meshkit import {name}", {})


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(meshkit.__file__).read_text())
    blocks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = {}
    for node in ast.walk(blocks[0]):
        if isinstance(node, ast.ImportFrom):
            imports.update({alias.name: node.module for alias in node.names})
    assert sorted(imports) == meshkit.__all__
    assert {name: meshkit._MODULE_OF.get(name, "core.errors") for name in imports} == imports


def test_every_error_class_is_exported() -> None:
    kinds = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    listed = {name for names in meshkit._MODULES.values() for name in names}
    assert set(meshkit.__all__) - listed == kinds


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'meshkit' has no attribute 'nothing'"):
        _ = meshkit.nothing
    with pytest.raises(ImportError):
        exec("from meshkit import nothing", {})
    assert not hasattr(meshkit, "numpy")


def test_the_names_of_testing_are_documented() -> None:
    testing = importlib.import_module("meshkit.testing")
    assert testing.__all__ == sorted(set(testing.__all__))
    assert all(getattr(testing, name).__doc__ for name in testing.__all__)
