"""Figures of links out of measured lines: what the model of the search takes, it gives back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.core.cost import Job, near, seconds, sent
from meshkit.core.links import LINKS, Links
from meshkit.core.measured import Measured
from meshkit.core.measured_links import RING, measured_links
from meshkit.core.measurement import ALONE, CONCURRENT, Case, Measurement
from meshkit.core.memory import Choice
from meshkit.core.targets import typed_targets
from meshkit.core.timing import Timing
from tests.core.reports import EMPTY, REPORT

quick = settings(deadline=None, max_examples=40, database=None)
PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
SIZES = (2**10, 2**16, 2**22)


def modelled(links: Links, dp: int, tp: int, node: int, names: list[str], slow: float) -> Measured:
    """A run whose times are those of the search's own model; alone they are told much slower."""
    layout = Layout(dp=dp, tp=tp)
    job = Job(dp * tp, dp * tp // node, 8, 8, links)
    rows = []
    for target in typed_targets(layout, names):
        axes = target.span
        ranks = layout.size(*axes)
        for op, passes in PASSES.items():
            for size in SIZES:
                amount, steps = passes * (ranks - 1) / ranks * size, passes * (ranks - 1)
                among = near(job, Choice(1, dp, 1, 1, 1, tp), *axes)
                took = float(
                    seconds(links, sent(job, among, np.float64(amount), np.float64(steps)))
                )
                for mode, factor in ((ALONE, slow), (CONCURRENT, 1.0)):
                    timing = Timing.of([took * factor])
                    rows.append(Measurement(Case(op, target, size), mode, (ranks,), timing=timing))
    hosts = {rank: f"n{rank // node}" for rank in range(dp * tp)}
    return replace(REPORT, sizes=layout.sizes, hosts=hosts, found=tuple(rows))


@quick
@given(
    st.floats(1, 1000),
    st.floats(0.1, 100),
    st.floats(1e-7, 1e-4),
    st.floats(1e-7, 1e-4),
    st.sampled_from([(4, 4, 4), (8, 2, 2), (2, 8, 8), (4, 2, 2)]),
)
def test_what_the_search_takes_is_found_again(
    inside: float, across: float, wait: float, far: float, grid: tuple[int, int, int]
) -> None:
    links = replace(LINKS["h100"], inside=inside, across=across, wait_inside=wait, wait_across=far)
    found = measured_links(modelled(links, *grid, ["dp", "tp"], 3.0))
    figures = (inside, across, wait, far)
    names = ("inside", "across", "wait_inside", "wait_across")
    assert [found[name] for name in names] == pytest.approx(figures, rel=1e-3)


def test_ranks_that_share_a_node_share_what_leaves_it() -> None:
    # the world alone: four of eight ranks on a node, so a quarter of each one's bytes leaves
    links = replace(LINKS["h100"], inside=1000, across=10)
    report = modelled(links, 4, 4, 8, ["dp tp"], 1.0)
    assert measured_links(report)["across"] == pytest.approx(10, rel=1e-3)
    # with groups of one rank a node beside it, those count: the wires inside are slow here
    slow = replace(LINKS["h100"], inside=1, across=10)
    both = measured_links(modelled(slow, 2, 8, 8, ["dp", "dp tp"], 1.0))
    assert both["across"] == pytest.approx(10, rel=1e-3)
    only = measured_links(modelled(slow, 2, 8, 8, ["dp tp"], 1.0))
    assert only["across"] == pytest.approx(1 / 7, rel=1e-3)  # 7/8 of the bytes inside at 1 GB/s


def test_alone_counts_where_there_is_no_other_way() -> None:
    report = modelled(LINKS["h100"], 4, 2, 2, ["tp"], 2.0)
    lone = replace(report, found=tuple(one for one in report.found if one.mode == ALONE))
    assert measured_links(report)["inside"] == pytest.approx(450, rel=1e-3)
    assert measured_links(lone)["inside"] == pytest.approx(225, rel=1e-3)


def test_what_a_line_does_not_tell_is_left_out() -> None:
    def run(*took: float) -> dict[str, object]:
        (tp,) = typed_targets(Layout(dp=2, sp=2), ["sp"])
        rows = [
            Measurement(Case("all_gather", tp, size), ALONE, (2,), timing=Timing.of([t]))
            for size, t in zip(SIZES, took, strict=True)
        ]
        return dict(measured_links(replace(REPORT, found=tuple(rows))))

    flat, steep = run(3.0, 2.0, 1.0), run(1.0, 2.0**6, 2.0**12)
    about = "meshkit bench dp=2 sp=2, gloo on cpu, torch 2.13.0"
    assert flat.keys() == {"wait_inside", "source"}
    assert flat["source"] == f"{about}: wait_inside"
    assert steep["inside"] == pytest.approx(0.5 * 2**10 / 1e9)
    assert run(1.0, 1.5, 40.0).keys() == {"inside", "wait_inside", "source"}


def test_other_operations_and_runs_without_lines_tell_nothing() -> None:
    assert measured_links(EMPTY) == {}
    others = [replace(one, case=replace(one.case, op="broadcast")) for one in REPORT.found]
    assert measured_links(replace(REPORT, found=tuple(others))) == {}
    assert set(RING) == set(PASSES)
