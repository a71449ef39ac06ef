"""The time of a step, counted again by loops over layers, passes and calls; figures of machines."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.call import divisors
from meshkit.plan.memory import ModelShape, ParallelConfig
from meshkit.plan.step_time import (
    AXES,
    MACHINES,
    TrainingJob,
    group_locality,
    step_terms,
    traffic_of,
)

law = settings(deadline=None, max_examples=60, database=None)

H100 = MACHINES["h100"]
DENSE = ModelShape(64, layers=12, heads=8, vocab=100, ffn=96, kv_heads=4)
SPARSE = ModelShape(
    64, 12, 8, 100, 96, 4, experts=8, top_k=2, expert_ffn=32, shared_experts=1, dense_layers=3
)

sizes = st.sampled_from([1, 2, 3, 4])
choices = st.builds(
    ParallelConfig,
    pp=sizes,
    dp=sizes,
    ep=sizes,
    cp=sizes,
    sp=sizes,
    tp=sizes,
    virtual=st.sampled_from([1, 3]),
    micro_batch=st.sampled_from([1, 2]),
    shard=st.integers(0, 2),
    recompute=st.integers(0, 1),  # cheap, which takes no time, or full
)


def world(config: ParallelConfig) -> int:
    return int(np.prod(config[:6]))


@st.composite
def jobs(draw: st.DrawFn) -> tuple[TrainingJob, ParallelConfig]:
    config = draw(choices)
    ranks = world(config)
    assume(ranks <= 256)
    node = draw(st.sampled_from(divisors(ranks)))
    racks = draw(st.sampled_from(divisors(ranks // node)))
    inter_node = draw(st.sampled_from([H100.bandwidth_inter_node, 0.01, 100.0]))
    inter_rack = draw(st.sampled_from([None, 1.0, 400.0]))
    machine = replace(H100, bandwidth_inter_node=inter_node, bandwidth_inter_rack=inter_rack)
    return TrainingJob(ranks, ranks // node, 96, 144, machine, racks), config


# ---------------------------------------------------------------- what leaves a node


def groups(config: ParallelConfig, *axes: str) -> list[list[int]]:
    layout = Layout(**dict(zip(AXES, config[:6], strict=True)))
    return [[int(rank) for rank in group] for group in layout.groups(*axes)]


POWERS = [(stride, size, node) for stride, size, node in itertools.product((1, 2, 4, 8), repeat=3)]


def crossing(pairs: Iterable[tuple[int, int]], node: int) -> float:
    """The share of the pairs that lie on two nodes."""
    found = [a // node != b // node for a, b in pairs]
    return sum(found) / len(found)


@pytest.mark.parametrize(("stride", "size", "node"), POWERS)
def test_the_share_that_crosses_is_that_of_the_hops(stride: int, size: int, node: int) -> None:
    if size == 1:
        return
    config = ParallelConfig(1, 8, 1, 1, size, stride)  # sp, over blocks of tp
    job = TrainingJob(8 * size * stride, 8 * size * stride // node, 8, 8, H100)
    one = np.float64(1.0)
    ring = traffic_of(job, group_locality(job, config, "sp"), one, one)
    each = traffic_of(job, group_locality(job, config, "sp"), one, one, ring=False)
    members = groups(config, "sp")
    hops = [pair for group in members for pair in zip(group, group[1:] + group[:1], strict=True)]
    pairs = [pair for group in members for pair in itertools.permutations(group, 2)]
    assert float(ring.inter_node) == pytest.approx(crossing(hops, node))
    assert float(each.inter_node) == pytest.approx(crossing(pairs, node))
    assert float(ring.intra_node + ring.inter_node) == pytest.approx(1)
    waits = {True: H100.latency_inter_node, False: H100.latency_intra_node}
    assert float(ring.latency) == waits[crossing(pairs, node) > 0]


# ---------------------------------------------------------------- a step, call by call


class Ledger:
    """Collectives of one rank, one by one, written down as bytes and waits."""

    def __init__(self, job: TrainingJob, config: ParallelConfig) -> None:
        self.job, self.config = job, config
        self.intra_node = self.inter_node = self.inter_rack = self.latency = 0.0

    def call(self, axes: Sequence[str], amount: float, steps: float, *, ring: bool = True) -> None:
        """One collective in which a rank sends ``amount`` in ``steps`` to others of its group."""
        size, *together = (int(n) for n in group_locality(self.job, self.config, *axes))
        ranks_per_node = together[0]
        node, rack = (
            (1 / n if ring else (size - n) / (size - 1)) if n < size else 0.0 for n in together
        )
        self.inter_rack += amount * rack
        self.inter_node += amount * node
        self.intra_node += amount * (1 - node)
        machine = self.job.machine
        self.latency += steps * (
            machine.latency_inter_node if ranks_per_node < size else machine.latency_intra_node
        )

    def take(self) -> float:
        return carried(self.job, self.intra_node, self.inter_node, self.inter_rack) + self.latency


def carried(job: TrainingJob, inside: float, across: float, racks: float) -> float:
    """Seconds that the busiest link needs for so many bytes."""
    machine = job.machine
    out_of_rack = racks / (machine.bandwidth_inter_rack or machine.bandwidth_inter_node)
    out_of_node = across / machine.bandwidth_inter_node
    return max(inside / machine.bandwidth_intra_node, out_of_node, out_of_rack) / 1e9


def call_ends_and_norms(
    ledger: Ledger, model: ModelShape, config: ParallelConfig, tokens: float
) -> None:
    """The calls over tp of the first stage outside its layers, and of the gradients of norms."""
    # the first stage has the embedding, the last one the head and a norm; alone it has all
    ends = ["embedding", "head"] if config.pp == 1 else ["embedding"]
    whole = 2 * tokens * model.hidden
    for _ in itertools.product(ends, ("forward", "backward")):
        ledger.call(["tp"], whole * (config.tp - 1) / config.tp, config.tp - 1)
    norms = ["attention", "feed-forward"] * (model.layers // config.pp)
    norms += ["head"] * (config.pp == 1)
    for _ in norms if config.shard == 2 else ():
        for _ in ("reduce-scatter", "all-gather"):
            part = 2 * model.hidden / config.tp
            ledger.call(["tp"], part * (config.tp - 1), config.tp - 1)


def step(model: ModelShape, job: TrainingJob, config: ParallelConfig) -> dict[str, float]:
    """The terms of a step, from loops over layers, passes and calls."""
    tokens = config.micro_batch * job.seq / (config.cp * config.sp)
    layers, dim = model.layers // config.pp, model.head_dim
    heads_of_kv = max(model.kv_heads, config.tp * config.sp)  # some are copied
    copied = max(config.tp - model.kv_heads, 0) * 2 * dim * model.hidden  # weights of a layer
    micros = job.global_batch // (config.dp * config.ep * config.micro_batch)
    passes = ["forward", "backward"] + ["forward"] * config.recompute
    ledgers = {axis: Ledger(job, config) for axis in ("tp", "sp", "cp", "ep", "pp", "dp")}
    sparse = 1 - model.dense_layers / model.layers
    for _, which in itertools.product(range(layers), passes):
        for _ in range(4):  # gathered before, scattered after: attention, feed-forward
            whole = 2 * tokens * model.hidden
            ledgers["tp"].call(["tp"], whole * (config.tp - 1) / config.tp, config.tp - 1)
        for heads in (model.heads, heads_of_kv, heads_of_kv, model.heads):
            mine = 2 * tokens * heads * dim / config.tp
            ledgers["sp"].call(
                ["sp"], mine * (config.sp - 1) / config.sp, config.sp - 1, ring=False
            )
        rounds = 2 if which == "backward" else 1  # backward, their gradients go around too
        for _ in range(rounds * (config.cp - 1)):
            ledgers["cp"].call(["cp"], 2 * tokens * 2 * heads_of_kv * dim / config.tp, 1)
        for _ in ("dispatch", "combine"):  # call counts both in proportion
            routed = 2 * tokens * model.hidden * model.top_k / config.tp * (1 - 1 / config.ep)
            ledgers["ep"].call(["ep"], sparse * routed, sparse * (config.ep - 1), ring=False)
    call_ends_and_norms(ledgers["tp"], model, config, tokens)
    for _ in range(2 * config.virtual if config.pp > 1 else 0):
        ledgers["pp"].call(["pp"], 2 * tokens * model.hidden / config.tp, 1)
    tables = 2 if config.pp == 1 else 1
    shared = layers * (model.shared / model.layers + copied) + tables * model.embedding
    shared /= config.tp
    routed = layers * model.routed / model.layers / config.ep / config.tp
    calls = {0: [4, 4], 1: [4, 2], 2: [2, 2, 4]}[
        config.shard
    ]  # bytes a weight, gathered or reduced
    for _, amount in itertools.product(range(micros if config.shard == 2 else 1), calls):
        for weights, axes in ((shared, ["dp", "ep", "cp", "sp"]), (routed, ["dp", "cp", "sp"])):
            n = int(group_locality(job, config, *axes)[0])
            for _ in range(layers if weights else 0):
                ledgers["dp"].call(axes, amount * weights / layers * (n - 1) / n, n - 1)
    scores = job.seq * model.heads * dim
    forward = 2 * (model.active_parameters / model.layers + copied + scores)
    head = 2 * 3 * model.embedding
    done = (layers * forward * (3 + config.recompute) + head) * tokens / config.tp
    one = {name: ledger.take() for name, ledger in ledgers.items() if name != "dp"}
    one |= {
        "compute": done / H100.flops,
        "weights": 12 * (shared + routed) / H100.memory_bandwidth / 1e9,
    }
    busy = sum(one.values())
    gap = ledgers["dp"].take() - busy * (micros if config.shard == 2 else 1)
    terms = {name: micros * value for name, value in one.items()}
    terms |= {"bubble": (config.pp - 1) / config.virtual * busy, "dp": max(gap, 0)}
    path = [ledger for name, ledger in ledgers.items() if name != "dp"]
    inside, across, racks = (
        micros * sum(getattr(ledger, link) for ledger in path) + getattr(ledgers["dp"], link)
        for link in ("intra_node", "inter_node", "inter_rack")
    )
    least = carried(job, inside, across, racks)
    return {**terms, "links": max(least - micros * busy - terms["dp"], 0)}


@law
@given(jobs(), st.sampled_from([DENSE, SPARSE]))
def test_the_terms_again_call_by_call(
    case: tuple[TrainingJob, ParallelConfig], model: ModelShape
) -> None:
    job, config = case
    if not model.experts:
        config = config._replace(ep=1, dp=config.dp * config.ep)
    assume(job.global_batch % (config.dp * config.ep * config.micro_batch) == 0)
    assume(model.layers % config.pp == 0)
    found = {name: float(value) for name, value in step_terms(model, job, config).items()}
    assert found == pytest.approx(step(model, job, config), rel=1e-9, abs=1e-15)


# ---------------------------------------------------------------- beside published runs

LLAMA = ModelShape(16384, layers=126, heads=128, vocab=128256, ffn=53248, kv_heads=8)


@pytest.mark.parametrize(
    ("ranks", "dp", "cp", "batch", "seq", "published"),
    [
        (8192, 64, 1, 2048, 8192, 430),
        (16384, 128, 1, 2048, 8192, 400),
        (16384, 8, 16, 128, 131072, 380),
    ],
)
def test_llama_405b_within_a_tenth_of_what_was_reported(
    ranks: int, dp: int, cp: int, batch: int, seq: int, published: float
) -> None:
    """TFLOP/s of a GPU, arXiv 2407.21783, table 4."""
    config = ParallelConfig(16, dp, 1, cp, 1, 8, virtual=8, shard=1)
    time = float(
        sum(step_terms(LLAMA, TrainingJob(ranks, ranks // 8, batch, seq, H100), config).values())
    )
    token = 6 * (LLAMA.active_parameters + LLAMA.embedding + seq * LLAMA.hidden * LLAMA.layers)
    assert token * batch * seq / ranks / time / 1e12 == pytest.approx(published, rel=0.1)


def test_measured_figures_replace_those_of_the_data_sheet() -> None:
    machine = MACHINES["h100"].with_measured({"bandwidth_intra_node": 370, "source": "a run"})
    expected = {**asdict(MACHINES["h100"]), "bandwidth_intra_node": 370, "source": "a run"}
    assert asdict(machine) == expected
