"""Import one module of a package whose other modules need libraries that are not installed.

The packages above the module become bare ones: their own ``__init__`` does not run. Each module of
the given libraries becomes a mock.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock

PEERS = Path(sys.prefix, "peers")  # pip install --no-deps --target ... -r .ci/peers.txt


class Mocked(MetaPathFinder, Loader):
    """The first finder: it makes a mock of each module of the given libraries."""

    def __init__(self, libraries: Sequence[str]) -> None:
        self.libraries = libraries

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        top = name.partition(".")[0]
        return ModuleSpec(name, self, is_package=True) if top in self.libraries else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module: types.ModuleType = MagicMock(name=spec.name)
        module.__spec__, module.__path__ = spec, []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Run nothing."""


def import_alone(folder: Path, module: str, libraries: Sequence[str]) -> None:
    """Let an import of a module below a folder run its file alone, beside mocks of libraries."""
    sys.path.append(str(folder))
    sys.meta_path.insert(0, Mocked(libraries))
    parents = module.split(".")[:-1]
    for depth in range(1, len(parents) + 1):
        name = ".".join(parents[:depth])
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*parents[:depth]))]
        sys.modules[name] = package
