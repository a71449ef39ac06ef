"""The tables of a run, as text."""

from __future__ import annotations

from dataclasses import replace

from meshkit.bench.results.table import results_table
from tests.bench.results.example_runs import CLEAN, EMPTY, FOUND, REPORT

TABLE = """\
dp=2 sp=2: 4 ranks on 2 hosts, launcher spawn; gloo on cpu, torch 2.13.0; up to
  20 calls a row after 3 to warm up, float32

all_reduce over dp, n = 2
mode          bytes      us     p99   algbw   busbw  ratio  wrong  calls
----------  -------  ------  ------  ------  ------  -----  -----  -----
alone          1024  1500.0  2100.0  0.0007  0.0007      -      0      3
concurrent     1024  2500.0  3100.0  0.0004  0.0004   1.67      0      3
alone       1048576  4000.0  4100.0  0.2621  0.2621      -      0      3
concurrent  1048576  7000.0  8100.0  0.1498  0.1498   1.75      0      3

all_reduce over sp, n = 2
mode        bytes      us     p99   algbw   busbw  ratio  wrong  calls
----------  -----  ------  ------  ------  ------  -----  -----  -----
alone        1024  1000.0  1100.0  0.0010  0.0010      -      3      3
concurrent   1024  1500.0  2100.0  0.0007  0.0007   1.50      3      3

all_reduce over dp+sp, n = 2 and 2
mode     bytes      us     p99  algbw  busbw  ratio  wrong  calls
-------  -----  ------  ------  -----  -----  -----  -----  -----
overlap   1024  5000.0  5100.0      -      -   2.00      0      3

all_to_all over dp, n = 2
alone, 1024 bytes: not measured: gloo does not support it

us: """


def test_the_table() -> None:
    text = results_table(REPORT, 80, ascii=True)
    assert text.startswith(TABLE)
    assert text.endswith("\nFAILED: 8 rows in 1.2 s; 3 wrong elements.")
    assert max(map(len, text.splitlines())) <= 80


def test_the_last_line() -> None:
    assert results_table(CLEAN).endswith("\nOK: 4 rows in 1.2 s; 0 wrong elements.")
    part = replace(REPORT, measurements=FOUND[:5], planned=8)
    assert results_table(part).endswith("\nInterrupted: 5 of 8 rows in 1.2 s; 3 wrong elements.")
    assert results_table(EMPTY).endswith("\nInterrupted: 0 of 8 rows in 1.2 s; 0 wrong elements.")


def test_the_number_of_sampled_groups_is_shown() -> None:
    row = replace(FOUND[0], groups=16, num_groups=1000)
    text = results_table(replace(CLEAN, measurements=(row, FOUND[1])))
    assert "\nall_reduce over dp, n = 2; alone: 16 of 1000 groups\n" in text
