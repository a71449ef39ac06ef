"""A run for a program: the field names of nccl-tests, and what stands beside them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from meshkit.bench.results.json_format import run_to_json
from meshkit.bench.results.measurement import Case, Measurement, summarize
from meshkit.bench.results.targets import ALONE
from tests.bench.results.example_runs import BOTH, CLEAN, DP, EMPTY, LAYOUT, REPORT, took


def test_the_whole_run() -> None:
    reported = json.loads(json.dumps(run_to_json(REPORT)))
    results, fits, links = reported.pop("results"), reported.pop("fits"), reported.pop("links")
    speeds = [row.busbw for row in REPORT.measurements if row.busbw is not None]
    assert reported == {
        "ok": False,
        "sizes": {"dp": 2, "sp": 2},
        "launcher": "spawn",
        "device": "cpu",
        "backend": "gloo",
        "torch": "2.13.0",
        "hosts": ["a", "a", "b", "b"],
        "config": {"warmup_iterations": 3, "iterations": 20},
        "planned": 8,
        "interrupted": False,
        "seconds": 1.25,
        "out_of_bounds": {"count": 3, "okay": False},
        "average_bus_bandwidth": {"bandwidth": pytest.approx(sum(speeds) / 6)},
    }
    assert len(results) == 8
    assert [row["levels"] for row in results] == [
        *[["across"]] * 4,
        *[["inside"]] * 2,
        ["across", "inside"],
        ["across"],
    ]
    # one line counts: two ranks, 2 steps and a factor of 1, on two hosts
    (fit,) = [row for row in fits if row["mode"] == "concurrent"]
    assert links == {
        "bandwidth_inter_node": pytest.approx(1 / fit["beta"] / 1e9),
        "latency_inter_node": pytest.approx(fit["alpha"] / 2),
        "source": "meshkit bench dp=2 sp=2, gloo on cpu, torch 2.13.0: "
        "bandwidth_inter_node, latency_inter_node",
    }
    assert [(fit["op"], fit["target"], fit["mode"], fit["ranks"]) for fit in fits] == [
        ("all_reduce", "dp", "alone", 2),
        ("all_reduce", "dp", "concurrent", 2),
    ]
    assert list(fits[0]) == [
        *("op", "target", "mode", "ranks", "alpha", "beta", "sizes", "residuals"),
    ]


def test_a_result_key_by_key() -> None:
    reported = run_to_json(REPORT)["results"][1]
    per_iter, speed = reported.pop("in_place_per_iter"), reported.pop("in_place")
    slowest, fastest, rank = (
        reported.pop(name) for name in ("slowest_group", "fastest_group", "slowest_rank")
    )
    assert reported == {
        "op": "all_reduce",
        "axes": "dp",
        "mode": "concurrent",
        "ranks": [2],
        "size": 1024,
        "count": 256,
        "type": "float",
        "redop": "sum",
        "root": "-1",
        "out_of_place": None,
        "actual_iterations": 3,
        "groups": 2,
        "num_groups": 2,
        "ratio": pytest.approx(2.5 / 1.5),
        "lacks": None,
        "levels": ["across"],
    }
    algbw = 1024 / 2.5e-3 / 1e9
    assert speed == pytest.approx(
        {"time": 2500, "alg_bw": algbw, "bus_bw": algbw, "nwrong": 0}, rel=1e-9
    )
    assert per_iter == pytest.approx(
        {
            "min_us": 1900,
            "p25_us": 2025,
            "p50_us": 2500,
            "p75_us": 2975,
            "p99_us": 3100,
            "max_us": 3100,
        }
    )
    assert slowest == {"ranks": [1, 3], "where": "sp=1", "time": pytest.approx(3000)}
    assert fastest == {"ranks": [0, 2], "where": "sp=0", "time": pytest.approx(2000)}
    assert rank == {"rank": 1, "where": "dp=0 sp=1", "time": pytest.approx(3000)}


@pytest.mark.parametrize(
    ("op", "count", "redop", "root", "place"),
    [
        ("all_reduce", 256, "sum", "-1", "in_place"),
        ("all_gather", 128, "none", "-1", "out_of_place"),
        ("reduce_scatter", 128, "sum", "-1", "out_of_place"),
        ("all_to_all", 128, "none", "-1", "out_of_place"),
        ("broadcast", 256, "none", "0", "in_place"),
        ("send_recv", 256, "none", "-1", "out_of_place"),
    ],
)
def test_the_words_of_nccl_tests(op: str, count: int, redop: str, root: str, place: str) -> None:
    row = summarize(LAYOUT, Case(op, DP, 1024), ALONE, took(1, 1, 1, 1))
    (reported,) = run_to_json(replace(CLEAN, measurements=(row,)))["results"]
    assert (reported["count"], reported["redop"], reported["root"]) == (count, redop, root)
    assert reported[place]["time"] == pytest.approx(1000)
    (other,) = {"in_place", "out_of_place"} - {place}
    assert reported[other] is None


def test_what_was_not_measured_is_null() -> None:
    lack = Measurement(
        Case("broadcast", BOTH, 1024), "overlap", (2, 2), unsupported="no such thing"
    )
    (reported,) = run_to_json(replace(CLEAN, measurements=(lack,)))["results"]
    nothing = ("in_place", "in_place_per_iter", "actual_iterations", "ratio", "groups")
    nothing += ("num_groups", "slowest_group", "fastest_group", "slowest_rank")
    assert {name: reported[name] for name in nothing} == dict.fromkeys(nothing)
    assert (reported["lacks"], reported["ranks"]) == ("no such thing", [2, 2])


def test_a_run_cut_short_is_not_ok() -> None:
    assert run_to_json(CLEAN)["ok"]
    reported = run_to_json(EMPTY)
    assert (reported["ok"], reported["interrupted"]) == (False, True)
    assert reported["average_bus_bandwidth"] == {"bandwidth": None}


def test_levels_are_those_of_ranks_wherever_they_sit() -> None:
    placed = replace(REPORT, hosts={3: "a", 1: "b", 2: "a", 0: "b"})  # dp: ranks 3 2, and 1 0
    reported = run_to_json(placed)
    assert [row["levels"] for row in reported["results"]][3:7] == [
        *[["inside"], ["across"], ["across"]],
        ["inside", "across"],
    ]
    assert reported["links"].keys() == {"bandwidth_intra_node", "latency_intra_node", "source"}
    assert reported["hosts"] == ["b", "b", "a", "a"]


def test_the_number_of_sampled_groups_is_shown() -> None:
    row = replace(REPORT.measurements[0], groups=16, num_groups=1000)
    (reported,) = run_to_json(replace(CLEAN, measurements=(row,)))["results"]
    assert (reported["groups"], reported["num_groups"]) == (16, 1000)
