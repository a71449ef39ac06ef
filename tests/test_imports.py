"""Who imports whom, what a light import loads, and what the door holds.

Each check is a function over source text, so that it can be shown to fail on a planted violation.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import meshkit
from meshkit.core import errors

ROOT = Path(meshkit.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# core <- launch <- live <- {interop, bench} <- cli; the door is free, nobody may import testing
BELOW = {
    "core": {"core"},
    "launch": {"core", "launch"},
    "live": {"core", "launch", "live"},
    "interop": {"core", "launch", "live", "interop"},
    "bench": {"core", "launch", "live", "bench"},
    "cli": {"core", "launch", "live", "interop", "bench", "cli"},
    "testing": {"core", "launch", "live", "testing"},
    "": {"core", "launch", "live", "interop", "bench", "cli"},
}

# No torch, no clock, no environment, no I/O, no chance, no threads.
CORE_MAY = {
    *("numpy", "einops"),
    *("__future__", "bisect", "collections", "dataclasses", "difflib", "enum", "fractions"),
    *("functools", "hashlib", "heapq", "itertools", "json", "keyword", "math", "operator", "re"),
    *("string", "textwrap", "types", "typing"),
}
CORE_MAY_NOT_CALL = {"open", "print", "input", "exec", "eval", "__import__", "breakpoint"}

ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}

MAKES_GROUPS = {
    *("init_process_group", "destroy_process_group", "new_group", "split_group", "shrink_group"),
    *("new_subgroups", "new_subgroups_by_enumeration", "init_device_mesh"),
}
MAY_MAKE = {
    "live/create.py": {"new_group", "split_group", "destroy_process_group"},
    "launch/join.py": {"init_process_group", "destroy_process_group"},
}


def room(path: str) -> str:
    """The room of a file, by its path inside meshkit: ``"core"``; ``""`` for the door."""
    return path.split("/")[0] if "/" in path else ""


def imports(path: str, source: str) -> Iterator[str]:
    """Full names of all that a file imports, also inside functions and ``if TYPE_CHECKING``."""
    package = ["meshkit", *path.split("/")[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def rooms_imported(path: str, source: str) -> set[str]:
    parts = [name.split(".") for name in imports(path, source)]
    inside = [names[1:] for names in parts if names[0] == "meshkit"]
    return {names[0] if names and names[0] in BELOW else "" for names in inside}


def order_faults(path: str, source: str) -> list[str]:
    """Imports of a room that is not below. The door counts as one that nobody may import."""
    wrong = rooms_imported(path, source) - BELOW[room(path)]
    if path.startswith("bench/results/"):
        wrong |= results_faults(path, source)
    return [f"{path} imports meshkit.{name}".rstrip(".") for name in sorted(wrong)]


def results_faults(path: str, source: str) -> set[str]:
    """Imports of the results of a benchmark that are neither core nor results."""
    parts = [name.split(".") for name in imports(path, source)]
    inside = [names[1:] for names in parts if names[0] == "meshkit"]
    pure = (["core"], ["bench", "results"])
    return {".".join(names) for names in inside if names[:1] not in pure and names[:2] not in pure}


def core_faults(path: str, source: str) -> list[str]:
    """What core and the results of a benchmark may not import or call."""
    if room(path) != "core" and not path.startswith("bench/results/"):
        return []
    tops = {name.split(".")[0] for name in imports(path, source)} - {"meshkit"}
    called = {
        node.func.id
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    return sorted(tops - CORE_MAY) + sorted(called & CORE_MAY_NOT_CALL)


def dynamic_faults(path: str, source: str) -> list[str]:
    """Imports by name, which the other checks cannot see: the door, vendors, commands."""
    if path in ("__init__.py", "launch/device/accelerators.py", "cli/main.py"):
        return []
    tops = {name.split(".")[0] for name in imports(path, source)}
    return sorted({"importlib", "runpy", "__import__"} & (tops | mentions(source)))


def mentions(source: str) -> set[str]:
    """Every bare name, attribute and imported name of a file; no docstring, no comment."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.update(node.name.split("."))
    return found


def os_mentions(source: str) -> set[str]:
    """Names taken from ``os``: ``os.environ``, or ``from os import environ``."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module in ("os", "posix"):
            found.update(alias.name for alias in node.names)
    return found


def environment_faults(path: str, source: str) -> list[str]:
    return sorted(os_mentions(source) & ENVIRONMENT) if room(path) != "launch" else []


def group_faults(path: str, source: str) -> list[str]:
    """Names of what makes or destroys groups, outside the files that may."""
    return sorted(mentions(source) & MAKES_GROUPS - MAY_MAKE.get(path, set()))


def join_faults(path: str, source: str) -> list[str]:
    """``destroy_process_group`` outside live/create.py, unless it ends the default group."""
    calls = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "destroy_process_group"
    ]
    given = [node for node in calls if node.args or node.keywords]
    return [f"line {node.lineno}" for node in given] if path != "live/create.py" else []


CHECKS = {
    "order": order_faults,
    "core": core_faults,
    "dynamic": dynamic_faults,
    "environment": environment_faults,
    "groups": group_faults,
    "join": join_faults,
}

PLANTED = [
    ("order", "core/axes.py", "from ..launch import join"),
    ("order", "core/axes.py", "from ..live.mesh import Mesh"),
    ("order", "core/axes.py", "import meshkit.live.mesh"),
    ("order", "core/axes.py", "from meshkit import Mesh"),
    ("order", "core/axes.py", "import meshkit"),
    ("order", "core/axes.py", "from .. import Mesh"),
    ("order", "core/axes.py", "from .. import live"),
    ("order", "core/axes.py", "def f():\n    from ..launch.join import init"),
    ("order", "core/axes.py", "if TYPE_CHECKING:\n    from ..launch.join import init"),
    ("order", "launch/join.py", "from ..live.mesh import Mesh"),
    ("order", "launch/join.py", "from .. import live"),
    ("order", "live/mesh.py", "from ..interop.ray import x"),
    ("order", "interop/ray.py", "from ..bench.fit import x"),
    ("order", "bench/fit.py", "from ..cli.show import x"),
    ("order", "bench/results/fit.py", "from ...live.mesh import Mesh"),
    ("order", "bench/results/fit.py", "from ..sweep import Sweep"),
    ("core", "bench/results/fit.py", "import torch"),
    ("order", "live/mesh.py", "from ..testing.strategies import layouts"),
    ("order", "core/axes.py", "from meshkit.testing import layouts"),
    ("order", "__init__.py", "from .testing import layouts"),
    ("order", "cli/show.py", "from ..testing import layouts"),
    ("core", "core/axes.py", "import torch"),
    ("core", "core/axes.py", "import torch.distributed as dist"),
    ("core", "core/axes.py", "from torch import nn"),
    ("core", "core/axes.py", "import os"),
    ("core", "core/axes.py", "from time import monotonic"),
    ("core", "core/axes.py", "def f():\n    import socket"),
    ("core", "core/axes.py", "import random"),
    ("core", "core/axes.py", "import io, math"),
    ("core", "core/axes.py", "from pathlib import Path"),
    ("core", "core/axes.py", "open('x')"),
    ("core", "core/axes.py", "print('x')"),
    ("dynamic", "core/axes.py", "torch = __import__('torch')"),
    ("dynamic", "launch/join.py", "import importlib"),
    ("dynamic", "live/mesh.py", "from importlib import import_module"),
    ("environment", "live/mesh.py", "import os\nos.environ['RANK']"),
    ("environment", "live/mesh.py", "from os import environ"),
    ("environment", "core/axes.py", "import os as o\no.getenv('RANK')"),
    ("environment", "__init__.py", "import os\nos.putenv('A', 'b')"),
    ("groups", "live/mesh.py", "dist.new_group([0])"),
    ("groups", "live/mesh.py", "from torch.distributed import new_group"),
    ("groups", "launch/join.py", "dist.new_group([0])"),
    ("groups", "live/create.py", "dist.init_process_group()"),
    ("groups", "live/device_mesh.py", "init_device_mesh('cpu', (2,))"),
    ("groups", "launch/spawn/spawn.py", "dist.destroy_process_group()"),
    ("groups", "live/mesh.py", "make = dist.split_group"),
    ("join", "launch/join.py", "dist.destroy_process_group(group)"),
    ("join", "launch/join.py", "dist.destroy_process_group(group=group)"),
]

ALLOWED = [
    ("order", "core/axes.py", "from . import call\nfrom .call import Call\nimport numpy"),
    ("order", "launch/join.py", "from ..core.axes import infer\nfrom .meet import arrive"),
    ("order", "live/mesh.py", "from ..core.call import Call\nfrom ..launch.join import joined"),
    ("order", "bench/fit.py", "from ..live.mesh import Mesh"),
    ("order", "bench/results/fit.py", "from ...core.call import Call\nfrom .run import modes"),
    ("order", "cli/show.py", "from ..interop.ray import x\nfrom ..bench.fit import y"),
    ("order", "testing/strategies.py", "from ..core.layout import Layout"),
    ("order", "__init__.py", "from .live.mesh import Mesh"),
    ("core", "core/axes.py", "import math, einops\nfrom collections.abc import Iterable"),
    ("core", "live/mesh.py", "import torch"),
    ("dynamic", "__init__.py", "import importlib"),
    ("dynamic", "cli/main.py", "import importlib"),
    ("environment", "launch/join.py", "import os\nos.environ"),
    ("environment", "live/mesh.py", "'''os.environ'''\nenviron = 1"),
    ("groups", "live/create.py", "dist.new_group([0])\ndist.destroy_process_group(g)"),
    ("groups", "launch/join.py", "dist.init_process_group()"),
    ("groups", "live/mesh.py", "'''new_group'''  # split_group"),
    ("join", "launch/join.py", "dist.destroy_process_group()"),
]


@pytest.mark.parametrize("check", CHECKS)
def test_no_file_breaks_it(check: str) -> None:
    found = []
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        found += [f"{name}: {fault}" for fault in CHECKS[check](name, path.read_text())]
    assert found == []


@pytest.mark.parametrize(("check", "path", "source"), PLANTED)
def test_the_check_fails_on_a_planted_violation(check: str, path: str, source: str) -> None:
    assert CHECKS[check](path, source) != []


@pytest.mark.parametrize(("check", "path", "source"), ALLOWED)
def test_the_check_passes_what_is_allowed(check: str, path: str, source: str) -> None:
    assert CHECKS[check](path, source) == []


def test_all_files_are_looked_at() -> None:
    assert {room(path.relative_to(ROOT).as_posix()) for path in FILES} <= BELOW.keys()
    names = {path.relative_to(ROOT).as_posix() for path in FILES}
    assert {"__init__.py", "core/layout.py", "launch/join.py", *MAY_MAKE} <= names


# ---------------------------------------------------------------- what a light import loads


def run(code: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, without what coverage tools and the like import at its start."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )


def loaded(code: str, *names: str) -> list[str]:
    """Those of the modules that are loaded after the code ran."""
    done = run(f"{code}\nimport sys\nprint([n for n in {names!r} if n in sys.modules])")
    assert done.returncode == 0, done.stderr
    return list(ast.literal_eval(done.stdout.splitlines()[-1]))


def test_import_meshkit_loads_neither_torch_nor_numpy() -> None:
    assert loaded("import meshkit", "torch", "numpy", "einops", "hypothesis") == []


def test_what_is_pure_does_not_load_torch() -> None:
    code = """
import meshkit
layout = meshkit.factor_world(64, tp=8, sp=2)
str(layout), layout.groups("dp"), layout.rearrange("dp sp tp -> (dp sp) tp")
GroupPlan.of(layout, ["dp tp"]).steps
meshkit.BatchPlan.solve(dp=4, global_batch=64, micro_batch=2).samples(0, 0)
meshkit.SequencePlan(16, 4, "zigzag").inverse()
meshkit.detect({})
[getattr(meshkit, name) for name in meshkit.__all__ if name.endswith("Error")]
import meshkit.bench.results, meshkit.cli.bench
"""
    assert loaded(code, "numpy", "torch") == ["numpy"]


def test_what_is_pure_works_where_torch_cannot_be_imported() -> None:
    blocked = "import sys; sys.modules['torch'] = None\nimport meshkit\n"
    done = run(f"{blocked}print(repr(meshkit.factor_world(64, tp=8)))")
    assert done.stdout == "Layout(dp=8, tp=8)\n"
    assert "import of torch halted" in run(f"{blocked}meshkit.build_mesh").stderr


def test_the_strategies_do_not_load_torch() -> None:
    assert loaded("import meshkit.testing", "hypothesis", "torch") == ["hypothesis"]


def test_the_light_import_can_fail() -> None:
    assert loaded("import meshkit, numpy", "torch", "numpy") == ["numpy"]
    assert loaded("import meshkit; meshkit.Layout", "numpy") == ["numpy"]
    assert loaded("import meshkit; meshkit.Mesh", "torch") == ["torch"]


def test_testing_without_hypothesis_says_what_to_install() -> None:
    done = run("import sys; sys.modules['hypothesis'] = None\nimport meshkit.testing")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == ("ImportError: meshkit.testing needs hypothesis: pip install 'meshkit[testing]'")


# ---------------------------------------------------------------- the door


def of_the_door(kind: type[ast.AST]) -> list[Any]:
    return [
        node for node in ast.walk(ast.parse(inspect.getsource(meshkit))) if isinstance(node, kind)
    ]


def test_all_is_sorted_and_nothing_stands_twice() -> None:
    assert meshkit.__all__ == sorted(set(meshkit.__all__))


@pytest.mark.parametrize("name", meshkit.__all__)
def test_all_is_importable_and_documented(name: str) -> None:
    value = getattr(meshkit, name)
    assert inspect.isclass(value) or inspect.isfunction(value)
    assert value.__name__ == name
    assert value.__doc__
    assert value.__doc__.strip()
    assert not value.__doc__.startswith(f"{name}(")  # what a dataclass writes by itself
    assert name in dir(meshkit)
    exec(f"from meshkit import {name}", {})


def test_all_is_what_type_checkers_see() -> None:
    blocks = [node for node in of_the_door(ast.If) if ast.unparse(node.test) == "TYPE_CHECKING"]
    seen = {}
    for node in ast.walk(blocks[0]):
        if isinstance(node, ast.ImportFrom):
            seen.update({alias.name: node.module for alias in node.names})
    assert sorted(seen) == meshkit.__all__
    assert {name: meshkit._ROOM_OF.get(name, "core.errors") for name in seen} == seen


def test_the_rooms_hold_what_the_door_says() -> None:
    listed = [name for names in meshkit._ROOMS.values() for name in names]
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(meshkit.__all__)
    for where, names in meshkit._ROOMS.items():
        module = importlib.import_module(f"meshkit.{where}")
        for name in names:
            assert getattr(module, name).__module__ == module.__name__
    rest = set(meshkit.__all__) - set(listed)
    kinds = {n for n, v in vars(errors).items() if isinstance(v, type) and issubclass(v, Exception)}
    assert rest == kinds


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'meshkit' has no attribute 'nothing'"):
        _ = meshkit.nothing
    with pytest.raises(ImportError):
        exec("from meshkit import nothing", {})
    assert not hasattr(meshkit, "numpy")


def test_the_rooms_of_testing_are_what_they_list() -> None:
    testing = importlib.import_module("meshkit.testing")
    assert testing.__all__ == sorted(set(testing.__all__))
    assert all(getattr(testing, name).__doc__ for name in testing.__all__)
