import doctest
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import meshkit
from benchmarks import collectives, measure, table
from benchmarks.collectives import axis_groups, cases, default_sizes, gated, main, paired
from benchmarks.measure import Bench
from benchmarks.table import Report, Row, Speed, lacking_row, measured
from meshkit.bench.calls import CALLS, Begin
from meshkit.core.bandwidth import OPERATIONS, busbw_factor
from meshkit.core.timing import Spread

ROOT = Path(__file__).parents[2]
# --- statistics ------------------------------------------------------------------------------


def test_speed_is_that_of_the_median_repetition() -> None:
    # 1,000,000 bytes in 2 ms are 0.5 GB/s; on a wire of 4 ranks 1.5 times as much
    speed = Speed.of("all_reduce", 4, 1_000_000, [0.002, 0.001, 0.007])
    assert speed == Speed(seconds=0.002, algbw=0.5, busbw=0.75)


def test_ratio_is_taken_repetition_by_repetition() -> None:
    # the machine was ten times slower in the second repetition: the ratio does not see it
    row = measured("all_reduce", "dp", 2, 8, [[1.0, 10.0, 3.0], [1.0, 10.0, 1.0]], 0)
    assert row.ratio == Spread(1.0, 1.0, 2.0)
    assert row.mesh is not None
    assert row.raw is not None
    assert (row.mesh.seconds, row.raw.seconds) == (3.0, 1.0)


# --- the table -------------------------------------------------------------------------------

REPORT = Report(
    cores=2,
    torch="2.13.0",
    backend="gloo",
    device="cpu",
    sizes={"dp": 4, "tp": 2},
    repeats=3,
    calls=5,
    rows=(
        measured("all_reduce", "dp", 4, 1024, [[4e-4, 2e-4, 3e-4], [2e-4] * 3], 0),
        measured("all_gather", "tp", 2, 1048576, [[1e-3] * 3, [2e-3] * 3], 12),
        lacking_row("all_to_all", "dp", 4, 1024, "Backend x does not support all_to_all"),
    ),
)

TABLE = """\
2 cores, torch 2.13.0, gloo on cpu; dp=4 tp=2; median of 3 x 5 calls, float32

                                         meshkit                 torch new_group         \
mesh/raw time
op             axis   n   bytes        us    algbw    busbw        us    algbw    busbw  \
median (quartiles) #wrong
all_reduce     dp     4    1024     300.0   0.0034   0.0051     200.0   0.0051   0.0077  \
1.50 (1.25-1.75)        0
all_gather     tp     2 1048576    1000.0   1.0486   0.5243    2000.0   0.5243   0.2621  \
0.50 (0.50-0.50)       12
all_to_all     dp     4    1024  not measured: Backend x does not support all_to_all

mesh/raw time over 2 rows: 1.00 (0.75-1.25); 12 wrong elements
GB/s, decimal, as nccl-tests: algbw = bytes / time, busbw = algbw * factor(op, n)."""


def test_table_is_exactly_this() -> None:
    assert table.table(REPORT) == TABLE


def test_a_table_of_nothing_measured_says_so() -> None:
    text = table.table(replace(REPORT, rows=REPORT.rows[2:]))
    assert "not measured: Backend x does not support all_to_all" in text
    assert "\n\n0 wrong elements\n" in text


@pytest.mark.parametrize("module", [table, measure, collectives])
def test_examples_in_docstrings(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


# --- what is compared --------------------------------------------------------------------------


def test_axis_groups_are_those_of_the_layout() -> None:
    layout = meshkit.factor_world(24, pp=2, sp=3, tp=2)
    for index, axis in enumerate(layout.axes):
        assert axis_groups(layout.shape, index) == layout.groups(axis).tolist()
    assert axis_groups((2, 3), 0) == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("ranks", range(1, 33))
def test_default_sizes_always_factor(ranks: int) -> None:
    assert meshkit.factor_world(ranks, **default_sizes(ranks)).num_ranks == ranks


Group, Works = dist.ProcessGroup, list[dist.Work]

# --- one live rank ---------------------------------------------------------------------------


def rows_of_one_rank(tmp_path: Path) -> list[Row]:
    meshkit.init(device="cpu", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with meshkit.build_mesh(tp=1) as mesh, paired(mesh) as pairs, gated() as gate:
            return Bench(mesh, torch.device("cpu"), gate).rows(cases(pairs[:1], [64]), 2)
    finally:
        meshkit.shutdown()


def spoil(monkeypatch: pytest.MonkeyPatch, op: str, begin: Begin) -> None:
    monkeypatch.setitem(CALLS, op, replace(CALLS[op], begin=begin))


def test_wrong_elements_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> Works:
        out.copy_(source)
        out[3:8] += 1
        return []

    spoil(monkeypatch, "all_to_all", run)
    wrong = {row.op: row.wrong for row in rows_of_one_rank(tmp_path)}
    # five on each of the two groups
    assert wrong == dict.fromkeys(OPERATIONS, 0) | {"all_to_all": 10}


def test_a_call_that_does_nothing_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "all_gather", lambda out, source, group, later: [])
    wrong = {row.op: row.wrong for row in rows_of_one_rank(tmp_path)}
    assert wrong["all_gather"] == 2 * 16


@pytest.mark.parametrize("kind", [RuntimeError, NotImplementedError])
def test_what_the_backend_lacks_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[RuntimeError]
) -> None:
    def run(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> Works:
        raise kind("Backend gloo does not support reduce_scatter\nmore lines of c10d")

    spoil(monkeypatch, "reduce_scatter", run)
    rows = {row.op: row for row in rows_of_one_rank(tmp_path)}
    said = "Backend gloo does not support reduce_scatter"
    assert rows["reduce_scatter"] == lacking_row("reduce_scatter", "dp", 1, 64, said)
    assert all(row.mesh is not None for op, row in rows.items() if op != "reduce_scatter")


def test_any_other_error_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(
        out: torch.Tensor, source: torch.Tensor, group: dist.ProcessGroup, later: bool
    ) -> Works:
        raise RuntimeError("Connection closed by peer")

    spoil(monkeypatch, "all_reduce", run)
    with pytest.raises(RuntimeError, match=r"^Connection closed by peer$"):
        rows_of_one_rank(tmp_path)


# --- options ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-n", "8", "--dp", "3"], "factor_world(8, dp=3)"),
        (["-n", "0"], "'0' is not a whole number of 1 or more"),
        (["--min-bytes", "64", "--max-bytes", "32"], "there are no sizes from 64 to 32 bytes"),
        (["--factor", "1"], "and the factor 2 or more"),
        (["--json", "/no/such/folder/x.json"], "--json /no/such/folder/x.json: no such folder"),
    ],
)
def test_wrong_options_are_refused_before_any_process_starts(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert told in capsys.readouterr().err


def test_n_is_refused_under_a_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="2"):
        main(["-n", "2"])
    assert "a launcher has started this one already" in capsys.readouterr().err


# --- a real run ------------------------------------------------------------------------------


def test_a_real_run_measures_every_operation_axis_and_size(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    options = f"-n 4 --max-bytes 4096 --factor 4 --repeats 2 --json {file}".split()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.collectives", *options],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # four ranks need no four GPUs
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    assert report["sizes"] == {"dp": 2, "sp": 2}
    assert (report["backend"], report["torch"]) == ("gloo", torch.__version__)
    assert (report["cores"], report["repeats"]) == (os.cpu_count(), 2)

    rows = report["rows"]
    wanted = [
        (op, axis, size) for op in OPERATIONS for axis in ("dp", "sp") for size in (1024, 4096)
    ]
    assert [(row["op"], row["axis"], row["bytes"]) for row in rows] == wanted
    for row in rows:
        assert (row["ranks"], row["wrong"], row["lacks"]) == (2, 0, None)
        assert row["factor"] == busbw_factor(row["op"], 2)
        for speed in (row["mesh"], row["raw"]):
            assert speed["busbw"] == speed["algbw"] * row["factor"]
            assert speed["algbw"] == row["bytes"] / speed["seconds"] / 1e9
            assert speed["seconds"] > 0
        assert 0 < row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]

    printed = done.stdout.splitlines()
    assert printed[0].startswith(f"{os.cpu_count()} cores, torch {torch.__version__}, gloo on cpu;")
    assert len([line for line in printed if line.partition(" ")[0] in OPERATIONS]) == len(wanted)
    assert printed[-2].endswith("; 0 wrong elements")
