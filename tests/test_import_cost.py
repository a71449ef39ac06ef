"""An import loads only what it needs: neither torch nor numpy for ``import meshkit``."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import meshkit
from tests.preloaded_python import run_python

ROOT = Path(meshkit.__file__).parent


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter, which no coverage tool has imported anything into."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )


def loaded_modules(code: str) -> set[str]:
    """Return the names of all modules that are loaded after the code ran."""
    done = run(f"{code}\nimport sys\nprint(sorted(sys.modules))")
    assert done.returncode == 0, done.stderr
    return set(ast.literal_eval(done.stdout.splitlines()[-1]))


def test_import_meshkit_loads_neither_torch_nor_numpy() -> None:
    modules = loaded_modules("import meshkit")
    assert modules.isdisjoint({"torch", "numpy", "einops", "hypothesis"})
    assert {name for name in modules if name.startswith("meshkit")} == {"meshkit"}


def test_pure_names_do_not_load_torch() -> None:
    code = """
import meshkit
layout = meshkit.factor_world(64, tp=8, sp=2)
str(layout), layout.groups("dp"), layout.rearrange("dp sp tp -> (dp sp) tp")
meshkit.BatchPlan.solve(dp=4, global_batch=64, micro_batch=2).samples(0, 0)
meshkit.SequencePlan(16, 4, "zigzag").inverse()
meshkit.detect({})
str(meshkit.plan_redistribution("dp=4 tp=2", "o/dp/tp i -> o/tp i/dp", o=64, i=64))
[getattr(meshkit, name) for name in meshkit.__all__ if name.endswith("Error")]
import meshkit.layout.group_plan, meshkit.bench.results
import meshkit.cli.bench, meshkit.cli.ranks, meshkit.cli.inspect
"""
    modules = loaded_modules(code)
    assert "numpy" in modules
    assert "torch" not in modules


def test_a_mesh_loads_torch_without_its_compiler_and_without_dtensors() -> None:
    """A DTensor is recognized without its package."""
    code = """
import meshkit
meshkit.build_mesh
import torch
from meshkit.launch.tensors import is_dtensor
is_dtensor(torch.ones(1))
"""
    modules = loaded_modules(code)
    assert "torch" in modules
    assert modules.isdisjoint({"torch._dynamo", "torch.distributed.tensor"})


def test_a_recovery_imports_nothing() -> None:
    code = """
from meshkit.layout.layout import Layout
from meshkit.launch.regroup import find_sources, regroup
regrouped = regroup(Layout(dp=4, tp=2), [0, 2, 3, 5, 6, 7])
find_sources(regrouped, dict.fromkeys(regrouped.old_ranks, 3)), regrouped.moves
"""
    assert "numpy.ma" not in loaded_modules(code)  # each rank would take 20 ms, in each new process


def test_pure_names_work_if_torch_cannot_be_imported() -> None:
    blocked = "import sys; sys.modules['torch'] = None\nimport meshkit\n"
    done = run(f"{blocked}print(repr(meshkit.factor_world(64, tp=8)))")
    assert done.stdout == "Layout(dp=8, tp=8)\n"
    last = run(f"{blocked}meshkit.build_mesh").stderr.splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ")
    assert "torch" in last


def test_only_the_strategies_need_hypothesis() -> None:
    blocked = "import sys; sys.modules['hypothesis'] = None\nimport meshkit.testing\n"
    assert run_python(f"{blocked}from meshkit.testing.faults import play").returncode == 0
    done = run(f"{blocked}from meshkit.testing import layouts")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    text = "the strategies of meshkit.testing need hypothesis: pip install hypothesis"
    assert last == f"ImportError: {text}"
