"""``meshkit bench``: real ranks, started here and by torchrun; Ctrl-C; and what goes wrong."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from meshkit import SpawnError
from meshkit.bench.results.collectives import OPERATIONS
from meshkit.bench.results.run import BenchmarkRun
from meshkit.bench.run import Request
from meshkit.cli.commands import bench
from meshkit.cli.commands.bench import measure_on_shared_device
from meshkit.cli.main import main, parse_command
from meshkit.core.grid.layout import Layout
from meshkit.launch.launchers.detect import detect
from meshkit.launch.launchers.table import LAUNCHERS
from tests.bench.faulty_calls import return_wrong_elements
from tests.bench.results.example_runs import CLEAN, EMPTY, REPORT
from tests.cli.processes import ended

ROOT = Path(__file__).parents[3]
KNOWN = {name for row in LAUNCHERS for names in row.markers for name in names}
CLEAN_ENVIRON = {name: value for name, value in os.environ.items() if name not in KNOWN}
MODULE = ["-m", "meshkit", "bench"]
QUICK = ["--device", "cpu", "--iters", "2", "--warm-up", "0"]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KNOWN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")


def begun(*command: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        env={**CLEAN_ENVIRON, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


# ---------------------------------------------------------------- real ranks


def test_four_local_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "dp=2", "sp=2", "-n", "4", "--sizes", "64", *QUICK]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    lines = out.splitlines()
    assert lines[0].startswith("dp=2 sp=2: 4 ranks on 1 host, launcher spawn; gloo on cpu, torch ")
    heads = [line for line in lines if re.fullmatch(r"\w+ over [^,]+, n = .+", line)]
    over = ["dp, n = 2", "sp, n = 2", "dp sp, n = 4", "dp+sp, n = 2 and 2"]
    assert heads == [f"{op} over {one}" for op in OPERATIONS for one in over]
    row = r"(alone|concurrent|overlap) +64 +\d+\.\d +\d+\.\d( +\d+\.\d{4}){0,2}( +\d+\.\d\d)?"
    row += " +0 +2"
    rows = [found[1] for line in lines if (found := re.fullmatch(row, line))]
    assert rows == [*["alone", "concurrent"] * 2, "alone", "overlap"] * len(OPERATIONS)
    assert re.fullmatch(r"OK: 36 rows in \d+\.\d s; 0 wrong elements\.", lines[-1])
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.slow
def test_under_torchrun_rank_0_prints_for_all() -> None:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    arguments = ["dp=-1", "tp=1", "--json", "--ops", "broadcast,send_recv", "--sizes", "1K:4K"]
    code, out, error = ended(begun(*torchrun, *MODULE, *arguments, *QUICK))
    assert code == 0, error
    reported = json.loads(out)  # one object, printed once
    assert (reported["ok"], reported["launcher"], reported["sizes"]) == (
        True,
        "torchrun",
        {"dp": 2, "tp": 1},
    )
    assert reported["config"] == {"warmup_iterations": 0, "iterations": 2}
    assert [(one["op"], one["size"], one["mode"]) for one in reported["results"]] == [
        (op, size, "alone") for op in ("broadcast", "send_recv") for size in (1024, 4096)
    ]
    for one in reported["results"]:
        speed = one["in_place" if one["op"] == "broadcast" else "out_of_place"]
        assert speed["alg_bw"] == pytest.approx(one["size"] / speed["time"] / 1e3)
        assert (speed["nwrong"], one["ranks"]) == (0, [2])
    assert [fit["sizes"] for fit in reported["fits"]] == [[1024, 4096]] * 2


def test_from_eight_ranks_to_json_and_a_search(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "dp=4",
        "tp=2",
        "-n",
        "8",
        "--ops",
        "all_reduce",
        "--axes",
        "dp,tp",
        "--alone",
        "2",
    ]
    assert main(["bench", *arguments, "--sizes", "1K:256K", "--json", *QUICK]) == 0
    out = capfd.readouterr().out
    reported = json.loads(out)
    groups = {(one["axes"], one["mode"]): one["groups"] for one in reported["results"]}
    assert groups == {
        ("dp", "alone"): 2,
        ("dp", "concurrent"): 2,
        ("tp", "alone"): 2,
        ("tp", "concurrent"): 4,
    }
    (tmp_path / "r.json").write_text(out)
    model = ["--model", str(ROOT / "examples/llama-3-8b.json"), "--links", str(tmp_path / "r.json")]
    job = ["--world-size", "8", "--nodes", "1", "--global-batch", "8", "--seq", "8192", "--json"]
    assert main(["search", *job, *model]) == 0
    links = json.loads(capfd.readouterr().out)["job"]["machine"]
    assert {one["levels"][0] for one in reported["results"]} == {"inside"}
    assert {name: links[name] for name in reported["links"] if name != "source"} == {
        name: figure for name, figure in reported["links"].items() if name != "source"
    }
    assert {"bandwidth_intra_node", "latency_intra_node"} & reported[
        "links"
    ].keys()  # of a line without a slope only one


def one_is_wrong(request: Request, layout: Layout) -> tuple[int, BenchmarkRun] | None:
    """Measure with two wrong elements of each broadcast on rank 1."""
    with pytest.MonkeyPatch.context() as patch:
        if detect().rank == 1:
            return_wrong_elements(patch, "broadcast", 2)
        return measure_on_shared_device(request, layout)


def test_a_wrong_result_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "measure_on_shared_device", one_is_wrong)
    arguments = ["dp=2", "-n", "2", "--ops", "broadcast", "--sizes", "64:256", *QUICK]
    assert main(["bench", *arguments]) == 1
    out, _ = capsys.readouterr()
    assert re.search(r"FAILED: 2 rows in \d+\.\d s; 4 wrong elements\.\n$", out)


def one_leaves(request: Request, layout: Layout) -> tuple[int, BenchmarkRun] | None:
    """Measure without rank 1."""
    return None if detect().rank == 1 else measure_on_shared_device(request, layout)


def test_a_rank_that_does_not_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "measure_on_shared_device", one_leaves)
    assert main(["bench", "dp=2", "-n", "2", "--timeout", "1", *QUICK]) == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error.splitlines()[0].endswith(": rank 0 of 2 failed first.")
    assert "did not arrive at init(device='cpu', timeout=1.0) within 1 s." in error
    assert error.splitlines()[-1] == "  Fix: look at the logs of rank 1 first."


# ---------------------------------------------------------------- Ctrl-C


def interrupted(whole: bool, *command: str) -> tuple[int, str, str]:
    """A long bench that gets a SIGINT once it measures, alone or with all that it has started."""
    ours, theirs = pty.openpty()  # progress is redrawn on a terminal
    many = ["--sizes", "1K:64K:2", "--iters", "400", "--timeout", "30", "--device", "cpu"]
    process = begun(*command, *many, stderr=theirs)
    os.close(theirs)
    reported = b""
    while not re.search(rb"[1-9]\d* %: ", reported):
        assert select.select([ours], [], [], 60)[0]
        reported += os.read(ours, 1024)
    (os.killpg if whole else os.kill)(process.pid, signal.SIGINT)
    code, out, _ = ended(process)
    with suppress(OSError):  # the other end is closed
        reported += os.read(ours, 65536)
    os.close(ours)
    return code, out, reported.decode()


@pytest.mark.parametrize("whole", [True, False])
def test_what_there_is_after_ctrl_c(whole: bool) -> None:
    code, out, error = interrupted(whole, *MODULE, "dp=2", "-n", "2")
    assert code == 130, error
    assert "Traceback" not in error
    assert "42 rows in 42 passes, one after the other, each of up to 403 calls" in error
    last = out.splitlines()[-1]
    found = re.fullmatch(r"Interrupted: (\d+) of 42 rows in \d+\.\d s; 0 wrong elements\.", last)
    assert found, out
    rows = re.findall(r"^(?:alone|concurrent|overlap) +\d+ +\d", out, re.MULTILINE)
    assert 0 < len(rows) == int(found[1]) < 42


@pytest.mark.parametrize(
    ("raised", "signals", "kind"),
    [
        (EOFError(), 1, KeyboardInterrupt),  # the server of processes was interrupted
        (EOFError(), 0, EOFError),
        (
            SpawnError("x", errors={0: RuntimeError("ended by signal SIGINT")}),
            1,
            KeyboardInterrupt,
        ),
        (SpawnError("x", errors={0: ValueError("x")}), 0, SpawnError),
    ],
)
def test_ctrl_c_while_ranks_are_started(
    raised: Exception,
    signals: int,
    kind: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spawn(*_: object, timeout: float, title: str) -> None:
        for _ in range(signals):
            signal.raise_signal(signal.SIGINT)
        raise raised

    monkeypatch.setattr("meshkit.launch.spawn.spawn.start_ranks", spawn)
    args = parse_command("bench", ["dp=2", "-n", "2"])
    with pytest.raises(kind) as caught:
        args.command.run(args)
    assert type(caught.value) is kind


# ---------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    "command",
    [
        ["dp=3", "sp=2", "-n", "8"],
        ["dp=4", "sp=2", "--axes", "dp,dp sp"],
        ["dp=1", "tp=1", "-n", "1"],
        ["dp=2", "-n", "2", "--sizes", "1K:1024G", "--iters", "5", "--timeout", "9"],
        ["dp=2", "-n", "2", "--sizes", "64G", "--warm-up", "0"],
        ["dp=-1", "-n", "100000"],
        ["dp=-1", "tp=8", "-n", "80000"],
        ["dp=1000", "-n", "1000"],
    ],
)
def test_misuse_is_reported_before_a_rank_starts(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "_measure_locally", lambda *_: pytest.fail("ranks were started"))
    monkeypatch.setattr(
        bench, "_measure_under_launcher", lambda *_: pytest.fail("a job was joined")
    )
    monkeypatch.setattr("meshkit.cli.options.memory.memory", lambda: 20 * 10**9)
    assert main(["bench", *command]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(shlex.join(["meshkit", "bench", *command]))


def test_an_axis_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "dp=2", "-n", "2", "--axes", "dp,zz zz"]) == 2
    assert "there is no axis 'zz'" in capsys.readouterr().err


def test_without_matplotlib_no_rank_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(bench, "_measure_locally", lambda *_: pytest.fail("ranks were started"))
    assert main(["bench", "dp=2", "-n", "2", "--plot", "x.png"]) == 1
    assert capsys.readouterr().err == (
        "meshkit bench dp=2 -n 2 --plot x.png: the picture cannot be drawn: matplotlib is not "
        "installed.\n"
        "  Fix: pip install matplotlib; or leave out --plot.\n"
    )


def test_ranks_started_here_have_a_time_limit_and_a_killed_one_a_fix_in_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []

    def spawn(*_: object, timeout: float, title: str) -> None:
        seen.append(timeout)
        error = SpawnError("x", errors={1: RuntimeError("the process ended with signal SIGKILL")})
        error.__cause__ = error.errors[1]
        raise error

    monkeypatch.setattr("meshkit.launch.spawn.spawn.start_ranks", spawn)
    typed = ["dp=2", "-n", "2", "--ops", "broadcast", "--sizes", "1K:4M:4096"]
    args = parse_command("bench", [*typed, "--timeout", "2", "--device", "cpu"])
    with pytest.raises(SpawnError) as error:
        args.command.run(args)
    assert seen == [(4 + 2 * (3 + 3 + 1)) * 2 + 10]  # two plan_cases, each of one group
    assert str(error.value).splitlines()[-1] == (
        "  Fix: run meshkit doctor; or --sizes 1M, which needs fewer resources."
    )


# ---------------------------------------------------------------- what becomes of a run


@pytest.mark.parametrize(
    ("report", "rank", "code"),
    [
        (CLEAN, 0, 0),
        (REPORT, 0, 1),
        (EMPTY, 0, 130),
        (CLEAN, 1, 0),
        (REPORT, 1, 1),
        (EMPTY, 1, 130),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_only_rank_0_prints_and_all_leave_with_one_code(
    report: BenchmarkRun,
    rank: int,
    code: int,
    as_json: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(bench, "_measure_under_launcher", lambda *_: (rank, report))
    assert main(["bench", "dp=2", "sp=2", *["--json"] * as_json]) == code
    out, error = capsys.readouterr()
    assert error == ""
    assert bool(out) is (rank == 0)
    if out and as_json:
        assert json.loads(out)["ok"] is (code == 0)


def test_a_picture_that_fails_at_the_end_does_not_cost_the_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(report: BenchmarkRun, path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("meshkit.bench.plot.check_plot", lambda path: None)
    monkeypatch.setattr("meshkit.bench.plot.plot", full)
    monkeypatch.setattr(bench, "_measure_locally", lambda *_: (0, CLEAN))
    assert main(["bench", "dp=2", "sp=2", "-n", "4", "--plot", "x.png"]) == 1
    out, error = capsys.readouterr()
    assert out.endswith("OK: 4 rows in 1.2 s; 0 wrong elements.\n")
    assert error == (
        "meshkit bench: --plot x.png: the picture could not be written.\n"
        "  No space left on device\n"
        "  Fix: --json, and draw its figures.\n"
    )
