"""``meshkit check``: real ranks, started here, by torchrun and by hand; and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import meshkit
from meshkit.cli import ranks as check
from meshkit.cli.main import main
from meshkit.cli.ranks import check_mesh
from meshkit.core.report import CheckReport
from meshkit.launch.detect import detect
from meshkit.launch.launchers import LAUNCHERS
from meshkit.live import barrier as verify_module
from tests.cli.processes import ended
from tests.core.example_reports import REPORT
from tests.live.side_by_side import side_by_side
from tests.preloaded_python import MESHKIT, run_python

ROOT = Path(__file__).parents[3]
KNOWN = {name for row in LAUNCHERS for names in row.markers for name in names}
CLEAN = {name: value for name, value in os.environ.items() if name not in KNOWN}
MODULE = ["-m", "meshkit", "check"]
CPU = ["--device", "cpu"]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KNOWN:
        monkeypatch.delenv(name, raising=False)


def begun(*command: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        env={**CLEAN, "OMP_NUM_THREADS": "1", **environ},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def variables_by_hand(world_size: int) -> list[dict[str, str]]:
    """Return the variables of each rank of a job, with a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world_size)}
    return [{**place, "RANK": str(rank)} for rank in range(world_size)]


def by_hand(*ranks: list[str]) -> list[tuple[int, str, str]]:
    """Start ranks one by one; return exit code, output and errors of each."""
    pairs = zip(ranks, variables_by_hand(len(ranks)), strict=True)
    started = [begun(*command, **environ) for command, environ in pairs]
    return [ended(process) for process in started]


# ---------------------------------------------------------------- real ranks


def test_eight_local_ranks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["check", "dp=2", "sp=2", "tp=2", "pp=1", "-n", "8", *CPU]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    ms, four = r"\d+\.\d{3} ms", r"8 members took \d+\.\d{3} ms, at most \d+\.\d{3} ms on ranks"
    patterns = [
        r"pp=1 dp=2 sp=2 tp=2: 8 ranks, launcher spawn, device cpu, backend gloo; "
        r"joined and built in \d+\.\d\d s",
        rf"OK  dp sp tp  1 group of 8   {four} 0-7",
        rf"OK  dp        4 groups of 2  {four} \d, \d",
        rf"OK  sp        4 groups of 2  {four} \d, \d",
        rf"OK  tp        4 groups of 2  {four} \d-\d",
        rf"OK  dp sp     2 groups of 4  {four} \d, \d, \d, \d",
        r"OK  pp        8 groups of 1  nothing to check",
        r"OK: 15 groups checked in \d+\.\d\d s; "
        rf"rank \d \(pp=0 dp=\d sp=\d tp=\d\) came last, by {ms}",
    ]
    for line, pattern in zip(out.splitlines(), patterns, strict=True):
        assert re.fullmatch(pattern, line), line


@pytest.mark.slow
def test_under_torchrun_rank_0_prints_for_all() -> None:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "4"]
    arguments = ["sp=2", "dp=-1", "tp=1", "--groups", "sp dp", "--json", *CPU]
    code, out, error = ended(begun(*torchrun, *MODULE, *arguments))
    assert code == 0, error
    reported = json.loads(out)  # one object, printed once
    assert reported["sizes"] == {"dp": 2, "sp": 2, "tp": 1}
    assert (reported["ok"], reported["launcher"], reported["backend"]) == (True, "torchrun", "gloo")
    results = {tuple(one["axes"]): one for one in reported["groups"]}
    assert {axes: (one["num_groups"], one["group_size"]) for axes, one in results.items()} == {
        ("dp", "sp"): (1, 4),
        ("dp",): (2, 2),
        ("sp",): (2, 2),
        ("sp", "dp"): (1, 4),
    }
    assert all(one["members"] == 4 for one in results.values())
    assert 0 < results["dp",]["seconds"] <= results["dp",]["slowest_seconds"] < reported["checked"]


def test_one_rank_has_no_group_to_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["check", "dp=-1", "tp=1", "-n", "1", *CPU]) == 0
    _, dp, tp, last = capsys.readouterr().out.splitlines()
    assert dp == "OK  dp  1 group of 1  nothing to check"
    assert tp == "OK  tp  1 group of 1  nothing to check"
    assert re.fullmatch(r"OK: 0 groups checked in \d\.\d\d s", last)


# ---------------------------------------------------------------- a check that fails


def fails(
    job: Callable[..., CheckReport],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Return the error of four local ranks that run a job."""
    monkeypatch.setattr(check, "check_on_shared_device", job)
    assert main(["check", "dp=2", "sp=2", "-n", "4", "--timeout", "20", *CPU]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in error
    return error


def dies(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def one_dies(request: Mapping[str, Any], device: str | None, timeout: float) -> CheckReport:
    """Kill rank 1 when it begins to verify."""
    with pytest.MonkeyPatch.context() as patch:
        if detect().rank == 1:
            patch.setattr(meshkit.Mesh, "verify", dies)
        return check_mesh(request, device, timeout)


def test_a_rank_that_is_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, what, *_ = fails(one_dies, monkeypatch, capsys).splitlines()
    assert ": rank 1 of 4 failed first" in first
    assert what == "  RuntimeError: the process ended by itself, with signal SIGKILL"


def one_differs(request: Mapping[str, Any], device: str | None, timeout: float) -> CheckReport:
    """Check, with other sizes on rank 2."""
    return check_mesh({"dp": 4} if detect().rank == 2 else request, device, timeout)


def test_a_rank_with_other_sizes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *rest = fails(one_differs, monkeypatch, capsys).splitlines()
    assert re.match(r"meshkit check dp=2 .*: rank \d of 4 failed first", first)
    assert rest[0].startswith("  DisagreementError: ")
    assert rest[0].endswith("ranks disagree about the mesh; no process group was created.")
    assert [line.split(" (")[0] for line in rest[1:3]] == [
        "  ranks 0-1 and 3:  dp=2 sp=2",
        "  rank 2",
    ]
    assert rest[-1].startswith("  Fix: ")


def one_is_elsewhere(request: Mapping[str, Any], device: str | None, timeout: float) -> CheckReport:
    """Check, with a proof that fails on rank 1."""
    proved = verify_module._has_members
    with pytest.MonkeyPatch.context() as patch:
        if detect().rank == 1:
            patch.setattr(verify_module, "_has_members", lambda *given: proved(*given) and False)
        return check_mesh(request, device, timeout)


def test_a_group_of_other_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *rest = fails(one_is_elsewhere, monkeypatch, capsys).splitlines()
    assert rest == [
        "  MeshkitError: mesh.verify(timeout=20.0): the group over dp sp does not hold "
        "the ranks of the layout.",
        "  A gather over it returned other ranks, or another order, on ranks 1.",
        "  Fix: close the mesh and build it again; report this with the version of torch.",
    ]


def one_leaves(request: Mapping[str, Any], device: str | None, timeout: float) -> CheckReport:
    """Check without rank 1."""
    if detect().rank == 1:
        raise SystemExit(0)
    return check_mesh(request, device, timeout)


def test_a_rank_that_does_not_come_within_the_timeout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "check_on_shared_device", one_leaves)
    assert main(["check", "dp=2", "-n", "2", "--timeout", "1", *CPU]) == 1
    assert capsys.readouterr() == (
        "",
        "meshkit check dp=2 --device cpu --timeout 1 -n 2: rank 0 of 2 failed first.\n"
        "  RankTimeoutError: 1 of 2 ranks did not arrive at init(device='cpu', timeout=1.0) "
        f"within 1 s.\n  Missing: 1. Arrived: 0 on host {socket.gethostname()}.\n"
        "  Fix: look at the logs of rank 1 first.\n",
    )


@pytest.mark.slow
def test_ranks_started_by_hand_that_ask_for_different_meshes() -> None:
    zero, one = by_hand([*MODULE, "dp=2", *CPU], [*MODULE, "sp=2", *CPU])
    assert (zero[0], zero[1], one[0], one[1]) == (1, "", 1, "")
    for _, _, error in (zero, one):
        assert "Traceback" not in error
        assert (
            "ranks disagree about the mesh; no process group was created.\n"
            "  rank 0:  dp=2\n  rank 1 (host " in error
        )
        assert error.splitlines()[-1].startswith("  Fix: ")


@pytest.mark.slow
def test_a_rank_of_a_launcher_that_is_killed() -> None:
    arguments = ["dp=2", "--timeout", "20", *CPU]
    spoiled = "from meshkit import Mesh\nfrom meshkit.cli.main import main\n"
    spoiled += "from tests.cli.commands.test_check import dies\nimport pytest\n"
    spoiled += "pytest.MonkeyPatch().setattr(Mesh, 'verify', dies)\n"
    spoiled += f"main(['check', *{arguments}])"
    zero, one = by_hand([*MODULE, *arguments], ["-c", spoiled])
    assert one[0] == -9
    assert (zero[0], zero[1]) == (1, "")
    assert "Traceback" not in zero[2]
    assert "meshkit check dp=2 --device cpu --timeout 20: " in zero[2]
    assert "rank 1 (dp=1)" in zero[2]


# ---------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    "typed",
    [
        ["dp=3", "sp=2", "-n", "8"],
        ["x=2", "-n", "2"],
        ["dp=4", "sp=2"],
        ["dp=2", "dp=2", "-n", "2"],
        ["timeout=2", "-n", "2"],
        ["dp=2", "--groups", "dp dp", "-n", "2"],
        *([text, "-n", "2"] for text in ("dp", "dp=", "dp=2.0", "dp=\u0662", "dp=0", "")),
    ],
)
def test_misuse_is_reported_before_a_rank_starts(
    typed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "_check_locally", lambda *_: pytest.fail("ranks were started"))
    monkeypatch.setattr(check, "_check_under_launcher", lambda *_: pytest.fail("a job was joined"))
    assert main(["check", *typed]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("meshkit check ")
    assert err.splitlines()[-1].startswith("  Fix: ")


def test_a_mesh_that_does_not_fit_a_launcher_is_quoted_as_typed() -> None:
    arguments = ["check", "dp=4", "--groups", "dp", *CPU]
    typed = "meshkit check dp=4 --groups dp --device cpu"
    whole = (
        f"{typed} needs 4 ranks, the world has 2.\n"
        "  dp 4 = 4; WORLD_SIZE = 2 (hand-written).\n"
        "  Fix: start 4 ranks, or meshkit check dp=-1 --groups dp --device cpu, which gives dp=2.\n"
    )
    ranks = {
        environ["RANK"]: partial(run_python, MESHKIT, *arguments, environ={**CLEAN, **environ})
        for environ in variables_by_hand(2)
    }
    with side_by_side(ranks, at_once=2) as results:
        done = [results[rank].result() for rank in ("0", "1")]
    assert [(one.returncode, one.stdout) for one in done] == [(2, "")] * 2
    assert all(one.stderr.endswith(whole) for one in done)


# ---------------------------------------------------------------- what is said


def test_only_rank_0_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    options: dict[str, Any] = {"order": None, "groups": None, "device": "cpu", "timeout": 9.0}
    args = Namespace(n=None, words=["dp=2", "sp=2"], json=False, command=check.CHECK, **options)
    called = []
    for rank in (0, 1):

        def here(*given: object, rank: int = rank) -> CheckReport:
            called.append(given[:3])
            return replace(REPORT, rank=rank)

        monkeypatch.setattr(check, "_check_under_launcher", here)
        answer = check.run(args)
        assert answer.ok
        assert (answer.draw is not None) is (rank == 0)
    assert called == [({"dp": 2, "sp": 2}, "cpu", 9.0)] * 2
