"""Figures of links out of measured lines: what the model of the search takes, it gives back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, factor_world
from meshkit.bench.results.link_speed import INSIDE, RING, link_speeds, locality
from meshkit.bench.results.measurement import Case, Measurement
from meshkit.bench.results.run import BenchmarkRun
from meshkit.bench.results.targets import ALONE, CONCURRENT, parse_targets
from meshkit.core.cost.machines import MACHINES, Machine
from meshkit.core.cost.memory import ParallelConfig
from meshkit.core.cost.step_time import AXES, TrainingJob, group_locality, traffic_of, transfer_time
from tests.bench.results.example_runs import EMPTY, REPORT

quick = settings(deadline=None, max_examples=40, database=None)
PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
SIZES = (2**10, 2**16, 2**22)


def modelled(
    links: Machine, dp: int, tp: int, node: int, names: list[str], slow: float
) -> BenchmarkRun:
    """A run whose times are those of the search's own model; alone they are told much slower."""
    layout = Layout(dp=dp, tp=tp)
    job = TrainingJob(dp * tp, dp * tp // node, 8, 8, links)
    rows = []
    for target in parse_targets(layout, names):
        axes = target.span
        ranks = layout.size(*axes)
        for op, passes in PASSES.items():
            for size in SIZES:
                amount, steps = passes * (ranks - 1) / ranks * size, passes * (ranks - 1)
                among = group_locality(job, ParallelConfig(1, dp, 1, 1, 1, tp), *axes)
                took = float(
                    transfer_time(
                        links, traffic_of(job, among, np.float64(amount), np.float64(steps))
                    )
                )
                for mode, factor in ((ALONE, slow), (CONCURRENT, 1.0)):
                    seconds_of_call = took * factor
                    rows.append(
                        Measurement(Case(op, target, size), mode, (ranks,), median=seconds_of_call)
                    )
    hosts = {rank: f"n{rank // node}" for rank in range(dp * tp)}
    return replace(REPORT, sizes=layout.sizes, hosts=hosts, measurements=tuple(rows))


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
    links = replace(
        MACHINES["h100"],
        bandwidth_intra_node=inside,
        bandwidth_inter_node=across,
        latency_intra_node=wait,
        latency_inter_node=far,
    )
    found = link_speeds(modelled(links, *grid, ["dp", "tp"], 3.0))
    figures = (inside, across, wait, far)
    names = (
        "bandwidth_intra_node",
        "bandwidth_inter_node",
        "latency_intra_node",
        "latency_inter_node",
    )
    assert [found[name] for name in names] == pytest.approx(figures, rel=1e-3)


def test_ranks_that_share_a_node_share_what_leaves_it() -> None:
    # the world alone: four of eight ranks on a node, so a quarter of each one's bytes leaves
    links = replace(MACHINES["h100"], bandwidth_intra_node=1000, bandwidth_inter_node=10)
    report = modelled(links, 4, 4, 8, ["dp tp"], 1.0)
    assert link_speeds(report)["bandwidth_inter_node"] == pytest.approx(10, rel=1e-3)
    # with groups of one rank a node beside it, those count: the wires inside are slow here
    slow = replace(MACHINES["h100"], bandwidth_intra_node=1, bandwidth_inter_node=10)
    both = link_speeds(modelled(slow, 2, 8, 8, ["dp", "dp tp"], 1.0))
    assert both["bandwidth_inter_node"] == pytest.approx(10, rel=1e-3)
    only = link_speeds(modelled(slow, 2, 8, 8, ["dp tp"], 1.0))
    assert only["bandwidth_inter_node"] == pytest.approx(
        1 / 7, rel=1e-3
    )  # 7/8 of the bytes inside at 1 GB/s


def test_alone_counts_where_there_is_no_other_way() -> None:
    report = modelled(MACHINES["h100"], 4, 2, 2, ["tp"], 2.0)
    lone = replace(
        report, measurements=tuple(row for row in report.measurements if row.mode == ALONE)
    )
    assert link_speeds(report)["bandwidth_intra_node"] == pytest.approx(450, rel=1e-3)
    assert link_speeds(lone)["bandwidth_intra_node"] == pytest.approx(225, rel=1e-3)


def test_what_a_line_does_not_tell_is_left_out() -> None:
    def run(*took: float) -> dict[str, object]:
        (tp,) = parse_targets(Layout(dp=2, sp=2), ["sp"])
        rows = [
            Measurement(Case("all_gather", tp, size), ALONE, (2,), median=t)
            for size, t in zip(SIZES, took, strict=True)
        ]
        return dict(link_speeds(replace(REPORT, measurements=tuple(rows))))

    flat, steep = run(3.0, 2.0, 1.0), run(1.0, 2.0**6, 2.0**12)
    about = "meshkit bench dp=2 sp=2, gloo on cpu, torch 2.13.0"
    assert flat.keys() == {"latency_intra_node", "source"}
    assert flat["source"] == f"{about}: latency_intra_node"
    assert steep["bandwidth_intra_node"] == pytest.approx(0.5 * 2**10 / 1e9)
    assert run(1.0, 1.5, 40.0).keys() == {"bandwidth_intra_node", "latency_intra_node", "source"}


def test_other_operations_and_runs_without_lines_tell_nothing() -> None:
    assert link_speeds(EMPTY) == {}
    others = [replace(row, case=replace(row.case, op="broadcast")) for row in REPORT.measurements]
    assert link_speeds(replace(REPORT, measurements=tuple(others))) == {}
    assert set(RING) == set(PASSES)


@quick
@given(
    st.sampled_from([1, 2, 4, 8, 16]), st.lists(st.sampled_from([1, 2, 4]), min_size=6, max_size=6)
)
def test_on_equal_nodes_it_is_what_the_search_counts_with(node: int, sizes: list[int]) -> None:
    choice = ParallelConfig(*sizes)
    world = 1
    for size in sizes:
        world *= size
    if world % node or world > 512:
        return
    layout = factor_world(world, **dict(zip(AXES, sizes, strict=True)))
    hosts = {rank: f"n{rank // node}" for rank in range(world)}
    job = TrainingJob(world, world // node, 8, 8, MACHINES["h100"])
    for axis, size in zip(AXES, sizes, strict=True):
        found, (ranks, close) = locality(layout, hosts, axis), group_locality(job, choice, axis)
        assert size == ranks
        assert (found.level == INSIDE) == (close == ranks)
        assert found.ranks_per_link == close
