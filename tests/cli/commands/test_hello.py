"""``meshkit hello``: real ranks that greet, under spawn, torchrun and nobody."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.cli.commands import hello
from meshkit.cli.commands.hello import Greeting
from meshkit.cli.main import main
from meshkit.launch.launchers.table import LAUNCHERS
from tests.preloaded_python import MESHKIT, run_python

ROOT = Path(__file__).parents[3]
KNOWN = {name for row in LAUNCHERS for names in row.markers for name in names}
CLEAN = {name: value for name, value in os.environ.items() if name not in KNOWN}
MODULE = ["-m", "meshkit", "hello"]
Here = Callable[..., tuple[int, str, str]]


def run(*command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**CLEAN, "OMP_NUM_THREADS": "1", **environ},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """A command of this process, which has imported torch: its exit code, output and errors."""
    for name in KNOWN:
        monkeypatch.delenv(name, raising=False)

    def greet(*typed: str) -> tuple[int, str, str]:
        return main(["hello", *typed]), *capsys.readouterr()

    return greet


def one(rank: int, *, ok: bool = True) -> Greeting:
    return Greeting(rank, 3, rank, "a", "cpu", "gloo", "torchrun", 310 + rank, ok)


# ---------------------------------------------------------------- real runs


def test_four_local_processes_greet() -> None:
    done = run("-W", "error", *MODULE, "-n", "4")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    *lines, last = done.stdout.splitlines()
    where = re.escape(socket.gethostname())
    pids = set()
    for rank, line in enumerate(lines):
        pattern = rf"rank {rank} of 4 says hello from host {where}, device \S+, pid (\d+)"
        results = re.fullmatch(pattern, line)
        assert results, line
        pids.add(results[1])
    assert len(pids) == 4
    assert re.fullmatch(r"OK: the all-reduce over 4 ranks on \w+\.", last)


@pytest.mark.slow
def test_four_local_processes_as_one_json_object(here: Here) -> None:
    code, out, error = here("-n", "4", "--json", "--device", "cpu")
    assert (code, error) == (0, "")
    reported = json.loads(out)
    assert (reported["ok"], reported["world_size"]) == (True, 4)
    assert [rank["rank"] for rank in reported["ranks"]] == [0, 1, 2, 3]
    assert [rank["local_rank"] for rank in reported["ranks"]] == [0, 1, 2, 3]
    assert {rank["device"] for rank in reported["ranks"]} == {"cpu"}
    assert {rank["host"] for rank in reported["ranks"]} == {socket.gethostname()}
    assert {rank["launcher"] for rank in reported["ranks"]} == {"spawn"}
    assert len({rank["pid"] for rank in reported["ranks"]}) == 4


def test_without_n_it_is_one_process_here() -> None:
    done = run_python(MESHKIT, "hello", "--json", "--device", "cpu", environ=CLEAN)
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert reported["world_size"] == 1
    assert reported["ranks"][0]["launcher"] == "single"


@pytest.mark.slow
def test_under_torchrun_rank_0_prints_for_all() -> None:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = run(*torchrun, *MODULE, "--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)  # one object, printed once
    assert [rank["rank"] for rank in reported["ranks"]] == [0, 1]
    assert {rank["launcher"] for rank in reported["ranks"]} == {"torchrun"}


def test_n_inside_a_launcher_starts_a_job_of_its_own(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "far", "MASTER_PORT": "29500"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    code, out, _ = here("-n", "2", "--json", "--device", "cpu")
    assert (code, json.loads(out)["world_size"]) == (0, 2)


# ---------------------------------------------------------------- what goes wrong


def test_more_ranks_than_fit_are_refused_before_a_rank_starts(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshkit.cli.options.memory.memory", lambda: 20 * 10**9)
    monkeypatch.setattr(hello, "spawn_ranks", lambda *_, **__: pytest.fail("ranks were started"))
    assert here("-n", "100000") == (
        2,
        "",
        "meshkit hello -n 100000: 100000 ranks do not fit into the memory of this machine.\n"
        "  Each needs about 33554432 bytes without an array; 20000000000 are available.\n"
        "  Fix: -n 149.\n",
    )
    monkeypatch.setattr(hello, "spawn_ranks", lambda *_, **__: [one(0)])
    assert here("-n", "149")[0] == 0


@pytest.mark.parametrize("text", ["0", "x", "-1", "2.5", "", "\u0662"])
def test_no_number_of_processes(here: Here, text: str) -> None:
    code, out, error = here("-n", text)
    assert (code, out) == (2, "")
    assert f": -n: {text!a} is not a whole number of 1 or more.\n" in error


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without one")
def test_a_device_that_is_not_there(here: Here) -> None:
    assert here("--device", "cuda") == (
        1,
        "",
        "meshkit hello --device cuda: there is no cuda:0 for local_rank 0.\n"
        "  This process sees 0 cuda devices.\n"
        "  Fix: init(device='cpu').\n",
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without one")
def test_a_device_that_is_not_there_for_local_processes(here: Here) -> None:
    assert here("-n", "1", "--device", "cuda") == (
        1,
        "",
        "meshkit hello -n 1 --device cuda: rank 0 of 1 failed first.\n"
        "  LaunchError: init(device='cuda', timeout=60.0): there is no cuda:0 for local_rank 0.\n"
        "  This process sees 0 cuda devices.\n"
        "  Fix: init(device='cpu').\n",
    )


@pytest.mark.slow
def test_ranks_that_do_not_come_within_the_timeout() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    arguments = ("--device=cpu", "--timeout=2")
    done = run(*MODULE, *arguments, RANK="0", WORLD_SIZE="2", **place)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.endswith(  # torch's own log may stand before it
        "1 of 2 ranks did not arrive at meshkit hello --device cpu --timeout 2 "
        f"within 2 s.\n  Missing: 1. Arrived: 0 on host {socket.gethostname()}.\n"
        "  Fix: look at the logs of rank 1 first.\n"
    )


def test_a_bad_environment_is_one_message(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert here() == (
        1,
        "",
        "meshkit hello: RANK=9 must be below WORLD_SIZE=8.\n"
        "  Both were read for the launcher hand-written.\n"
        "  Fix: export RANK and WORLD_SIZE so that they agree.\n",
    )


def test_no_torch_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no libtorch.so')\n")
    done = run(*MODULE, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "meshkit hello: no libtorch.so\n")


# ---------------------------------------------------------------- what is said


def test_the_text_word_for_word() -> None:
    assert hello.as_text([one(0), one(1, ok=False), one(2, ok=False)]) == (
        "rank 0 of 3 says hello from host a, device cpu, pid 310\n"
        "rank 1 of 3 says hello from host a, device cpu, pid 311\n"
        "rank 2 of 3 says hello from host a, device cpu, pid 312\n"
        "FAILED: the all-reduce over 3 ranks on gloo was wrong on 1-2."
    )


def test_a_wrong_sum_fails_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    args = Namespace(n=None, device=None, timeout=60.0, json=True)
    for rank, prints in ((0, True), (2, False)):
        monkeypatch.setattr(hello, "greet", lambda *_, rank=rank: one(rank))
        monkeypatch.setattr(hello, "_gather", lambda _: [one(0), one(1, ok=False), one(2)])
        answer = hello.run(args)
        assert answer.ok is False
        assert bool(answer.text) is prints


def missing_one() -> tuple[bool, bool]:
    """Run the check with the real all-reduce, then with one that loses rank 1."""
    world = meshkit.init(device="cpu")
    right = hello._check_all_reduce(world.rank, world.world_size, "cpu")
    reduce = dist.all_reduce

    def lossy(seen: torch.Tensor) -> None:
        reduce(seen)
        seen[1] = 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", lossy)
        return right, hello._check_all_reduce(world.rank, world.world_size, "cpu")


def test_the_check_can_fail() -> None:
    assert meshkit.spawn(missing_one, 2, timeout=60) == [(True, False)] * 2


def test_ranks_that_share_a_machine_greet_from_a_device_they_can_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = []
    monkeypatch.setattr(hello, "choose_shared_device", lambda device: f"shared {device}")
    monkeypatch.setattr(hello, "greet", lambda *arguments: called.append(arguments))
    hello.greet_on_shared_device("cuda", 5.0)
    assert called == [("shared cuda", 5.0)]
