"""Search: everything that fits, found again by loops over one choice at a time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import BatchPlan, factor_world
from meshkit.core.cost.machines import MACHINES
from meshkit.core.cost.memory import SHARDS, ParallelConfig, bytes_per_rank
from meshkit.core.cost.search import search, world_factorizations
from meshkit.core.cost.step_time import AXES, TrainingJob, group_locality, step_terms
from meshkit.core.cost.transformer import ModelShape

TOO_LARGE = "no configuration fits into"

law = settings(deadline=None, max_examples=25, database=None)

H100 = MACHINES["h100"]
LLAMA_8B = ModelShape(4096, layers=32, heads=32, vocab=128256, ffn=14336, kv_heads=8)
LLAMA_405B = ModelShape(16384, layers=126, heads=128, vocab=128256, ffn=53248, kv_heads=8)
MIXTRAL = ModelShape(4096, 32, 32, 32000, 14336, 8, experts=8, top_k=2)


# ---------------------------------------------------------------- world_factorizations


def products(world: int, factors: int) -> list[tuple[int, ...]]:
    """All tuples of so many factors with that product."""
    if factors == 1:
        return [(world,)]
    firsts = [n for n in range(1, world + 1) if world % n == 0]
    return [(n, *rest) for n in firsts for rest in products(world // n, factors - 1)]


@law
@given(st.integers(1, 120), st.booleans())
def test_factorizations_are_all_products_once(world: int, experts: bool) -> None:
    ep = AXES.index("ep")
    every = [way for way in products(world, 6) if experts or way[ep] == 1]
    found = [
        tuple(int(size) for size in way) for way in world_factorizations(world, experts=experts).T
    ]
    assert len(found) == len(every)
    assert {*found} == {*every}


# ---------------------------------------------------------------- found again, one at a time

SMALL = ModelShape(64, layers=4, heads=8, vocab=100, ffn=96, kv_heads=4)
EXPERTS = ModelShape(64, 6, 8, 100, 96, 4, experts=4, top_k=2, expert_ffn=42, dense_layers=2)
ODD = ModelShape(64, layers=4, heads=8, vocab=100, ffn=90, kv_heads=4)


def layers_of(model: ModelShape, pp: int) -> int:
    if model.layers % pp == 0:
        return model.layers // pp
    return (model.layers + 2) // pp if (model.layers + 2) % pp == 0 else 0


def reason_against(model: ModelShape, job: TrainingJob, config: ParallelConfig) -> str | None:
    """The word with which the reason begins, or None."""
    if not layers_of(model, config.pp):
        return "pp divides"
    if model.kv_heads % config.tp:
        return f"tp does not divide {model.kv_heads} kv"
    if model.ffn % config.tp:
        return "tp does not divide ffn"
    if model.experts and model.expert_ffn % config.tp:
        return "tp does not divide expert"
    if model.kv_heads % (config.tp * config.sp):
        return f"tp x sp does not divide {model.kv_heads} kv"
    if model.experts % config.ep:
        return "ep does"
    if job.seq % (config.tp * config.sp * (2 * config.cp if config.cp > 1 else 1)):
        factor = " x 2 cp" if config.cp > 1 else ""
        return f"tp x sp{factor} does not divide {job.seq} tokens"
    return "dp x ep does" if job.global_batch % (config.dp * config.ep) else None


def ways(model: ModelShape, job: TrainingJob, config: ParallelConfig) -> Iterator[ParallelConfig]:
    samples = job.global_batch // (config.dp * config.ep)
    longest = layers_of(model, config.pp)
    for v, micro, shard, again in itertools.product(
        range(1, longest + 1), (1, 2, 4, 8, 16), range(3), range(2)
    ):
        interleaved = config.pp > 1 and samples // micro % config.pp == 0
        copies = config.dp * config.ep * config.cp * config.sp
        if samples % micro or longest % v or (v > 1 and not interleaved):
            continue
        if shard == 0 or copies > 1:
            yield config._replace(virtual=v, micro_batch=micro, shard=shard, recompute=again)


@pytest.mark.parametrize(
    ("model", "world", "nodes", "batch", "seq", "memory"),
    [
        (SMALL, 12, 3, 24, 96, 0.0005),
        (ODD, 16, 2, 16, 64, 0.0004),
        (EXPERTS, 16, 4, 8, 32, 0.0005),
    ],
)
def test_search_again_by_loops(
    model: ModelShape, world: int, nodes: int, batch: int, seq: int, memory: float
) -> None:
    job = TrainingJob(world, nodes, batch, seq, replace(H100, memory=memory))
    best: dict[tuple[int, ...], tuple[float, float]] = {}
    least: dict[tuple[int, ...], float] = {}
    out: Counter[str] = Counter()
    for sizes in world_factorizations(world, experts=model.experts > 0).T:
        config = ParallelConfig(*(int(size) for size in sizes))
        reason = reason_against(model, job, config)
        if reason is None:
            for way in ways(model, job, config):
                memory_gb = float(sum(bytes_per_rank(model, way, batch, seq).values())) / 1e9
                least[config[:6]] = min(least.get(config[:6], memory_gb), memory_gb)
                if memory_gb <= memory:
                    step = float(np.float32(sum(step_terms(model, job, way).values())))
                    best[config[:6]] = min(
                        best.get(config[:6], (step, memory_gb)), (step, memory_gb)
                    )
            reason = None if config[:6] in best else TOO_LARGE
        if reason:
            out[reason] += 1
    found = search(model, job, top=10**6)
    assert out[TOO_LARGE] > 0, "the case is to exclude some for memory"
    assert {
        e.reason[: len(r)]: e.count for e in found.excluded for r in out if e.reason.startswith(r)
    }
    for excluded in found.excluded:
        mine = [reason for reason in out if f"{excluded.reason} ".startswith(reason + " ")]
        assert [out[reason] for reason in mine] == [excluded.count]
    assert sum(e.count for e in found.excluded) == sum(out.values())
    nearest = tuple(found.excluded[-1].example.get(axis, 1) for axis in AXES)
    needed = {way: memory_gb for way, memory_gb in least.items() if way not in best}
    assert least[nearest] == min(needed.values())
    assert found.excluded[-1].reason.endswith(f"; the smallest needs {least[nearest]:.4g} GB")
    assert found.fits == len(best) == len(found.best)
    steps = [np.float32(one.step) for one in found.best]
    assert steps == sorted(steps)
    for one in found.best:
        way = tuple(one.sizes.get(axis, 1) for axis in AXES)
        assert (one.step, one.memory_gb) == pytest.approx(best[way])


def test_each_example_is_excluded_for_its_reason() -> None:
    job = TrainingJob(96, 12, 24, 96, replace(H100, memory=0.0003))
    found = search(SMALL, job)
    assert len(found.excluded) == 6
    *divide, _ = found.excluded  # the last is for memory
    for one in divide:
        config = ParallelConfig(*(one.example.get(axis, 1) for axis in AXES))
        reason = reason_against(SMALL, job, config)
        assert reason is not None
        assert one.reason.startswith(reason)


def test_a_layout_that_is_told_of_is_what_was_counted() -> None:
    job = TrainingJob(64, 8, 1024, 8192, H100)
    for one in search(MIXTRAL, job, top=40).best:
        sizes = {axis: one.sizes.get(axis, 1) for axis in AXES}
        config = ParallelConfig(
            **sizes,
            virtual=one.virtual,
            micro_batch=one.micro_batch,
            shard=SHARDS.index(one.shard),
            recompute=int(one.recompute),
        )
        terms = {name: float(value) for name, value in step_terms(MIXTRAL, job, config).items()}
        assert one.terms == pytest.approx(terms)
        assert one.step == pytest.approx(sum(terms.values()))
        memory_gb = float(sum(bytes_per_rank(MIXTRAL, config, 1024, 8192).values())) / 1e9
        assert one.memory_gb == pytest.approx(memory_gb)
        assert one.memory_gb <= 80
        assert one.crossing == tuple(
            a for a in AXES if group_locality(job, config, a)[1] < group_locality(job, config, a)[0]
        )
        assert factor_world(64, **one.sizes).num_ranks == 64
        plan = BatchPlan.solve(
            dp=config.dp * config.ep, global_batch=1024, micro_batch=one.micro_batch, uneven=False
        )
        assert plan.accumulation_steps == one.accumulation_steps


# ---------------------------------------------------------------- what a person would check


def test_llama_8b_on_eight_nodes_keeps_tp_inside_a_node() -> None:
    found = search(LLAMA_8B, TrainingJob(64, 8, 1024, 8192, H100))
    assert found.best[0].sizes == {"dp": 64}
    assert found.best[0].shard == "fsdp"
    assert all("tp" not in one.crossing for one in found.best)


@pytest.mark.parametrize(
    ("ranks", "batch", "seq", "sizes"),
    [
        (8192, 2048, 8192, {"pp": 16, "dp": 64, "tp": 8}),
        (16384, 2048, 8192, {"pp": 16, "dp": 128, "tp": 8}),
        (16384, 128, 131072, {"pp": 16, "dp": 8, "cp": 16, "tp": 8}),
    ],
)
def test_llama_405b_as_it_was_run_is_the_best(
    ranks: int, batch: int, seq: int, sizes: dict[str, int]
) -> None:
    """Its three layouts, arXiv 2407.21783, table 4."""
    best = search(LLAMA_405B, TrainingJob(ranks, ranks // 8, batch, seq, H100)).best[0]
    assert best.sizes == sizes
    assert "tp" not in best.crossing


def test_tp_across_nodes_costs_what_the_wires_are_slower() -> None:
    """A ring of 8 leaves a node of 4 twice, by wires of 4 ranks: 1/4 of its bytes at 50 GB/s."""
    terms = [
        next(
            one.terms["tp"]
            for one in search(LLAMA_8B, TrainingJob(64, nodes, 64, 8192, quick), top=1000).best
            if one.sizes == {"dp": 8, "tp": 8}
        )
        for nodes in (8, 16)
        for quick in [replace(H100, latency_intra_node=1e-12, latency_inter_node=1e-12)]
    ]
    assert terms[1] / terms[0] == pytest.approx((1 / 4 / 50) / (1 / 450))


@law
@given(st.sampled_from([8, 12, 16, 24]), st.floats(0.05, 1))
def test_less_memory_never_helps(world: int, share: float) -> None:
    wide = search(LLAMA_8B, TrainingJob(world, 1, 48, 4096, H100), top=10**6)
    less = replace(H100, memory=80 * share)
    tight = search(LLAMA_8B, TrainingJob(world, 1, 48, 4096, less), top=10**6)
    assert tight.fits <= wide.fits
    steps = {tuple(one.sizes.items()): one.step for one in wide.best}
    for one in tight.best:
        assert one.memory_gb <= 80 * share
        assert one.step >= steps[tuple(one.sizes.items())]
