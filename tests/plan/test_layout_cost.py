"""The figures of a layout: their sums, the place of its groups, and MFU as published."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, Topology
from meshkit.call import divisors
from meshkit.plan.layout_cost import layout_cost, measured_locality
from meshkit.plan.memory import RECOMPUTE, SHARDS, ModelShape, ParallelConfig
from meshkit.plan.search import fastest_cost, search
from meshkit.plan.step_time import AXES, MACHINES, TrainingJob, group_locality, traffic_of

law = settings(deadline=None, max_examples=60, database=None)

H100 = MACHINES["h100"]
SMALL = ModelShape(64, 12, 8, 96, 96, 8, experts=8, top_k=2, expert_ffn=32, dense_layers=4)
powers = st.sampled_from([1, 2, 4])


@st.composite
def placed_jobs(draw: st.DrawFn) -> tuple[Layout, TrainingJob, Topology]:
    sizes = {axis: draw(powers) for axis in AXES}
    layout = Layout(sizes)
    nodes = draw(st.sampled_from(divisors(layout.num_ranks)))
    racks = draw(st.sampled_from(divisors(nodes)))
    job = TrainingJob(layout.num_ranks, nodes, 64, 64, H100, racks)
    return layout, job, Topology.even(layout.num_ranks, nodes=nodes, racks=racks)


@law
@given(placed_jobs())
def test_the_groups_of_a_layout_lie_as_the_arithmetic_of_the_search_says(
    case: tuple[Layout, TrainingJob, Topology],
) -> None:
    layout, job, topology = case
    counted = measured_locality(layout, topology)
    derived = partial(group_locality, job, ParallelConfig(*layout.shape))
    for axes in (*((axis,) for axis in AXES), ("dp", "ep", "cp", "sp"), ("dp", "cp", "sp")):
        assert counted(*axes) == derived(*axes)


@law
@given(
    st.sampled_from([{"dp": 8}, {"dp": 4, "tp": 2}, {"tp": 4, "dp": 2}]),
    st.lists(st.integers(0, 2), min_size=8, max_size=8),
)
def test_the_busiest_link_counts_if_nodes_differ(sizes: dict[str, int], hosts: list[int]) -> None:
    layout, topology = Layout(sizes), Topology.of_hosts(hosts)
    for axis in sizes:
        groups = layout.groups(axis).tolist()
        # a ring leaves each of its nodes once; the links of the ranks there share those bytes
        counts = [
            Counter(int(topology.node_of(rank)) for rank in group).values() for group in groups
        ]
        busiest = max(0 if len(ranks) == 1 else 1 / min(ranks) for ranks in counts)
        job = TrainingJob(8, 1, 8, 8, H100)
        group = measured_locality(layout, topology)(axis)
        one = np.float64(1.0)
        assert float(traffic_of(job, group, one, one).inter_node) == pytest.approx(busiest)


@law
@given(placed_jobs(), st.integers(0, 2), st.integers(0, 2))
def test_figures_add_up(
    case: tuple[Layout, TrainingJob, Topology], shard: int, recompute: int
) -> None:
    layout, job, topology = case
    config = ParallelConfig(*layout.shape, shard=shard, recompute=recompute)
    cost = layout_cost(SMALL, job, config, layout.sizes, measured_locality(layout, topology))
    assert cost.memory_gb == pytest.approx(sum(cost.memory.values()))
    assert cost.step == pytest.approx(sum(cost.terms.values()))
    assert cost.tokens_per_second == pytest.approx(64 * 64 / cost.step)
    assert 0 < cost.mfu < 1
    assert (cost.shard, cost.recompute) == (SHARDS[shard], RECOMPUTE[recompute])
    for axis, across_racks in cost.sent["across racks"].items():
        across_nodes = cost.sent["across nodes"][axis]
        assert 0 <= across_racks <= across_nodes * (1 + 1e-9)


def test_a_layout_costs_what_the_search_says() -> None:
    job = TrainingJob(64, 8, 64, 64, H100, racks=2)
    topology = Topology.even(64, nodes=8, racks=2)
    best = search(SMALL, job, top=100).best
    assert len(best) > 10
    for found in best:
        cost = fastest_cost(SMALL, job, Layout(found.sizes), topology)
        assert cost.step == pytest.approx(found.step)
        for link, amounts in found.sent.items():
            assert cost.sent[link] == pytest.approx(amounts)


def test_other_names_and_orders_have_the_cost_of_their_groups() -> None:
    job, topology = TrainingJob(16, 2, 64, 64, H100), Topology.even(16, nodes=2)
    usual = fastest_cost(SMALL, job, Layout(dp=4, tp=4), topology)
    named = fastest_cost(SMALL, job, Layout(replicate=2, shard=2, model=4), topology)
    assert named == replace(usual, sizes={"replicate": 2, "shard": 2, "model": 4})
    turned = fastest_cost(SMALL, job, Layout(tp=4, dp=4), topology)
    assert turned.sent["across nodes"]["tp"] > 0 == usual.sent["across nodes"]["tp"]


def test_a_choice_counts_and_a_layout_too_large_is_shown_with_the_least_memory() -> None:
    job, topology = TrainingJob(16, 2, 64, 64, H100), Topology.even(16, nodes=2)
    options = {"micro_batch": 2, "shard": "ddp", "recompute": "none"}
    cost = fastest_cost(SMALL, job, Layout(dp=16), topology, **options)
    assert (cost.micro_batch, cost.shard, cost.recompute) == (2, "ddp", "none")
    assert cost.fits
    tiny = replace(job, machine=replace(H100, memory=1e-6))
    least = fastest_cost(SMALL, tiny, Layout(dp=16), topology)
    assert (least.fits, least.shard, least.recompute) == (False, "fsdp", "full")
    assert least.memory_gb < cost.memory_gb
