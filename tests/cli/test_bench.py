"""``meshkit bench``: real ranks, started here and by torchrun; faults and misuse."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

import pytest

from meshkit import SpawnError
from meshkit.bench.measure import LONGEST, BenchRequest
from meshkit.bench.report import run_to_json
from meshkit.bench.results import OPERATIONS, BenchmarkRun
from meshkit.cli import bench
from meshkit.cli.bench import measure, read_max_alone, read_operations, read_size, read_sweep_sizes
from meshkit.cli.main import CommandParser, load_command, main
from meshkit.launch.detect import detect
from meshkit.launch.world import free_port
from meshkit.layout.layout import Layout
from tests.bench.example_runs import CLEAN, REPORT
from tests.bench.faulty_calls import before_each_call, return_wrong_elements
from tests.cli.processes import ROOT, Answers, begun, ended
from tests.promises import BUSY

QUICK = ["--device", "cpu", "--iters", "2", "--warm-up", "0"]


# ---------------------------------------------------------------- real ranks


def test_four_local_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "dp=2", "sp=2", "-n", "4", "--all", "--sizes", "64", *QUICK]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    lines = out.splitlines()
    assert lines[0].startswith("dp=2 sp=2: 4 ranks on 1 host, launcher spawn; gloo on cpu, torch ")
    heads = [line for line in lines if re.fullmatch(r"\w+ over [^,]+, n = .+", line)]
    over = ["dp, n = 2", "sp, n = 2", "dp sp, n = 4", "dp+sp, n = 2 and 2"]
    assert heads == [f"{op} over {one}" for op in OPERATIONS for one in over]
    rows = [line.split() for line in lines if re.match("(alone|concurrent|overlap) ", line)]
    assert {len(row) for row in rows} == {9}
    modes = [*["alone", "concurrent"] * 2, "alone", "overlap"] * len(OPERATIONS)
    assert [row[0] for row in rows] == modes
    assert {(row[1], row[7], row[8]) for row in rows} == {("64", "0", "2")}
    assert re.fullmatch(r"OK: 36 rows in \d+\.\d s; 0 wrong elements\.", lines[-1])
    assert all(len(line) <= 80 for line in lines)


def test_the_page_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "bench.html"
    typed = ["bench", "dp=2", "-n", "2", "--sizes", "64:1K", *QUICK, "--html"]
    for path in (tmp_path, tmp_path / "none" / "bench.html"):
        assert main([*typed, str(path)]) == 2  # before a rank starts
        assert "the file of --html cannot be written" in capsys.readouterr().err
    assert main([*typed, str(page)]) == 0
    screen = capsys.readouterr().out.splitlines()
    text = page.read_text()
    assert f'<p class="good">{screen[-1]}</p>' in text
    assert text.count("<polyline") == 2  # time and busbw of the only group
    assert text.count("<circle") == 2 * 3


def test_one_screen_without_options(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "dp=2", "sp=2", "-n", "4", "--device", "cpu"]) == 0
    out, _ = capfd.readouterr()
    lines = out.splitlines()
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines)
    targets = [line.split("  ")[0] for line in lines[5 : lines.index("", 5)]]
    assert targets == ["dp", "sp", "dp sp", "dp+sp"]
    seconds = float(re.search(r"OK: \d+ rows in (\d+\.\d) s; ", lines[-1])[1])
    assert seconds < LONGEST + BUSY


def test_a_sample_of_the_groups_of_eight_ranks(capfd: pytest.CaptureFixture[str]) -> None:
    typed = "dp=4 tp=2 -n 8 --ops all_reduce --axes dp,tp --alone 2 --sizes 1K --json"
    assert main(["bench", *typed.split(), *QUICK]) == 0
    rows = json.loads(capfd.readouterr().out)["measurements"]
    assert {(row["axes"], row["mode"]): row["groups"] for row in rows} == {
        ("dp", "alone"): 2,
        ("dp", "concurrent"): 2,
        ("tp", "alone"): 2,
        ("tp", "concurrent"): 4,
    }


def one_is_wrong(
    device: str | None, request: BenchRequest, layout: Layout
) -> tuple[int, BenchmarkRun] | None:
    """Measure with two wrong elements of each broadcast on rank 1."""
    with pytest.MonkeyPatch.context() as patch:
        if detect().rank == 1:
            return_wrong_elements(patch, "broadcast", 2)
        return measure(device, request, layout)


def test_a_wrong_result_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "measure", one_is_wrong)
    arguments = ["dp=2", "-n", "2", "--ops", "broadcast", "--sizes", "64:256", *QUICK]
    assert main(["bench", *arguments]) == 1
    out, _ = capsys.readouterr()
    assert re.search(r"FAILED: 2 rows in \d+\.\d s; 4 wrong elements\.\n$", out)


def rank_3_is_late(
    device: str | None, request: BenchRequest, layout: Layout
) -> tuple[int, BenchmarkRun]:
    """Measure with a rank that begins each all-reduce 0.2 s late."""
    with pytest.MonkeyPatch.context() as patch:
        if detect().rank == 3:
            before_each_call(patch, "all_reduce", lambda: time.sleep(0.2))
        return measure(device, request, layout)


@pytest.mark.parametrize("run", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_the_groups_of_a_late_rank_are_named(
    run: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "measure", rank_3_is_late)
    typed = "dp=2 sp=2 -n 4 --axes dp,sp --sizes 1K --iters 20 --alone 1 --warm-up 0 --json"
    assert main(["bench", *typed.split(), "--device", "cpu"]) == 0
    slow = json.loads(capsys.readouterr().out)["slow"]
    assert [(group["axes"], group["group"], group["ranks"]) for group in slow] == [
        ("dp", "sp=1", [1, 3]),
        ("sp", "dp=1", [2, 3]),
    ]


@pytest.mark.parametrize(
    "run", [pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.nightly)]
)
def test_no_group_of_healthy_ranks_is_named(run: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "dp=2", "sp=2", "-n", "4", "--device", "cpu", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["slow"] == []


# ---------------------------------------------------------------- the verdict


def all_ranks_are_fast(
    device: str | None, request: BenchRequest, layout: Layout
) -> tuple[int, BenchmarkRun]:
    """Measure with ranks that are all a little late, so that load hardly matters."""
    with pytest.MonkeyPatch.context() as patch:
        before_each_call(patch, "all_reduce", lambda: time.sleep(0.05))
        return measure(device, request, layout)


def test_a_group_that_became_slower_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = str(tmp_path / "before.json")
    monkeypatch.setattr(bench, "measure", all_ranks_are_fast)
    typed = "bench dp=2 sp=2 -n 4 --axes dp --sizes 1K --alone 1 --warm-up 0 --device cpu"
    line = typed.split()
    assert main([*line, "--save", file, "--max-latency", "dp=60000000"]) == 0
    assert json.loads(Path(file).read_text())["iters"] == 20
    capsys.readouterr()
    monkeypatch.setattr(bench, "measure", rank_3_is_late)
    now = [
        "bench",
        "dp=2",
        "sp=2",
        "-n",
        "4",
        "--alone",
        "1",
        "--warm-up",
        "0",
        "--device",
        "cpu",
        "--json",
    ]
    assert main([*now, "--against", file, "--min-busbw", "dp=999"]) == 1
    out = json.loads(capsys.readouterr().out)
    assert out["ok"] is False
    assert [row["axes"] for row in out["measurements"]] == ["dp", "dp"]  # what the file has
    missed = [(row["option"], row["group"], row["ranks"]) for row in out["missed"]]
    assert missed == [
        ("min-busbw", "sp=0", [0, 2]),
        ("min-busbw", "sp=1", [1, 3]),
        ("against", "sp=1", [1, 3]),
    ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--save /nonexistent/file", "the file of --save cannot be written."),
        ("--save .", "the file of --save cannot be written."),
        ("--against /nonexistent/file", "the file of --against cannot be read."),
        ("--against README.md", "the file of --against is not JSON."),
        ("--against tests/launch/environments.json", "the file of --against "),
        ("--save x --iters 17", "--save needs 18 calls, in 9 rounds, to know the noise."),
        ("--min-busbw dp=1 --min-busbw dp=2", "--min-busbw has dp twice."),
        ("--max-latency dp", "--max-latency: 'dp' is not TARGET=NUMBER, such as dp=30."),
        ("--device gpu", "torch does not know the device 'gpu'."),
        ("--max-latency dp=nan", "--max-latency: 'nan' is not a number of us from 0.001 to 1e+09."),
    ],
)
def test_a_wrong_option_is_refused_before_a_rank_starts(
    words: str, line: str, monkeypatch: pytest.MonkeyPatch, answer: Answers
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(bench, "spawn_ranks", lambda *_, **__: pytest.fail("ranks were started"))
    code, out, error = answer(f"bench dp=2 -n 2 {words}")
    assert (code, out) == (2, "")
    assert f": {line}" in error


# ---------------------------------------------------------------- Ctrl-C


def test_ctrl_c_ends_the_ranks_and_the_command() -> None:
    process = begun(
        "-m", "meshkit", "bench", "dp=2", "-n", "2", "--iters", "400", "--device", "cpu"
    )
    assert process.stderr is not None
    assert "all_reduce over dp, 1024 to 4194304 bytes: 400 calls each" in process.stderr.readline()
    os.killpg(process.pid, signal.SIGINT)
    code, out, error = ended(process)
    assert (code, out) == (130, "")
    assert error.splitlines()[-1] == "meshkit bench: interrupted."


# ---------------------------------------------------------------- limits


def test_ranks_started_here_have_a_time_limit_and_a_killed_one_a_fix_in_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []

    def spawn(*_: object, timeout: float, title: str) -> None:
        seen.append(timeout)
        error = SpawnError("x", errors={1: RuntimeError("the process ended with signal SIGKILL")})
        error.__cause__ = error.errors[1]
        raise error

    monkeypatch.setattr("meshkit.launch.spawn.start_ranks", spawn)
    typed = ["dp=2", "-n", "2", "--ops", "broadcast", "--sizes", "1K:4M:4096"]
    args = CommandParser(load_command("bench")).parse([*typed, "--timeout", "2", "--device", "cpu"])
    with pytest.raises(SpawnError) as error:
        args.command.run(args)
    assert seen == [(6 + 2 * (5 + 3 + 1)) * 2 + 14 + 7 + 10]  # two cases, each of one group
    assert str(error.value).splitlines()[-1] == (
        "  Fix: run meshkit doctor; or --sizes 1048576, which needs fewer resources."
    )


# ---------------------------------------------------------------- outcome and options


@pytest.mark.parametrize(("report", "code"), [(CLEAN, 0), (REPORT, 1)])
@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_prints_and_all_leave_with_one_code(
    report: BenchmarkRun,
    code: int,
    rank: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr(bench, "run_under_launcher", lambda *_: (rank, report))
    assert main(["bench", "dp=2", "sp=2", "--json"]) == code
    out, error = capsys.readouterr()
    assert error == ""
    assert bool(out) is (rank == 0)
    if out:
        assert json.loads(out)["ok"] is (code == 0)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((read_size, text) for text in ("", "0", "1T", "1.5K", "\u0661", "1025G")),
        *((read_sweep_sizes, text) for text in ("4:2", "0", "1:2:1", "1:2:x", "1:2:3:4")),
        *((read_max_alone, text) for text in ("0", "some")),
        *((read_operations, text) for text in ("reduce", "broadcast,")),
    ],
)
def test_an_invalid_option_is_quoted(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"^'"):
        read(text)


@pytest.mark.parametrize(("option", "odd"), [("save", 0), ("against", 1)])
def test_a_file_that_one_rank_cannot_use_ends_all_ranks(
    option: str, odd: int, tmp_path: Path
) -> None:
    before = run_to_json(CLEAN)
    rows = [{**row, "rounds": 9} for row in before["measurements"]]
    (tmp_path / "good.json").write_text(json.dumps({**before, "measurements": rows}))
    port, ranks = str(free_port()), []
    for rank in range(4):
        file = tmp_path / ("none" if rank == odd else "") / "good.json"
        words = f"-m meshkit bench dp=2 sp=2 --device cpu --{option} {file}".split()
        job = {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank)}
        job |= {"LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(begun(*words, **job))
    ends = [*map(ended, ranks)]
    assert all((code > 0, out) == (True, "") for code, out, _ in ends)
    untold = [error for *_, error in ends if f"the file of --{option} cannot be " not in error]
    # on a busy machine, one may come when rank 0 has left with its store
    assert len(untold) <= 1
    assert all("look at the log of rank 0" in error for error in untold)


@pytest.mark.parametrize(("option", "noun"), [("save", "result"), ("html", "page")])
def test_a_full_disk_is_an_error_with_a_fix(
    option: str, noun: str, monkeypatch: pytest.MonkeyPatch, answer: Answers
) -> None:
    monkeypatch.setattr(bench, "spawn_ranks", lambda *_, **__: [(0, CLEAN)])
    code, out, error = answer(f"bench dp=2 sp=2 -n 4 --{option} /dev/full")
    assert (code, out) == (2, "")
    assert f"the {noun} cannot be written: No space left on device." in error


def test_options_as_typed() -> None:
    assert read_operations("broadcast,all_reduce,broadcast") == ("broadcast", "all_reduce")
    assert [read_max_alone(text) for text in ("16", "all")] == [16, None]
    assert read_sweep_sizes("1K:64K") == (1024, 4096, 16384, 65536)
    assert read_sweep_sizes("1k:1M:1024") == (1024, 1048576)
    assert read_sweep_sizes("1G") == (2**30,)
    assert read_sweep_sizes(bench.BENCH_SIZES) == (1024, 16384, 262144, 4194304)
