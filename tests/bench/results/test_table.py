"""The table to the letter, at 80 columns and at 200."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.bench.results.json_format import run_to_json
from meshkit.bench.results.measurement import Case, summarize
from meshkit.bench.results.table import results_table
from meshkit.bench.results.targets import ALONE
from tests.bench.results.example_runs import CLEAN, DP, EMPTY, FOUND, REPORT, took

quick = settings(deadline=None, max_examples=60, database=None)

NARROW = """\
dp=2 sp=2: 4 ranks on 2 hosts, launcher spawn; gloo on cpu, torch 2.13.0; up to
  20 calls a row after 3 to warm up, float32

all_reduce over dp, n = 2
mode          bytes      us     p99   algbw   busbw  ratio  #wrong  calls
----------  -------  ------  ------  ------  ------  -----  ------  -----
alone          1024  1500.0  2100.0  0.0007  0.0007              0      3
concurrent     1024  2500.0  3100.0  0.0004  0.0004   1.67       0      3
alone       1048576  4000.0  4100.0  0.2621  0.2621              0      3
concurrent  1048576  7000.0  8100.0  0.1498  0.1498   1.75       0      3
fit, alone, 2 sizes: 1497.6 us + bytes at 0.4190 GB/s, within 0 %
fit, concurrent, 2 sizes: 2495.6 us + bytes at 0.2328 GB/s, within 0 %

all_reduce over sp, n = 2
mode          bytes      us     p99   algbw   busbw  ratio  #wrong  calls
----------  -------  ------  ------  ------  ------  -----  ------  -----
alone          1024  1000.0  1100.0  0.0010  0.0010              3      3
concurrent     1024  1500.0  2100.0  0.0007  0.0007   1.50       3      3

all_reduce over dp+sp, n = 2 and 2
mode          bytes      us     p99   algbw   busbw  ratio  #wrong  calls
----------  -------  ------  ------  ------  ------  -----  ------  -----
overlap        1024  5000.0  5100.0                   2.00       0      3

all_to_all over dp, n = 2
alone, 1024 bytes: not measured: gloo does not support it

Slowest, dp alone: rank 3 (dp=1 sp=1, host b) in 1 of 2 rows; group sp=1 (ranks
  1, 3) in 1, 1.50x the fastest in the median row.
Slowest, dp concurrent: rank 1 (dp=0 sp=1, host a) in 1 of 2 rows; group sp=1
  (ranks 1, 3) in 1, 1.42x the fastest in the median row.
Slowest, sp alone: rank 0 (dp=0 sp=0, host a) in 1 of 1 row; group dp=0 (ranks
  0, 1) in 1, 1.00x the fastest in the median row.
Slowest, sp concurrent: rank 2 (dp=1 sp=0, host b) in 1 of 1 row; group dp=1
  (ranks 2, 3) in 1, 2.00x the fastest in the median row.
Slowest, dp+sp overlap: rank 0 (dp=0 sp=0, host a) in 1 of 1 row.
us: the median call, on the slowest rank of its group. GB/s decimal, as
  nccl-tests: algbw = bytes / us, busbw = algbw * factor(op, n). ratio: all
  groups at once over one alone; for two axes at once, over the slower of the
  two. calls: timed calls of each group; fewer if they are slow.

busbw in GB/s at the largest size, all groups of an axis at once
operation       dp      sp
----------  ------  ------
all_reduce  0.1498  0.0007

FAILED: 8 rows in 1.2 s; 3 wrong elements."""

WIDE = """\
all_reduce over dp, n = 2
mode          bytes      us     p99   algbw   busbw  ratio  #wrong  calls      q\
uartiles         groups  slowest group, rank
----------  -------  ------  ------  ------  ------  -----  ------  -----  -----\
--------  -------------  ------------------------
alone          1024  1500.0  2100.0  0.0007  0.0007              0      3  1025.\
0-1975.0  1000.0-2000.0  sp=1, rank 3 (dp=1 sp=1)
concurrent     1024  2500.0  3100.0  0.0004  0.0004   1.67       0      3  2025.\
0-2975.0  2000.0-3000.0  sp=1, rank 1 (dp=0 sp=1)
alone       1048576  4000.0  4100.0  0.2621  0.2621              0      3  3925.\
0-4075.0  4000.0-4000.0  sp=0, rank 0 (dp=0 sp=0)
concurrent  1048576  7000.0  8100.0  0.1498  0.1498   1.75       0      3  6025.\
0-7975.0  6000.0-8000.0  sp=0, rank 0 (dp=0 sp=0)
"""


def test_the_table_at_80_columns() -> None:
    assert results_table(REPORT, 80, ascii=True) == NARROW


@pytest.mark.parametrize("width", [60, 70])
def test_fewer_columns_leave_out_columns(width: int) -> None:
    lines = results_table(REPORT, width, ascii=True).splitlines()
    assert max(map(len, lines)) <= width
    header = next(line for line in lines if line.startswith("mode "))
    assert {"mode", "bytes", "us", "busbw", "#wrong"} <= {*header.split()}
    assert "p99" not in header


def test_the_last_table_has_the_bandwidth_of_each_axis() -> None:
    last = results_table(REPORT, 80, ascii=True).partition("busbw in GB/s")[2]
    rows = [line.split() for line in last.splitlines()[1:] if line]
    assert rows[0] == ["operation", "dp", "sp"]
    largest = {row.case.target.name: row for row in REPORT.measurements if row.busbw}
    figures = [f"{largest[axis].busbw:.4f}" for axis in ("dp", "sp")]
    assert rows[2] == ["all_reduce", *figures]


def test_more_columns_show_more() -> None:
    text = results_table(CLEAN, 200, ascii=True)
    assert WIDE in text
    assert text.endswith("\nOK: 4 rows in 1.2 s; 0 wrong elements.")
    quartiles, groups, last = 88, 103, 129  # widths of the tables that end with these columns
    assert "quartiles" in results_table(CLEAN, quartiles)
    assert "quartiles" not in results_table(CLEAN, quartiles - 1)
    assert "1000.0-2000.0" in results_table(CLEAN, groups)
    assert "1000.0-2000.0" not in results_table(CLEAN, groups - 1)
    assert "slowest group, rank" in results_table(CLEAN, last)
    assert "slowest group, rank" not in results_table(CLEAN, last - 1)
    assert "─" in results_table(CLEAN, last)


@quick
@given(st.integers(80, 220))
def test_it_fits_the_width(width: int) -> None:
    assert max(map(len, results_table(REPORT, width).splitlines())) <= width


def test_what_was_cut_short() -> None:
    assert (
        results_table(EMPTY).splitlines()[-1]
        == "Interrupted: 0 of 8 rows in 1.2 s; 0 wrong elements."
    )
    part = replace(REPORT, measurements=FOUND[:5], planned=8)
    assert results_table(part).endswith("\nInterrupted: 5 of 8 rows in 1.2 s; 3 wrong elements.")


def test_times_that_do_not_grow_with_the_size() -> None:
    flat = replace(
        CLEAN,
        measurements=(
            CLEAN.measurements[2],
            replace(CLEAN.measurements[0], timing=FOUND[6].timing),
        ),
    )
    assert "\nfit, alone, 2 sizes: 4390.2 us + nothing per byte, within 12 %\n" in results_table(
        flat
    )


def test_a_host_is_that_of_the_rank_wherever_it_sits() -> None:
    layout = Layout(dp=2, sp=2, ranks=[3, 1, 2, 0])
    one = summarize(layout, Case("broadcast", DP, 64), ALONE, took(1, 1, 1, 2))
    placed = replace(CLEAN, measurements=(one,), planned=1, hosts={3: "c", 1: "b", 2: "b", 0: "a"})
    text = results_table(placed, 200)
    assert text.startswith("dp=2 sp=2: 4 ranks on 3 hosts, ")
    assert "\nSlowest, dp alone: rank 0 (dp=1 sp=1, host a) in 1 of 1 row; " in text
    assert run_to_json(placed)["hosts"] == ["a", "b", "b", "c"]
    assert text.endswith("\nOK: 1 row in 1.2 s; 0 wrong elements.")


def test_the_number_of_sampled_groups_is_shown() -> None:
    one = replace(FOUND[0], groups=16, num_groups=1000)
    assert "\nall_reduce over dp, n = 2; alone: 16 of 1000 groups\n" in results_table(
        replace(CLEAN, measurements=(one, FOUND[1]))
    )
