"""Local processes: results, errors, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from datetime import timedelta
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.launch.spawn.spawn import _first_failure, _outcome
from meshkit.launch.spawn.worker import Failure


@pytest.fixture(scope="module", autouse=True)
def started() -> None:
    """Let the forkserver import torch before a test measures a time."""
    meshkit.spawn(os.getpid, 1, timeout=60)


def rank_plus(number: int) -> int:
    return meshkit.detect().rank + number


def test_results_are_in_rank_order() -> None:
    assert meshkit.spawn(rank_plus, 4, (10,), timeout=60) == [10, 11, 12, 13]


def return_tensor() -> torch.Tensor:
    return torch.arange(3) + meshkit.detect().rank


def test_tensors_are_returned() -> None:
    first, second = meshkit.spawn(return_tensor, 2, timeout=60)
    assert torch.equal(first + 1, second)


def environment_of_child(name: str) -> str | None:
    return os.environ.get(name)


def test_children_have_the_current_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("a", "b"):  # the forkserver was started before
        monkeypatch.setenv("MESHKIT_TEST", value)
        assert meshkit.spawn(environment_of_child, 1, ("MESHKIT_TEST",)) == [value]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "outer")
    assert meshkit.spawn(environment_of_child, 1, ("TORCHELASTIC_RUN_ID",)) == [None]


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


def expects_a_rank(rank: int, number: int) -> None:
    raise AssertionError((rank, number))


def error_of_spawn(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(meshkit.MeshkitError) as caught:
        meshkit.spawn(*args, **kwargs)
    return str(caught.value)


def test_calls_written_for_torch_are_translated() -> None:
    assert error_of_spawn(os.getpid, nprocs=4, join=True) == (
        "spawn(getpid, nprocs=4, join=True): nprocs is called world_size here.\n"
        "  there is no argument join here.\n"
        "  Fix: spawn(getpid, world_size=4)."
    )
    assert error_of_spawn(expects_a_rank, 2, (10,)) == (
        "spawn(expects_a_rank, 2, (10,)): expects_a_rank takes one argument more than args has: "
        "rank.\n"
        "  torch.multiprocessing.spawn passes the rank first; meshkit.spawn passes args alone.\n"
        "  Fix: remove rank from the parameters of expects_a_rank; meshkit.detect().rank is the "
        "rank."
    )
    assert "rank_plus does not take the 3 arguments of args." in error_of_spawn(
        rank_plus, 2, (1, 2, 3)
    )


def expects_rank_and_world_size(rank: int, world_size: int) -> None:
    raise AssertionError((rank, world_size))


def test_arguments_that_are_no_call_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshkit.launch.spawn.spawn._start", None)  # nothing is started
    assert "meshkit.detect() has the rank" in error_of_spawn(expects_rank_and_world_size, 2)
    text = error_of_spawn(os.getpid(), 2)  # the function was called
    assert "no function." in text
    assert "pass the function itself" in text
    assert "Fix: args=(5,)." in error_of_spawn(rank_plus, 2, 5)
    assert "Fix: args=('a',)." in error_of_spawn(rank_plus, 2, "a")


def spawn_again() -> str:
    return error_of_spawn(os.getpid, 2)


def test_spawn_under_a_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, text in enumerate(meshkit.spawn(spawn_again, 2, timeout=60)):
        assert text.startswith(
            f"spawn(getpid, 2): spawn has started this process as rank {rank} of 2.\n"
        )
        assert "Fix: call getpid without spawn: meshkit.build_mesh() in it uses the 2 ranks" in text
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    text = error_of_spawn(os.getpid, 2)
    assert text.startswith("spawn(getpid, 2): torchrun has started this process as rank 3 of 8.\n")
    monkeypatch.setenv("WORLD_SIZE", "1")  # a launcher of one process, srun -n1, is none
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert len(meshkit.spawn(os.getpid, 2, timeout=60)) == 2


def raise_on_rank_1() -> None:
    if meshkit.detect().rank == 1:
        raise ValueError("boo")
    meshkit.init()
    dist.barrier()


def test_the_first_failed_rank_is_named_and_the_others_are_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert timedelta(seconds=10) == sys.modules["meshkit.launch.spawn.spawn"].GRACE
    monkeypatch.setattr("meshkit.launch.spawn.spawn.GRACE", timedelta(seconds=2))
    began = time.monotonic()
    with pytest.raises(meshkit.SpawnError) as caught:
        meshkit.spawn(raise_on_rank_1, 3)
    assert 2 <= time.monotonic() - began < 12
    error = caught.value
    assert isinstance(error.errors[1], ValueError)
    assert error.__cause__ is error.errors[1]
    assert [type(error.errors[r]) for r in (0, 2)] == [meshkit.RankTimeoutError] * 2
    lines = str(error).splitlines()
    assert lines[0] == "spawn(raise_on_rank_1, 3): rank 1 failed first, with ValueError: boo"
    assert lines[1] == "  Traceback (most recent call last):"
    assert any("in raise_on_rank_1" in line for line in lines)
    after = re.fullmatch(
        r"  Ranks 0, 2: RankTimeoutError: still running after (\S+) s, killed", lines[-2]
    )
    assert after
    assert 2 <= float(after[1]) < 12
    assert lines[-1] == "  Fix: look at rank 1 first; the others may have failed because it did."


def sleep_except_on_rank_1() -> None:
    time.sleep(60 * (meshkit.detect().rank != 1))


def test_no_rank_failed_first_if_all_others_ran_until_the_deadline() -> None:
    with pytest.raises(meshkit.SpawnError) as caught:
        meshkit.spawn(sleep_except_on_rank_1, 3, timeout=1.5)
    first, fix = str(caught.value).splitlines()
    began = r"spawn\(sleep_except_on_rank_1, 3, timeout=1.5\): ranks 0 and 2: still running after"
    assert re.fullmatch(began + r" \S+ s, killed\.", first), first
    assert fix.startswith("  Fix: timeout=<more seconds>, if the work takes longer;")
    assert [type(error) for error in caught.value.errors.values()] == [meshkit.RankTimeoutError] * 2
    assert isinstance(caught.value.__cause__, meshkit.RankTimeoutError)


def kill_rank_1() -> None:
    meshkit.init(timeout=60)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_a_killed_rank_is_named_with_its_signal() -> None:
    with pytest.raises(meshkit.SpawnError) as caught:
        meshkit.spawn(kill_rank_1, 3, timeout=60)
    line = str(caught.value).splitlines()[0]
    assert line.startswith("spawn(kill_rank_1, 3, timeout=60): rank 1 failed first, with ")
    assert line.endswith("RuntimeError: the process ended by itself, with signal SIGKILL")
    assert sorted(caught.value.errors) == [0, 1, 2]


def exit_on_rank_0() -> None:
    if meshkit.detect().rank == 0:
        sys.exit(3)


def test_sys_exit_with_a_code_is_a_failure() -> None:
    with pytest.raises(meshkit.SpawnError) as caught:
        meshkit.spawn(exit_on_rank_0, 2, timeout=60)
    assert isinstance(caught.value.errors[0], SystemExit)


def test_sys_exit_0_returns_none() -> None:
    assert meshkit.spawn(sys.exit, 2, (0,), timeout=60) == [None, None]


def test_a_timeout_of_a_month() -> None:
    assert meshkit.spawn(rank_plus, 1, (1,), timeout=3e6) == [1]


def test_a_script_without_a_main_guard_gets_the_fix(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import meshkit\ndef f(): return 1\nmeshkit.spawn(f, 2)\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(
        "Fix: write if __name__ == '__main__': before the lines of the script that call spawn."
    )


def hang_on_rank_1() -> int:
    if meshkit.detect().rank == 1:
        time.sleep(600)
    return 0


def test_a_hang_ends_at_the_timeout() -> None:
    began = time.monotonic()
    with pytest.raises(meshkit.SpawnError) as caught:
        meshkit.spawn(hang_on_rank_1, 2, timeout=1.5)
    assert 1.5 <= time.monotonic() - began < 6
    assert sorted(caught.value.errors) == [1]
    error = caught.value.errors[1]
    assert isinstance(error, meshkit.RankTimeoutError)
    assert error.missing_ranks == (1,)


class UnpicklableError(Exception):
    """An exception that pickle cannot rebuild."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def raise_unpicklable() -> None:
    raise UnpicklableError(1, 2)


def return_unpicklable() -> Any:
    return lambda: None


def test_values_that_cannot_be_pickled_raise() -> None:
    with pytest.raises(meshkit.SpawnError, match="RuntimeError: UnpicklableError: 1 and 2"):
        meshkit.spawn(raise_unpicklable, 1, timeout=60)
    with pytest.raises(meshkit.SpawnError, match="the result of fn, a function, cannot be sent"):
        meshkit.spawn(return_unpicklable, 1, timeout=60)
    with pytest.raises(meshkit.SpecError, match="fn and args cannot be sent"):
        meshkit.spawn(lambda: None, 2)


@pytest.mark.parametrize("count", [0, -1, True, 2.0, "2"])
def test_an_invalid_number_of_processes(count: object) -> None:
    with pytest.raises(meshkit.SpecError, match="world_size is "):
        meshkit.spawn(os.getpid, count)  # type: ignore[arg-type]


OTHER_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SCRIPT = """
import os, sys, time
import meshkit

def job(folder):
    open(f"{folder}/{meshkit.detect().rank}.{os.getpid()}", "w").close()
    time.sleep(600)

if __name__ == "__main__":
    meshkit.spawn(job, 3, (sys.argv[1],))
"""


@pytest.mark.parametrize("forked", [False, True])
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, *(pytest.param(n, marks=pytest.mark.slow) for n in OTHER_SIGNALS)]
)
def test_no_rank_outlives_its_parent(tmp_path: Path, number: signal.Signals, forked: bool) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(SCRIPT)
    folder.mkdir()
    code = ["-c", SCRIPT] if forked else [str(script)]  # python -c has no file: ranks fork
    parent = subprocess.Popen(
        [sys.executable, *code, str(folder)], stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: len(list(folder.iterdir())) == 3, 60)
    pids = [int(path.suffix[1:]) for path in folder.iterdir()]
    assert all(alive(pid) for pid in pids)
    parent.send_signal(number)
    parent.communicate(timeout=30)
    assert parent.returncode != 0
    wait_until(lambda: not any(alive(pid) for pid in pids), 10)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(condition: object, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "the condition is still false"
        time.sleep(0.05)


def modules_imported_by_build_mesh() -> list[str]:
    """Return the modules of meshkit that init and build_mesh import in this process."""
    before = set(sys.modules)
    meshkit.build_mesh(dp=-1, tp=2).close()
    return sorted(name for name in set(sys.modules) - before if name.startswith("meshkit"))


def test_children_start_with_all_modules_of_a_mesh_imported() -> None:
    assert meshkit.spawn(modules_imported_by_build_mesh, 2, timeout=60) == [[], []]


def test_a_dead_process_failed_before_the_peer_that_raised_because_of_it() -> None:
    """The peer raises half a second before the parent sees that the process is dead."""
    peer = Failure(RuntimeError("connection closed by peer"), "", time.monotonic() - 0.5)
    receiver, sender = Pipe(duplex=False)
    sender.close()
    process: Any = SimpleNamespace(join=lambda seconds: None, exitcode=-signal.SIGKILL)
    dead = _outcome(process, receiver)
    assert isinstance(dead, Failure)
    assert "signal SIGKILL" in dead.summary
    assert _first_failure({0: peer, 1: dead}) == 1
