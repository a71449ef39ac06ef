"""The limits of a benchmark: figures by target and a saved run, against loops; misuse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, SpecError
from meshkit.bench.limits import Limits, find_misses, parse_saved, resolve_limits
from meshkit.bench.report import MAX_MISSES, draw_screen, run_to_json
from meshkit.bench.results import (
    BenchmarkRun,
    Case,
    Target,
    default_targets,
    modes,
)
from meshkit.bench.slow import MIN_JUDGED, WORTH
from meshkit.testing import layouts
from tests.bench.example_runs import CLEAN, DP, LAYOUT, REPORT, summarize_case

quick = settings(deadline=None, max_examples=40, database=None)
SIZES = (1024, 65536)


def run_of(layout: Layout, seed: int, rounds: int, spread: float = 0.5) -> BenchmarkRun:
    """Return a run of two operations over all targets and two sizes, with random times."""
    rng = np.random.default_rng(seed)
    rows = [
        summarize_case(
            layout,
            Case(op, target, size),
            mode,
            [*np.exp2(rng.uniform(0, spread, (rounds, layout.num_ranks, 2))) * size / 1e8],
            0,
        )
        for op in ("all_reduce", "broadcast")
        for target in default_targets(layout)
        for size in SIZES
        for mode in modes(layout, target)
    ]
    hosts = tuple(f"h{rank // 4}" for rank in range(layout.num_ranks))
    return replace(CLEAN, sizes=layout.sizes, hosts=hosts, measurements=tuple(rows))


def saved(run: BenchmarkRun) -> Mapping[str, Any]:
    """Return a run as it stands in a file."""
    read: Mapping[str, Any] = json.loads(json.dumps(run_to_json(run)))
    return read


def faster(run: BenchmarkRun, factor: float) -> BenchmarkRun:
    """Return a run whose groups take so much of their time, with the same noise above."""
    rows = [
        replace(
            row,
            by_group=tuple(
                replace(time, low=factor * time.low, median=factor * time.median)
                for time in row.by_group
            ),
        )
        for row in run.measurements
    ]
    return replace(run, measurements=tuple(rows))


def at_once(run: BenchmarkRun) -> list[dict[str, Any]]:
    """Return the rows of the JSON of a run in which all groups of their target run."""
    rows: list[dict[str, Any]] = saved(run)["measurements"]
    return [row for row in rows if row["mode"] != "alone" or row["num_groups"] == 1]


small = layouts(max_ranks=8, max_axes=3).filter(lambda layout: layout.num_ranks > 1)


@quick
@given(small, st.integers(0, 2**32 - 1), st.floats(0.01, 1.0), st.floats(1.0, 20.0))
def test_figures_are_missed_by_the_groups_that_a_loop_finds(
    layout: Layout, seed: int, gbs: float, us: float
) -> None:
    run = run_of(layout, seed, 3)
    targets = default_targets(layout)
    least: dict[Target, float] = {target: gbs for target in targets if len(target.groups) == 1}
    most = dict.fromkeys(targets, us)
    expected = []
    for row in at_once(run):
        for group in row["by_group"]:
            busbw = row["busbw"] and row["busbw"] * row["us"] / group["us"]
            key = row["op"], row["axes"], tuple(group["ranks"])
            if row["bytes"] == SIZES[-1] and busbw is not None and busbw < gbs:
                expected.append(("min-busbw", *key))
            if row["bytes"] == SIZES[0] and group["us"] > us:
                expected.append(("max-latency", *key))
    misses = find_misses(run, Limits(least, most))
    rows = [miss.as_dict() for miss in misses]
    found = [(row["option"], row["op"], row["axes"], tuple(row["ranks"])) for row in rows]
    assert sorted(found) == sorted(expected)
    assert all(
        miss.factor < 1 if miss.option == "min-busbw" else miss.factor > 1 for miss in misses
    )


@quick
@given(small, st.integers(0, 2**32 - 1), st.sampled_from([0.1, 0.5, 2.0]), st.integers(9, 12))
def test_a_group_is_slower_than_in_a_saved_run_as_a_loop_finds(
    layout: Layout, seed: int, spread: float, rounds: int
) -> None:
    before, now = run_of(layout, seed, rounds, spread), run_of(layout, seed + 1, rounds, 2.0)
    expected: dict[tuple[Any, ...], float] = {}
    for old, new in zip(at_once(before), at_once(now), strict=True):
        for was, group in zip(old["by_group"], new["by_group"], strict=True):
            factor = group["us"] / was["us"]
            if factor >= WORTH and group["low"] > was["high"]:
                key = new["op"], new["axes"], tuple(group["ranks"])
                expected[key] = max(factor, expected.get(key, 0.0))
    misses = find_misses(now, Limits({}, {}, parse_saved(layout, saved(before))))
    found = {(m.as_dict()["op"], m.as_dict()["axes"], m.group.ranks): m.factor for m in misses}
    assert len(found) == len(misses)
    assert found == pytest.approx(expected)


@quick
@given(small, st.integers(0, 2**32 - 1), st.floats(0.1, 1.0))
def test_no_run_is_slower_than_itself_or_than_a_slower_one(
    layout: Layout, seed: int, factor: float
) -> None:
    run = run_of(layout, seed, MIN_JUDGED)
    limits = Limits({}, {}, parse_saved(layout, saved(run)))
    assert find_misses(run, limits) == []
    assert find_misses(faster(run, factor), limits) == []


@quick
@given(small, st.integers(0, 2**32 - 1))
def test_a_saved_run_has_what_was_measured(layout: Layout, seed: int) -> None:
    run = run_of(layout, seed, MIN_JUDGED)
    known = parse_saved(layout, saved(run))
    assert (known.operations, known.sizes) == (("all_reduce", "broadcast"), SIZES)
    assert known.targets == default_targets(layout)
    known.check_measures([row.case for row in run.measurements])
    known.check_device(run)


def test_too_few_rounds_say_nothing() -> None:
    known = parse_saved(LAYOUT, saved(run_of(LAYOUT, 0, MIN_JUDGED, 0.01)))
    groups = sum(len(row["by_group"]) for row in at_once(run_of(LAYOUT, 0, 1)))
    for rounds, slower in ((MIN_JUDGED, groups / len(SIZES)), (MIN_JUDGED - 1, 0)):
        run = faster(run_of(LAYOUT, 0, rounds, 0.01), 9.0)
        assert len(find_misses(run, Limits({}, {}, known))) == slower


# ---------------------------------------------------------------- the report


def test_the_sentences_and_the_outcome() -> None:
    limits = Limits({DP: 0.14}, {DP: 2500.0})
    misses = find_misses(CLEAN, limits)
    text = draw_screen(CLEAN, misses, width=200)
    assert (
        "\nBELOW: dp at sp=0 (ranks 0 and 2) on a, b: all_reduce of 1048576 bytes has a busbw of "
        "0.131 GB/s, under --min-busbw 0.14.\n"
        "ABOVE: dp at sp=1 (ranks 1 and 3) on a, b: all_reduce of 1024 bytes takes 3000 us, over "
        "--max-latency 2500.\nFAILED: 4 rows in 1.2 s; 2 missed limits; 0 wrong elements."
    ) in text
    report = run_to_json(CLEAN, misses)
    assert report["ok"] is False
    assert [(row["option"], row["group"], row["limit"]) for row in report["missed"]] == [
        ("min-busbw", "sp=0", 0.14),
        ("max-latency", "sp=1", 2500.0),
    ]
    before = saved(run_of(LAYOUT, 0, MIN_JUDGED, 0.01))
    (slower, *_) = find_misses(
        run_of(LAYOUT, 0, MIN_JUDGED, 9.0), Limits({}, {}, parse_saved(LAYOUT, before))
    )
    assert "times the " in slower.describe()
    assert slower.describe().startswith("SLOWER: dp at sp=")


def test_many_misses_are_counted() -> None:
    run = run_of(Layout(dp=2, sp=4), 0, 2)
    misses = find_misses(run, Limits({}, dict.fromkeys(default_targets(Layout(dp=2, sp=4)), 0.001)))
    lines = draw_screen(run, misses, width=200).splitlines()
    assert sum(line.startswith("ABOVE: ") for line in lines) == MAX_MISSES
    assert f"and {len(misses) - MAX_MISSES} more miss a limit; --json has all." in lines


# ---------------------------------------------------------------- misuse


def test_limits_as_typed() -> None:
    targets = default_targets(LAYOUT)
    pairs = [("dp", 2.0), ("dp sp", 3.0), ("dp+sp", 4.0)]
    limits = resolve_limits(LAYOUT, targets, "--max-latency", pairs)
    assert {target.name: number for target, number in limits.items()} == dict(pairs)


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ((), ("sizes", "measurements")),
        (("measurements", 1), ("op", "axes", "bytes", "rounds", "by_group")),
        (("measurements", 1, "by_group", 0), ("ranks", "us", "high")),
    ],
)
def test_a_file_with_a_broken_part_is_refused(path: tuple[Any, ...], keys: tuple[str, ...]) -> None:
    whole = run_of(LAYOUT, 0, MIN_JUDGED)
    for key in keys:
        for bad in (None, "x", -1, 0, [], {}, float("nan"), float("inf")):
            file = saved(whole)
            part: Any = file
            for step in path:
                part = part[step]
            part[key] = bad
            with pytest.raises(SpecError):
                parse_saved(LAYOUT, file)
        del part[key]
        with pytest.raises(SpecError):
            parse_saved(LAYOUT, file)


def test_a_file_without_rows_or_of_another_mesh_is_refused() -> None:
    whole = saved(run_of(LAYOUT, 0, MIN_JUDGED))
    with pytest.raises(SpecError, match="It has no measurements"):
        parse_saved(LAYOUT, {**whole, "measurements": []})
    other = Layout(dp=4)
    with pytest.raises(SpecError, match="is of dp=2 sp=2, this mesh is dp=4"):
        parse_saved(other, whole)


def test_a_file_of_a_run_with_few_rounds_is_refused() -> None:
    with pytest.raises(SpecError, match="1 round of calls"):
        parse_saved(LAYOUT, saved(REPORT))
