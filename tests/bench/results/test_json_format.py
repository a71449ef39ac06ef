"""A run as JSON: its rows, and the links that a search reads."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshkit.bench.results.json_format import run_to_json
from meshkit.bench.results.measurement import Case, Measurement
from tests.bench.results.example_runs import BOTH, CLEAN, EMPTY, REPORT


def test_the_whole_run() -> None:
    report = json.loads(json.dumps(run_to_json(REPORT)))
    rows, links = report.pop("measurements"), report.pop("links")
    assert report == {
        **{"ok": False, "wrong": 3, "interrupted": False, "planned": 8, "seconds": 1.25},
        **{"sizes": {"dp": 2, "sp": 2}, "launcher": "spawn", "device": "cpu", "backend": "gloo"},
        **{"torch": "2.13.0", "hosts": ["a", "a", "b", "b"], "warm_up": 3, "iters": 20},
    }
    assert len(rows) == 8
    algbw = 1024 / 2.5e-3 / 1e9
    assert rows[1] == {
        **{"op": "all_reduce", "axes": "dp", "ranks": [2], "mode": "concurrent", "bytes": 1024},
        **{"us": pytest.approx(2500), "p99": pytest.approx(3100)},
        **{"algbw": pytest.approx(algbw), "busbw": pytest.approx(algbw)},
        **{"ratio": pytest.approx(2.5 / 1.5), "wrong": 0, "calls": 3},
        **{"groups": 2, "num_groups": 2, "unsupported": None},
    }
    # one line counts: two ranks, 2 steps and a factor of 1, on two hosts
    (fit,) = [fit for fit in REPORT.fits if fit.mode == "concurrent"]
    assert links == {
        "bandwidth_inter_node": pytest.approx(1 / fit.beta / 1e9),
        "latency_inter_node": pytest.approx(fit.alpha / 2),
        "source": "meshkit bench dp=2 sp=2, gloo on cpu, torch 2.13.0: "
        "bandwidth_inter_node, latency_inter_node",
    }


def test_a_row_without_a_time() -> None:
    lack = Measurement(Case("broadcast", BOTH, 64), "overlap", (2, 2), unsupported="no such thing")
    (row,) = run_to_json(replace(CLEAN, measurements=(lack,)))["measurements"]
    assert {row[name] for name in ("us", "p99", "algbw", "busbw", "ratio")} == {None}
    assert (row["unsupported"], row["ranks"]) == ("no such thing", [2, 2])


def test_a_run_cut_short_is_not_ok() -> None:
    assert run_to_json(CLEAN)["ok"]
    report = run_to_json(EMPTY)
    assert (report["ok"], report["interrupted"]) == (False, True)


def test_links_are_those_of_ranks_wherever_they_are() -> None:
    placed = replace(REPORT, hosts={3: "a", 1: "b", 2: "a", 0: "b"})  # dp: ranks 3 2, and 1 0
    report = run_to_json(placed)
    assert report["links"].keys() == {"bandwidth_intra_node", "latency_intra_node", "source"}
    assert report["hosts"] == ["b", "b", "a", "a"]
