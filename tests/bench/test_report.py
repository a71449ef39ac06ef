"""The report of a benchmark: the screen, the table of all rows, and JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from meshkit.bench.report import draw_rows, draw_screen, format_us, run_to_json, slow_groups
from meshkit.bench.results import CONCURRENT, Beside
from tests.bench.example_runs import CLEAN, LAYOUT, REPORT, ROWS, summarize_case

TABLE = """\
dp=2 sp=2: 4 ranks on 2 hosts, launcher spawn; gloo on cpu, torch 2.13.0
all_reduce of 1024 to 1048576 bytes, float32

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

us: """


def test_the_table() -> None:
    text = draw_rows(REPORT, width=80, ascii=True)
    assert text.startswith(TABLE)
    assert max(map(len, text.splitlines())) <= 80
    assert text.endswith("\nFAILED: 7 rows in 1.2 s; 3 wrong elements.")
    assert draw_rows(CLEAN).endswith("\nOK: 4 rows in 1.2 s; 0 wrong elements.")
    sampled = replace(CLEAN, measurements=(replace(ROWS[0], num_groups=1000), ROWS[1]))
    assert "\nall_reduce over dp, n = 2; alone: 2 of 1000 groups\n" in draw_rows(sampled)


def test_the_json() -> None:
    report = json.loads(json.dumps(run_to_json(REPORT)))
    rows = report.pop("measurements")
    assert report == {
        **{"ok": False, "wrong": 3, "seconds": 1.25, "slow": [], "missed": []},
        **{"sizes": {"dp": 2, "sp": 2}, "launcher": "spawn", "device": "cpu", "backend": "gloo"},
        **{"torch": "2.13.0", "hosts": ["a", "a", "b", "b"], "warm_up": 3, "iters": 20},
        "beside": [],
        "first_calls": [
            {"axes": "dp", "ms": {"min": 250.0, "median": 375.0, "max": 500.0}, "memory": None}
        ],
    }
    algbw = 1024 / 2.5e-3 / 1e9
    first, second = rows[1].pop("by_group")
    assert rows[1] == {
        **{"op": "all_reduce", "axes": "dp", "ranks": [2], "mode": "concurrent", "bytes": 1024},
        **{"us": pytest.approx(2500), "p99": pytest.approx(3100)},
        **{"algbw": pytest.approx(algbw), "busbw": pytest.approx(algbw)},
        **{"ratio": pytest.approx(2.5 / 1.5), "wrong": 0, "calls": 3, "rounds": 1},
        **{"groups": 2, "num_groups": 2},
        "group_us": pytest.approx({"min": 2000, "median": 2500, "max": 3000}),
    }
    assert (first["group"], first["ranks"], first["hosts"]) == ("sp=0", [0, 2], ["a", "b"])
    times = [second[name] for name in ("low", "us", "high", "factor")]
    assert times == pytest.approx([3000, 3000, 3000, 1.5])
    assert second["slow"] is False  # one round says nothing
    assert run_to_json(CLEAN)["ok"]


# ---------------------------------------------------------------- the screen

SCREEN = """\
dp=2 sp=2: 4 ranks on 2 hosts, launcher spawn; gloo on cpu, torch 2.13.0
all_reduce of 1024 to 1048576 bytes, float32

groups  first ms    us  us all     GB/s  GB/s all  wrong  slowest group
------  --------  ----  ------  -------  --------  -----  ------------------
dp           500  1500    2500    0.262      0.15      0  sp=1 on a, b: 1.50
sp             -  1000    1500  0.00102  0.000683      3  dp=1 on b: 2.00
dp+sp          -     -    5000        -         -      0  -

us: """


def test_the_screen() -> None:
    text = draw_screen(REPORT, width=80, ascii=True)
    assert text.startswith(SCREEN)
    assert max(map(len, text.splitlines())) <= 80
    assert text.endswith("\nFAILED: 7 rows in 1.2 s; 3 wrong elements.")


def test_a_slow_group_is_named_with_its_ranks_and_hosts() -> None:
    case, seconds = ROWS[0].case, np.full((4, 9), 1e-3)
    seconds[[1, 3]] = 2e-3
    rounds, larger = np.hsplit(seconds, 9), replace(case, bytes=4096)
    rows = (
        summarize_case(LAYOUT, case, CONCURRENT, rounds, 0),
        summarize_case(LAYOUT, larger, CONCURRENT, [4 * calls**1.1 for calls in rounds], 0),
    )
    run = replace(CLEAN, measurements=rows)
    (group,) = slow_groups(run)  # once, by its largest factor
    assert (group.row.case.bytes, group.coordinate, group.ranks) == (4096, "sp=1", (1, 3))
    text = draw_screen(run, width=200)
    took, factor = format_us(4 * 2e-3**1.1), f"{2**1.1:.2f}"
    assert (
        f"\nSLOW: dp at sp=1 (ranks 1 and 3) on a, b: all_reduce of 4096 bytes takes {took} us, "
        f"{factor} times the median of its peers.\nOK: 2 rows in 1.2 s; 1 slow group; "
    ) in text
    assert f"sp=1 on a, b: {factor} SLOW\n" in text
    (named,) = run_to_json(run)["slow"]
    assert (named["axes"], named["group"], named["hosts"]) == ("dp", "sp=1", ["a", "b"])


BESIDE = (Beside(ROWS[2].case, 4e-3, 5e-3, 6e-3), Beside(ROWS[4].case, 1e-3, 1e-3, 3e-3))
BESIDE_TABLE = """
beside a product    bytes    us  product us  in turn us  both us  hidden %
----------------  -------  ----  ----------  ----------  -------  --------
dp                1048576  4000        5000        9000     6000        75
sp                   1024  1000        1000        2000     3000         0

us: all groups at once. in turn us: """


def test_collectives_beside_a_product_have_a_table() -> None:
    run = replace(REPORT, beside=BESIDE)
    for text in (draw_screen(run, ascii=True), draw_rows(run, ascii=True)):
        assert BESIDE_TABLE in text
        assert " On the cpu both compete for its cores." in text.replace("\n ", "")
        assert max(map(len, text.splitlines())) <= 80
    assert "cores" not in draw_screen(replace(run, device="cuda"))
    row, _ = run_to_json(run)["beside"]
    assert [row.pop(name) for name in ("op", "axes", "bytes")] == ["all_reduce", "dp", 1048576]
    figures = {"us": 4000, "product_us": 5000, "in_turn_us": 9000, "both_us": 6000, "hidden": 0.75}
    assert row == pytest.approx(figures)


def test_several_operations_are_named_in_their_lines() -> None:
    rows = (*ROWS[:2], replace(ROWS[0], case=replace(ROWS[0].case, op="broadcast")))
    lines = draw_screen(replace(CLEAN, measurements=rows), width=120).splitlines()
    assert [line.split()[:2] for line in lines[5:7]] == [["all_reduce", "dp"], ["broadcast", "dp"]]
