"""Local processes: results, errors, and nothing left behind; from a script and from a session."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import spawn as spawn_module
from meshkit.launch import worker as worker_module
from meshkit.launch.spawn import Failure, _receive, spawn
from tests.preloaded_python import run_python


@pytest.fixture(scope="module", autouse=True)
def started() -> None:
    """Let the forkserver import torch before a test measures a time."""
    meshkit.spawn(os.getpid, 1, timeout=60)


def tensor_and_variable(name: str) -> tuple[torch.Tensor, str | None]:
    return torch.arange(3) + meshkit.detect().rank, os.environ.get(name)


def test_results_are_in_rank_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forkserver was started before the variable was set."""
    monkeypatch.setenv("MESHKIT_TEST", "a")
    results = meshkit.spawn(tensor_and_variable, 4, ("MESHKIT_TEST",), timeout=3e6)
    assert [(int(tensor[0]), value) for tensor, value in results] == [(r, "a") for r in range(4)]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "outer")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    ((_, value),) = meshkit.spawn(tensor_and_variable, 1, ("TORCHELASTIC_RUN_ID",), timeout=60)
    assert value is None


def use_plain_torch() -> tuple[int, list[str]]:
    """Join as torch does, beside the store of meshkit, and build a mesh on that group."""
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    with meshkit.build_mesh(dp=-1, tp=1) as mesh:
        assert mesh.layout.sizes == {"dp": 3, "tp": 1}
    names = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    dist.destroy_process_group()
    return int(total), [os.environ[name] for name in names]


def test_torch_can_join_without_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "an.outer.host.invalid")
    results = meshkit.spawn(use_plain_torch, 3, timeout=120)
    assert [total for total, _ in results] == [3] * 3
    ports = {environ[1] for _, environ in results}
    assert [environ for _, environ in results] == [
        ["127.0.0.1", *ports, str(rank), "3"] for rank in range(3)
    ]


def takes_a_rank(rank: int, number: int) -> None:
    raise AssertionError((rank, number))


INVALID_CALLS: list[tuple[Any, ...]] = [
    (takes_a_rank, 2, (10,)),  # torch.multiprocessing.spawn passes the rank first
    (takes_a_rank, 2, (1, 2, 3)),
    (takes_a_rank, 2),
    (os.getpid(), 2),  # the function was called
    (takes_a_rank, 2, 5),
    (takes_a_rank, 2, "ab"),
    (lambda: None, 2),
    *((os.getpid, count) for count in (0, -1, True, 2.0, "2")),
]


@pytest.mark.parametrize("call", INVALID_CALLS)
def test_invalid_arguments_start_no_process(
    call: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "start_process", None)
    with pytest.raises(meshkit.SpecError):
        meshkit.spawn(*call)


def build_a_mesh(size: int = 2) -> None:
    meshkit.build_mesh(dp=2, tp=size)


def test_a_function_that_is_called_in_place_of_being_passed_is_named() -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: meshkit.spawn(build_a_mesh(), 4), "meshkit.spawn(build_a_mesh, 4)"),  # type: ignore[arg-type, func-returns-value]
        (lambda: meshkit.spawn(build_a_mesh(3), 6), "meshkit.spawn(build_a_mesh, 6, args=(3,))"),  # type: ignore[arg-type, func-returns-value]
        (lambda: meshkit.spawn(set(), 4), "meshkit.spawn(set, 4)"),  # type: ignore[arg-type]
        (lambda: spawn(set(), 4), "spawn(set, 4)"),  # type: ignore[arg-type]
    ]
    for call, fix in calls:
        with pytest.raises(meshkit.SpecError) as caught:
            call()
        assert caught.value.fix == f"{fix}, with the function itself."


def test_the_line_of_another_library_is_not_quoted() -> None:
    pool = SimpleNamespace(spawn=lambda result, count: meshkit.spawn(result, count))
    with pytest.raises(meshkit.SpecError) as caught:
        pool.spawn(set(), 4)
    assert caught.value.fix == "the name of a function, without brackets."


def test_the_other_order_of_torch_keeps_the_arguments() -> None:
    for args, fix in (((), "spawn(build_a_mesh, 4)."), (((1,),), "spawn(build_a_mesh, 4, (1,)).")):
        with pytest.raises(meshkit.SpecError) as caught:
            meshkit.spawn(4, build_a_mesh, *args)  # type: ignore[arg-type]
        assert caught.value.fix == fix


def spawn_again() -> str:
    with pytest.raises(meshkit.LaunchError) as caught:
        meshkit.spawn(os.getpid, 2)
    return caught.value.summary


def test_spawn_under_a_launcher_is_refused() -> None:
    for rank, summary in enumerate(meshkit.spawn(spawn_again, 2, timeout=60)):
        assert summary == f"spawn has started this process as rank {rank} of 2."


def raise_on_rank_1() -> None:
    if meshkit.detect().rank == 1:
        raise ValueError("boo")
    meshkit.init()
    dist.barrier()


def test_the_first_failed_rank_is_named_and_the_others_are_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spawn_module, "GRACE", 2.0)
    with pytest.raises(meshkit.SpawnError) as caught:
        meshkit.spawn(raise_on_rank_1, 3)
    error = caught.value
    assert error.summary == "rank 1 failed first, with ValueError: boo"
    assert error.__cause__ is error.errors[1]
    assert "in raise_on_rank_1" in error.tracebacks[1]
    for rank in (0, 2):
        killed = error.errors[rank]
        assert isinstance(killed, meshkit.RankTimeoutError)
        assert killed.missing_ranks == (rank,)


def ask_for_an_unknown_axis() -> None:
    with meshkit.build_mesh(dp=-1) as mesh:
        mesh.group("ddp")


def return_a_mesh() -> object:
    with meshkit.build_mesh(dp=-1) as mesh:
        return mesh


def test_an_error_of_meshkit_on_a_rank_has_the_line_of_the_user_and_its_own_fix() -> None:
    with pytest.raises(meshkit.SpawnError) as caught:
        meshkit.spawn(ask_for_an_unknown_axis, 2, timeout=60)
    error = caught.value
    first, other = (0, 1) if error.__cause__ is error.errors[0] else (1, 0)
    line = ask_for_an_unknown_axis.__code__.co_firstlineno + 2
    lines = [line for line in str(error).splitlines() if not re.fullmatch(r"[ ^~]*", line)]
    assert lines == [
        f"spawn(ask_for_an_unknown_axis, 2, timeout=60): rank {first} failed first, with "
        "UnknownAxisError: mesh.group('ddp'): there is no axis 'ddp'.",
        "  Traceback (most recent call last):",
        f'    File "{__file__}", line {line}, in ask_for_an_unknown_axis',
        '      mesh.group("ddp")',
        "  The axes are dp.",
        f"  Rank {other}: the same.",
        "  Fix: did you mean dp?",
    ]
    assert "registry.py" in error.tracebacks[first]  # the whole one


def test_the_fix_of_a_result_that_cannot_be_sent() -> None:
    with pytest.raises(meshkit.SpawnError) as caught:
        meshkit.spawn(return_a_mesh, 1, timeout=60)
    assert "the result of fn, a Mesh, cannot be sent back." in caught.value.summary
    assert "belong to one process." in caught.value.evidence[-1]
    assert caught.value.fix.startswith("mesh.position")


def end_on_rank_1(how: str) -> None:
    if meshkit.detect().rank != 1:
        time.sleep(60)
    elif how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        sys.exit(int(how))


@pytest.mark.parametrize(
    ("how", "errors"),
    [
        ("0", (meshkit.RankTimeoutError, None, meshkit.RankTimeoutError)),
        ("3", (meshkit.RankTimeoutError, SystemExit, meshkit.RankTimeoutError)),
        ("killed", (meshkit.RankTimeoutError, RuntimeError, meshkit.RankTimeoutError)),
    ],
)
def test_the_error_of_each_rank(how: str, errors: tuple[type[BaseException] | None, ...]) -> None:
    """If no rank failed before the deadline, no rank failed first."""
    with pytest.raises(meshkit.SpawnError) as caught:
        meshkit.spawn(end_on_rank_1, 3, (how,), timeout=1.5)
    error = caught.value
    expected = {rank: kind for rank, kind in enumerate(errors) if kind}
    assert {rank: type(error) for rank, error in error.errors.items()} == expected
    assert error.summary.startswith("rank 1 failed first" if errors[1] else "ranks 0 and 2: ")
    assert ("SIGKILL" in str(error)) == (how == "killed")


def test_a_dead_process_failed_before_the_peer_that_raised_because_of_it() -> None:
    """The peer raises half a second before the parent sees that the process is dead."""
    peer = Failure(RuntimeError("connection closed by peer"), "", time.monotonic() - 0.5)
    receiver, sender = Pipe(duplex=False)
    sender.close()
    process: Any = SimpleNamespace(join=lambda seconds: None, exitcode=-signal.SIGKILL)
    dead = _receive(worker_module.Worker(process, receiver))
    assert isinstance(dead, Failure)
    assert dead.when < peer.when


class UnpicklableError(Exception):
    """An exception that pickle cannot rebuild."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def fail_to_send(raises: bool) -> Any:
    if raises:
        raise UnpicklableError(1, 2)
    return lambda: None


@pytest.mark.parametrize(
    ("raises", "text", "kind"),
    [(True, "UnpicklableError: 1 and 2", RuntimeError), (False, "a function", TypeError)],
)
def test_values_that_cannot_be_pickled_raise(raises: bool, text: str, kind: type) -> None:
    with pytest.raises(meshkit.SpawnError, match=text) as caught:
        meshkit.spawn(fail_to_send, 1, (raises,), timeout=60)
    assert type(caught.value.errors[0]) is kind


def modules_imported_by_build_mesh() -> list[str]:
    """Return the modules of meshkit that init and build_mesh import in this process."""
    before = set(sys.modules)
    meshkit.build_mesh(dp=-1, tp=2).close()
    return sorted(name for name in set(sys.modules) - before if name.startswith("meshkit"))


def test_children_start_with_all_modules_of_a_mesh_imported() -> None:
    assert meshkit.spawn(modules_imported_by_build_mesh, 2, timeout=60) == [[], []]


# ---------------------------------------------------------------- scripts and sessions

JOB = """
import gc, os, sys, time
import meshkit

def job(folder):
    with open(f"{folder}/{meshkit.detect().rank}.{os.getpid()}", "w") as file:
        file.write(str(gc.get_freeze_count()))
    time.sleep(600)

if __name__ == "__main__":
    meshkit.spawn(job, 3, (sys.argv[1],))
"""


@pytest.mark.parametrize("forked", [False, True])
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, marks=pytest.mark.nightly),  # ends Python as SIGKILL does
    ],
)
def test_no_rank_outlives_its_parent(tmp_path: Path, number: signal.Signals, forked: bool) -> None:
    """``python -c`` has no file, so its ranks are forked. On Ctrl-C only the parent prints.

    A fresh rank has a frozen heap; the preloaded modules of the tests are frozen too.
    """
    script, folder = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(JOB)
    folder.mkdir()
    code = ["-c", JOB] if forked else [str(script)]
    parent = subprocess.Popen(
        [sys.executable, *code, str(folder)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: sum(path.stat().st_size > 0 for path in folder.iterdir()) == 3)
    pids = [int(path.suffix[1:]) for path in folder.iterdir()]
    frozen = [int(path.read_text()) for path in folder.iterdir()]
    assert forked or min(frozen) > 100_000
    if number == signal.SIGINT:
        os.killpg(parent.pid, number)  # as a terminal does
    else:
        parent.send_signal(number)
    _, stderr = parent.communicate(timeout=30)
    assert parent.returncode != 0
    assert stderr.count("Traceback") == (number == signal.SIGINT), stderr
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the condition is still false"
        time.sleep(0.05)


def test_a_script_without_a_main_guard_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "unguarded.py"
    path.write_text("import gc, meshkit\nprint(gc.get_freeze_count())\nmeshkit.spawn(int, 1)\n")
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "Fix: write if __name__ == '__main__':" in done.stderr
    assert done.stderr.count("Traceback") == 1  # the ranks print none
    assert int(done.stdout.split()[0]) < 1000  # the heap of the caller is not frozen


SUM = """
import os
import meshkit, torch, torch.distributed as dist
def job(number):
    with meshkit.build_mesh(dp=2) as mesh:
        total = torch.tensor([mesh.rank + number])
        dist.all_reduce(total, group=mesh.group("dp"))
        return int(total), os.getppid()
(a, parent), b = meshkit.spawn(job, 2, (10,), timeout=60)
print(a, b[0], parent == os.getpid(), dist.is_initialized())
"""


@pytest.mark.parametrize("stdin", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_function_typed_into_a_session_is_forked_from_it(stdin: bool) -> None:
    command = [sys.executable, "-W", "error", *(["-"] if stdin else ["-c", SUM])]
    text = SUM if stdin else None
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    assert done.stdout == "21 21 True False\n", done.stderr


# The sessions below are like the one above, except that torch is imported before they begin.


def test_forked_ranks_use_one_thread_and_show_the_traceback_of_a_failure() -> None:
    """The session has started OpenMP threads, which do not survive a fork."""
    code = "import meshkit, torch\n"
    code += "def f():\n    x = torch.ones(600, 600)\n"
    code += "    return float((x @ x).sum()), torch.get_num_threads()\n"
    code += "torch.set_num_threads(4)\nf()\nprint(meshkit.spawn(f, 3, timeout=60))\n"
    code += "def g():\n    raise KeyError('boo')\n"
    code += "try: meshkit.spawn(g, 2)\nexcept meshkit.SpawnError as e: print(e)\n"
    done = run_python(code)
    assert done.stdout.startswith(f"{[(600.0**3, 1)] * 3}\n"), done.stderr
    assert ", in g\n" in done.stdout


def test_a_session_that_cannot_be_forked_raises() -> None:
    """It can again after it has left the job, but not after it has used an accelerator."""
    spawn = "try: print(meshkit.spawn(f, 2))\nexcept meshkit.SpecError as e: print(e.summary)\n"
    code = f"import meshkit, torch\ndef f(): return 1\nmeshkit.init()\n{spawn}"
    code += f"meshkit.shutdown()\n{spawn}torch.cuda.is_initialized = lambda: True\n{spawn}"
    joined, results, used = run_python(code).stdout.splitlines()
    assert "joined a job" in joined
    assert results == "[1, 1]"
    assert "cuda" in used


def return_from_a_fork() -> str:
    if os.fork() == 0:
        return "child"
    os.wait()
    return "rank"


def test_a_child_that_a_rank_has_forked_returns_no_result() -> None:
    assert meshkit.spawn(return_from_a_fork, 2, timeout=60) == ["rank", "rank"]
