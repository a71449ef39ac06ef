"""Leave the examples of methods of a mesh to tests/mesh/test_mesh_examples.py, with 8 ranks."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Drop each example of a function that is a method of Mesh."""
    items[:] = [item for item in items if not _is_of_a_mesh(item)]


def _is_of_a_mesh(item: pytest.Item) -> bool:
    """Return whether an item is an example in the docstring of a method of Mesh."""
    if not isinstance(item, pytest.DoctestItem):
        return False
    from meshkit import Mesh  # after the tests have set up their processes

    name = item.name.rpartition(".")[2]
    return name in vars(Mesh) and vars(Mesh)[name] is item.dtest.globs.get(name)
