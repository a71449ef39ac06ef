"""spawn from a session without a file (a prompt, a notebook, python -c), and from a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import meshkit
from meshkit.launch import spawn as start_method
from tests.preloaded_python import run_python

SUM = """
import os
import meshkit, torch, torch.distributed as dist
def job(number):
    with meshkit.build_mesh(dp=2) as mesh:
        total = torch.tensor([mesh.rank + number])
        dist.all_reduce(total, group=mesh.group("dp"))
        return int(total), os.getppid()
"""


def session(code: str, *, stdin: bool = False) -> subprocess.CompletedProcess[str]:
    arguments = ["-W", "error", "-"] if stdin else ["-W", "error", "-c", code]
    return subprocess.run(
        [sys.executable, *arguments],
        input=code if stdin else None,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("stdin", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_function_typed_into_a_session_is_forked_from_it(stdin: bool) -> None:
    code = SUM + "(a, parent), b = meshkit.spawn(job, 2, (10,), timeout=60)\n"
    code += "print(a, b[0], parent == os.getpid(), dist.is_initialized())\n"
    done = session(code, stdin=stdin)
    assert done.stdout == "21 21 True False\n", done.stderr


# The sessions below are like the first one above, except that torch is imported before they begin.


def test_forked_ranks_use_one_thread_and_spawn_returns_when_they_end() -> None:
    """The session has started OpenMP threads, which do not survive a fork.

    ``spawn`` kills a rank that does not end after 10 s.
    """
    code = "import time, meshkit, torch\n"
    code += "def f():\n    x = torch.ones(600, 600)\n"
    code += "    return float((x @ x).sum()), torch.get_num_threads()\n"
    code += "torch.set_num_threads(4)\nf()\nbegan = time.monotonic()\n"
    code += "print(meshkit.spawn(f, 3, timeout=60), time.monotonic() - began < 10)\n"
    done = run_python(code)
    assert done.stdout == f"{[(600.0**3, 1)] * 3} True\n", done.stderr


def test_the_traceback_of_the_first_rank_that_failed() -> None:
    code = "import meshkit\ndef f():\n    raise KeyError('boo')\n"
    code += "try: meshkit.spawn(f, 2)\nexcept meshkit.SpawnError as e: print(e)\n"
    done = run_python(code)
    assert "failed first, with KeyError: 'boo'" in done.stdout, done.stderr
    assert ", in f" in done.stdout


def test_a_session_that_uses_cuda_raises() -> None:
    code = "import meshkit, torch\ndef f(): pass\n"
    code += "torch.cuda.is_initialized = lambda: True\n"
    code += "try: meshkit.spawn(f, 2)\nexcept meshkit.SpecError as e: print(e)\n"
    assert run_python(code).stdout == (
        "spawn(f, 2): fn was typed into this session, which cannot be forked: it uses cuda, "
        "which does not work in a fork.\n"
        "  Fix: write fn into a file and import it; or restart, and spawn before cuda is used.\n"
    )


def test_a_session_that_has_joined_a_job_raises() -> None:
    code = "import meshkit\ndef f(): return 1\nmeshkit.init()\n"
    code += "try: meshkit.spawn(f, 2)\nexcept meshkit.SpecError as e: print(e)\n"
    code += "meshkit.shutdown()\nprint(meshkit.spawn(f, 2))\n"
    assert run_python(code).stdout == (
        "spawn(f, 2): fn was typed into this session, which cannot be forked: "
        "it has joined a job.\n"
        "  Fix: meshkit.shutdown() first.\n"
        "[1, 1]\n"
    )


def test_ranks_start_with_the_objects_of_torch_frozen(tmp_path: Path) -> None:
    """The script is a separate process, since the preloaded modules of the tests are frozen too."""
    script = tmp_path / "script.py"
    code = "import gc, meshkit\nif __name__ == '__main__':\n"
    script.write_text(
        code + "    print(*meshkit.spawn(gc.get_freeze_count, 1), gc.get_freeze_count())\n"
    )
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rank, caller = map(int, done.stdout.split())
    assert rank > 100_000
    assert caller < 1000  # the heap of the caller is not frozen


def test_the_heap_of_the_tests_is_not_frozen() -> None:
    """``--doctest-modules`` imports all modules of meshkit except gc_freeze."""
    assert "meshkit.launch.gc_freeze" not in sys.modules


def test_modules_are_preloaded_once_in_order_before_the_freeze(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start_method, "_preloaded", ("torch",))
    start_method.preload("a", "b")
    start_method.preload("b", "c")
    context = start_method.context_for(session)
    server = sys.modules["multiprocessing.forkserver"]._forkserver
    first, last = (f"meshkit.launch.spawn.{name}" for name in ("end_on_interrupt", "gc_freeze"))
    assert server._preload_modules == [first, "torch", "a", "b", "c", last]
    monkeypatch.undo()
    assert start_method.context_for(session) is context


def test_spawn_registers_the_mesh_and_launch_does_not_name_it() -> None:
    code = "import sys, meshkit; meshkit.spawn\n"
    code += "from meshkit.launch.spawn import start_method\n"
    code += "print('meshkit.live.build_mesh' in start_method._preloaded, 'torch' in sys.modules)\n"
    assert session(code).stdout == "True False\n"
    package = Path(meshkit.__file__).parent / "launch"
    files = [path.name for path in package.rglob("*.py") if "meshkit.live" in path.read_text()]
    assert files == []
