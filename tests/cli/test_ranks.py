"""``meshkit check``, ``hello`` and ``store``: real ranks, faults and misuse."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.cli import ranks
from meshkit.cli.main import main
from meshkit.cli.ranks import Greeting, check_mesh, describe_failure, run_sharing, torch_errors
from meshkit.errors import LaunchError, RankTimeoutError, SpawnError
from meshkit.guard import barrier as verify_module
from meshkit.guard.verification import CheckReport
from meshkit.launch.detect import detect
from meshkit.testing.faults import Strike, play
from tests.cli.processes import CLEAN, Answers, begun, ended
from tests.plan.example_reports import REPORT
from tests.preloaded_python import MESHKIT, run_python
from tests.side_by_side import side_by_side

CPU = ["--device", "cpu"]
Capture = pytest.CaptureFixture[str]


def variables_by_hand(world_size: int) -> list[dict[str, str]]:
    """Return the variables of each rank of a job, with a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world_size)}
    return [{**place, "RANK": str(rank)} for rank in range(world_size)]


# ---------------------------------------------------------------- real ranks


def test_eight_local_ranks(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["check", "dp=2", "sp=2", "tp=2", "pp=1", "-n", "8", *CPU]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    ms = r"\d+\.\d{3}"
    patterns = [
        r"pp=1 dp=2 sp=2 tp=2: 8 ranks, launcher spawn, device cpu, backend gloo; "
        r"joined and built in \d+\.\d\d s",
        *(r"group .* of ranks", r"[─ ]+"),
        rf"dp sp tp +1 +8 +{ms} +{ms}  0-7",
        *(rf"{axis} +4 +2 +{ms} +{ms}  \d(, |-)\d" for axis in ("dp", "sp", "tp")),
        rf"dp sp +2 +4 +{ms} +{ms}  \d, \d, \d, \d",
        rf"slowest rank: \d \(pp=0 dp=\d sp=\d tp=\d\), its peers wait {ms} ms for it",
        r"OK: 15 groups checked in \d+\.\d\d s",
    ]
    for line, pattern in zip(out.splitlines(), patterns, strict=True):
        assert re.fullmatch(pattern, line), line


@pytest.mark.slow
def test_under_torchrun_rank_0_prints_for_all() -> None:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "4", "-m", "meshkit", "check"]
    arguments = ["sp=2", "dp=-1", "tp=1", "--groups", "sp dp", "--json", *CPU]
    code, out, error = ended(begun(*torchrun, *arguments))
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


# ---------------------------------------------------------------- a check that fails


def one_dies(device: str | None, request: Mapping[str, Any], timeout: float) -> CheckReport:
    """Kill rank 1 when it begins to verify."""
    with pytest.MonkeyPatch.context() as patch:
        if detect().rank == 1:
            patch.setattr(meshkit.Mesh, "verify", lambda *_, **__: os.kill(os.getpid(), 9))
        return check_mesh(device, request, timeout)


def one_differs(device: str | None, request: Mapping[str, Any], timeout: float) -> CheckReport:
    """Check, with other sizes on rank 2."""
    return check_mesh(device, {"dp": 4} if detect().rank == 2 else request, timeout)


def one_is_elsewhere(device: str | None, request: Mapping[str, Any], timeout: float) -> CheckReport:
    """Check, with a proof that fails on rank 1."""
    proved = verify_module._has_members
    with pytest.MonkeyPatch.context() as patch:
        if detect().rank == 1:
            patch.setattr(verify_module, "_has_members", lambda *given: proved(*given) and False)
        return check_mesh(device, request, timeout)


def one_leaves(device: str | None, request: Mapping[str, Any], timeout: float) -> CheckReport:
    """Check without rank 1."""
    if detect().rank == 1:
        raise SystemExit(0)
    return check_mesh(device, request, timeout)


FOUR = "dp=2 sp=2 -n 4 --timeout 20"


@pytest.mark.parametrize(
    ("job", "typed", "lines"),
    [
        (
            one_dies,
            FOUR,
            [": rank 1 of 4 failed first", "RuntimeError: the process ended by itself, with"],
        ),
        (
            one_differs,
            FOUR,
            [" of 4 failed first", "DisagreementError: ", "ranks 0-1 and 3:  dp=2 sp=2", "rank 2"],
        ),
        (
            one_is_elsewhere,
            FOUR,
            [
                " of 4 failed first",
                "MeshkitError: mesh.verify(timeout=20.0): the group over dp sp does not hold ",
                "A gather over it returned other ranks, or another order, on ranks 1.",
                "Fix: close the mesh and build it again; report this with the version of torch.",
            ],
        ),
        (
            one_leaves,
            "dp=2 -n 2 --timeout 1",
            [
                "rank 0 of 2 failed first",
                "RankTimeoutError: 1 of 2 ranks did not arrive at init(device='cpu', timeout=1.0) ",
                f"Missing: 1. Arrived: 0 on host {socket.gethostname()}.",
                "Fix: look at the logs of rank 1 first; if it skipped the call, make it there too.",
            ],
        ),
    ],
)
def test_a_check_that_fails_names_the_ranks(
    job: Callable[..., CheckReport],
    typed: str,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.setattr(ranks, "check_mesh", job)
    assert main(["check", *typed.split(), *CPU]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in error
    for line, text in zip(lines, error.splitlines(), strict=False):
        assert line in text


# ---------------------------------------------------------------- under a launcher


def test_a_mesh_that_does_not_fit_a_launcher_is_quoted_as_typed() -> None:
    arguments = ["check", "dp=4", "--groups", "dp", *CPU]
    typed = "meshkit check dp=4 --groups dp --device cpu"
    runs = {
        environ["RANK"]: partial(run_python, MESHKIT, *arguments, environ={**CLEAN, **environ})
        for environ in variables_by_hand(2)
    }
    with side_by_side(runs, at_once=2) as results:
        done = [results[rank].result() for rank in ("0", "1")]
    assert [(one.returncode, one.stdout) for one in done] == [(2, "")] * 2
    assert all(f"{typed} needs 4 ranks, the world has 2.\n" in one.stderr for one in done)


def test_only_rank_0_prints(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    for rank in (0, 1):
        report = replace(REPORT, rank=rank)
        monkeypatch.setattr(ranks, "run_under_launcher", lambda *_, report=report: report)
        assert main(["check", "dp=2", "sp=2"]) == 0
        assert bool(capsys.readouterr().out) is (rank == 0)


# ---------------------------------------------------------------- hello


def test_hello_of_four_local_processes(answer: Answers) -> None:
    code, out, error = answer("hello -n 4 --device cpu")
    assert (code, error) == (0, "")
    *lines, last = out.splitlines()
    where = re.escape(socket.gethostname())
    pids = set()
    for rank, line in enumerate(lines):
        pattern = rf"rank {rank} of 4 says hello from host {where}, device cpu, pid (\d+)"
        results = re.fullmatch(pattern, line)
        assert results, line
        pids.add(results[1])
    assert len(pids) == 4
    assert last == "OK: the all-reduce over 4 ranks on gloo."


def test_without_n_it_is_one_process_here() -> None:
    done = run_python(MESHKIT, "hello", "--json", "--device", "cpu", environ=CLEAN)
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert (reported["world_size"], reported["ranks"][0]["launcher"]) == (1, "single")


def test_n_inside_a_launcher_starts_a_job_of_its_own(
    answer: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "far", "MASTER_PORT": "29500"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    code, out, _ = answer("hello -n 2 --json --device cpu")
    assert (code, json.loads(out)["world_size"]) == (0, 2)


def test_a_bad_environment_is_one_message(answer: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "9")
    monkeypatch.setenv("WORLD_SIZE", "8")
    code, out, error = answer("hello")
    assert (code, out) == (1, "")
    assert error.startswith("meshkit hello: RANK=9 must be below WORLD_SIZE=8.\n")


def test_no_torch_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no libtorch.so')\n")
    done = begun("-m", "meshkit", "hello", PYTHONPATH=str(tmp_path))
    assert ended(done) == (1, "", "meshkit hello: no libtorch.so\n")


def greeting(rank: int, *, ok: bool = True) -> Greeting:
    return {
        **{"rank": rank, "world_size": 3, "host": "a", "device": "cpu", "pid": 310 + rank},
        **{"backend": "gloo", "ok": ok},
    }


def test_a_wrong_sum_fails_on_every_rank(monkeypatch: pytest.MonkeyPatch, answer: Answers) -> None:
    greetings = [greeting(0), greeting(1, ok=False), greeting(2, ok=False)]
    for rank in (0, 2):
        monkeypatch.setattr(ranks, "greet_all", lambda *_, rank=rank: (rank, greetings))
        code, text, _ = answer("hello")
        assert (code, bool(text)) == (1, rank == 0)
        last = "FAILED: the all-reduce over 3 ranks on gloo was wrong on 1-2.\n"
        assert not text or text.endswith(last)


def missing_one() -> tuple[bool, bool]:
    """Run the check with the real all-reduce, then with one that loses rank 1."""
    world = meshkit.init(device="cpu")
    right = ranks.check_all_reduce(world.rank, world.world_size, "cpu")
    reduce = dist.all_reduce

    def lossy(seen: torch.Tensor) -> None:
        reduce(seen)
        seen[1] = 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", lossy)
        return right, ranks.check_all_reduce(world.rank, world.world_size, "cpu")


def test_the_check_can_fail() -> None:
    assert meshkit.spawn(missing_one, 2, timeout=60) == [(True, False)] * 2


# ---------------------------------------------------------------- store


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Host a store in a process of its own, which ends at SIGTERM with exit code 0."""
    with begun("-m", "meshkit", "store", "--port", "0", "--json") as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["address"]
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=30) == 0
        finally:
            server.kill()


def lose_rank_0(strike: Strike, method: str) -> Any:
    """Join at a store, lose rank 0, and go on."""
    meshkit.init(init_method=method, arrival_timeout=30)
    mesh = meshkit.build_mesh(dp=-1)
    try:
        with mesh.guard(timeout=3):
            if mesh.rank == 0:
                strike.kill()
            dist.all_reduce(torch.ones(1), group=mesh.group())
    except meshkit.CollectiveError:
        mesh = mesh.recover()
    total = torch.ones(1)
    dist.all_reduce(total, group=mesh.group())
    return mesh.rank, float(total)


@pytest.mark.parametrize("job", ["first", "second"])
def test_two_jobs_survive_rank_0_at_one_store(address: str, job: str) -> None:
    port = address.rpartition(":")[2]
    played = play(lose_rank_0, 3, (f"store://127.0.0.1:{port}/{job}",), timeout=60)
    assert played.fired == 0
    assert {rank: ast.literal_eval(played.outcomes[rank].text) for rank in (1, 2)} == {
        1: (1, 2.0),
        2: (0, 2.0),
    }


def test_a_taken_port_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert main(["store", "--port", str(port)]) == 1
    assert f"port {port} of this host cannot be used" in capsys.readouterr().err


def test_a_store_that_is_not_there_is_named() -> None:
    with pytest.raises(meshkit.SpawnError, match="python -m meshkit store --port 1, on that host"):
        meshkit.spawn(join_nowhere, 2, timeout=60)


def join_nowhere() -> None:
    meshkit.init(init_method="store://127.0.0.1:1/job", arrival_timeout=1)


# ---------------------------------------------------------------- local ranks


def failing(errors: dict[int, BaseException], first: int) -> SpawnError:
    error = SpawnError("long, with a traceback", errors=errors)
    error.__cause__ = errors[first]
    return error


def test_the_words_of_the_rank_that_failed_first() -> None:
    died = RuntimeError("the process ended by itself, with signal SIGKILL")
    late = RankTimeoutError("2 of 4 ranks did not arrive.", fix="look.", missing_ranks=(1, 3))
    results = describe_failure(4, failing({0: late, 1: died, 2: late}, 1), "cuda")
    assert str(results) == (
        "rank 1 of 4 failed first; also failed: 0, 2.\n"
        "  RuntimeError: the process ended by itself, with signal SIGKILL\n"
        "  Fix: run meshkit doctor; or --device cpu, which needs fewer resources."
    )
    assert results.errors == {0: late, 1: died, 2: late}
    for device, less in (("cpu", ""), ("cuda:1", "; or --sizes 1K or --device cpu, which needs ")):
        text = str(describe_failure(4, failing({1: died}, 1), device, "--sizes 1K" if less else ""))
        assert text.splitlines()[-1].startswith(f"  Fix: run meshkit doctor{less or '.'}")
    assert str(describe_failure(4, failing({0: late}, 0), None)) == (
        "rank 0 of 4 failed first.\n  RankTimeoutError: 2 of 4 ranks did not arrive.\n  Fix: look."
    )


def test_an_error_of_torch_is_printed() -> None:
    with pytest.raises(LaunchError) as reported, torch_errors("the all-reduce of rank 1 of 4"):
        raise RuntimeError("Connection closed by peer\nException raised from x")
    assert reported.value.summary == "the all-reduce of rank 1 of 4 failed."
    assert reported.value.evidence == ("Connection closed by peer",)
    late = RankTimeoutError("late")
    with pytest.raises(RankTimeoutError) as kept, torch_errors("x"):
        raise late
    assert kept.value is late


@pytest.mark.parametrize(
    ("device", "kind", "seen", "chosen"),
    [
        (None, None, 0, None),
        (None, "cuda", 4, None),
        (None, "cuda", 3, "cpu"),
        ("cuda", "cuda", 3, "cuda"),
    ],
)
def test_local_ranks_share_the_cpu_if_there_are_too_few_devices(
    monkeypatch: pytest.MonkeyPatch,
    device: str | None,
    kind: str | None,
    seen: int,
    chosen: str | None,
) -> None:
    monkeypatch.setattr("meshkit.launch.device.accelerator", lambda: kind)
    monkeypatch.setattr("meshkit.launch.device.visible_devices", lambda _: seen)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert run_sharing(lambda device: device, device, ()) == chosen
    assert ranks.uses_cpu(device, 4) is (chosen == "cpu" or kind is None)
