"""Search: everything that fits, counted again by loops over one choice at a time; its text."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.layout.topology import Topology
from meshkit.plan.layout_cost import CostTable
from meshkit.plan.memory import ModelShape, ParallelConfig, bytes_per_rank
from meshkit.plan.search import fastest_cost, format_search, search, world_factorizations
from meshkit.plan.step_time import AXES, MACHINES, TrainingJob, step_terms

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
SIXES = ModelShape(96, layers=4, heads=24, vocab=100, ffn=96, kv_heads=4)  # 6 are no copies


def layers_of(model: ModelShape, pp: int) -> int:
    if model.layers % pp == 0:
        return model.layers // pp
    return (model.layers + 2) // pp if (model.layers + 2) % pp == 0 else 0


def reason_against(model: ModelShape, job: TrainingJob, config: ParallelConfig) -> str | None:
    """The word with which the reason begins, or None."""
    if not layers_of(model, config.pp):
        return "pp divides"
    if (reason := reason_of_widths(model, config)) is not None:
        return reason
    if model.experts % config.ep:
        return "ep does"
    if job.global_batch % (config.dp * config.ep):
        return "dp x ep does"
    if job.seq % (config.tp * config.sp * (2 * config.cp if config.cp > 1 else 1)):
        factor = " x 2 cp" if config.cp > 1 else ""
        return f"tp x sp{factor} does not divide {job.seq} tokens"
    return None


def reason_of_widths(model: ModelShape, config: ParallelConfig) -> str | None:
    if model.heads % config.tp:
        return f"tp does not divide {model.heads} heads"
    if model.ffn % config.tp:
        return "tp does not divide ffn"
    if model.experts and model.expert_ffn % config.tp:
        return "tp does not divide expert"
    if model.heads % (config.tp * config.sp):
        return f"tp x sp does not divide {model.heads} heads"
    for axes, parts in (("tp", config.tp), ("tp x sp", config.tp * config.sp)):
        if max(model.kv_heads, parts) % min(model.kv_heads, parts):
            return f"{axes} and {model.kv_heads} kv"
    return None


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
        (SIXES, 24, 3, 24, 96, 0.0005),
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
    for excluded in found.excluded:
        mine = [reason for reason in out if f"{excluded.reason} ".startswith(reason + " ")]
        assert [out[reason] for reason in mine] == [excluded.count]
    assert sum(e.count for e in found.excluded) == sum(out.values())
    nearest = tuple(found.excluded[-1].example.get(axis, 1) for axis in AXES)
    needed = {way: memory_gb for way, memory_gb in least.items() if way not in best}
    assert least[nearest] == min(needed.values())
    assert found.excluded[-1].reason.endswith(f"; the smallest needs {least[nearest]:.4g} GB")
    assert found.fits == len(best)
    kinds = [frozenset(axis for axis, size in one.sizes.items() if size > 1) for one in found.best]
    fastest: dict[frozenset[str], float] = {}
    for sizes, (step, _) in best.items():
        kind = frozenset(axis for axis, size in zip(AXES, sizes, strict=True) if size > 1)
        fastest[kind] = min(step, fastest.get(kind, step))
    assert len(kinds) == len(fastest)
    assert dict(zip(kinds, (one.step for one in found.best), strict=True)) == pytest.approx(fastest)
    steps = [np.float32(one.step) for one in found.best]
    assert steps == sorted(steps)
    for one in found.best:
        way = tuple(one.sizes.get(axis, 1) for axis in AXES)
        assert (one.step, one.memory_gb) == pytest.approx(best[way])


# ---------------------------------------------------------------- what a person would check


def test_llama_8b_on_eight_nodes_keeps_tp_inside_a_node() -> None:
    found = search(LLAMA_8B, TrainingJob(64, 8, 1024, 8192, H100))
    assert found.best[0].sizes == {"dp": 64}
    assert found.best[0].shard == "fsdp"
    assert all(one.sent["across nodes"]["tp"] == 0 for one in found.best)


@pytest.mark.parametrize(
    ("ranks", "batch", "seq", "sizes"),
    [
        (8192, 2048, 8192, {"pp": 16, "dp": 64, "tp": 8}),
        (16384, 2048, 8192, {"pp": 16, "dp": 128, "tp": 8}),
        (16384, 128, 131072, {"pp": 16, "dp": 8, "cp": 16, "tp": 8}),
    ],
)
def test_llama_405b_as_it_was_run_is_the_best_or_near_it(
    ranks: int, batch: int, seq: int, sizes: dict[str, int]
) -> None:
    """Its three layouts, arXiv 2407.21783, table 4; with long samples tp=16 is predicted faster."""
    job = TrainingJob(ranks, ranks // 8, batch, seq, H100)
    best = search(LLAMA_405B, job).best[0]
    topology = Topology.even(ranks, nodes=job.nodes)
    as_run = fastest_cost(LLAMA_405B, job, Layout(sizes), topology)
    assert as_run.step < 1.06 * best.step
    assert seq > 8192 or as_run.sizes == best.sizes


TABLE = """\
llama3-405b: 405.85 billion weights, bf16; 16384 ranks on 2048 nodes.
A step: 2048 samples of 8192 tokens.
A rank (h100): 80 GB, 544 of 989 TFLOP/s attained, 450 GB/s in a node, 50 GB/s
  out of it.

   layout          step s  tokens/s  MFU %    GB  sharding         micro batches
─  ──────────────  ──────  ────────  ─────  ────  ───────────────  ─────────────
1  pp=16 dp=128      6.51   2578708   40.2  67.1  zero1 virtual=8  16 of 1
     tp=8
2  pp=16 dp=64       6.55   2563090   39.9  67.1  zero1 virtual=8  16 of 2
     cp=2 tp=8

GB of a rank, which has 80
   weights  gradients  optimizer  activations   all
─  ───────  ─────────  ─────────  ───────────  ────
1      6.9       13.8      0.323         46.1  67.1
2      6.9       13.8      0.323         46.1  67.1

seconds of a step
   compute  weights     tp      cp     pp  bubble      dp   all
─  ───────  ───────  ─────  ──────  ─────  ──────  ──────  ────
1      4.8    0.198  0.576       0  0.175   0.674  0.0797  6.51
2      4.8    0.198  0.576  0.0376  0.175   0.678  0.0774  6.55

16 of 1: a rank runs 16 micro batches of 1 sample in a step.
Backward computes norms and activation functions again.
A model of compute, memory and links gives these figures; it promises no
  seconds.
Each row is the fastest of all layouts with its axes.

Next, its nodes, groups and traffic, and programs that train with its axes:
  meshkit plan 'pp=16 dp=128 tp=8' --seq 8192
  docs/how-to/pipeline.md docs/how-to/fsdp.md

1845 of 3060 layouts fit.
    210 out: pp divides neither 126 layers nor 128: pp=256 dp=1 tp=64
    210 out: tp does not divide 128 heads: dp=1 tp=16384
    672 out: tp x sp does not divide 128 heads: dp=1 sp=128 tp=128
     15 out: dp x ep does not divide 2048 samples: dp=4096 tp=4
    108 out: tp x sp x 2 cp does not divide 8192 tokens: dp=1 cp=128 tp=128"""


def text(ranks: int, nodes: int) -> str:
    job = TrainingJob(ranks, nodes, 2048, 8192, MACHINES["h100"])
    result = search(LLAMA_405B, job, top=2)
    table = CostTable("llama3-405b", LLAMA_405B, job, "h100", result.best)
    return format_search(result, table, "--seq 8192")


def test_the_table_of_the_largest_job() -> None:
    assert text(16384, 2048) == TABLE
    lines = [line for line in TABLE.splitlines() if not line.startswith("  meshkit plan")]
    assert max(map(len, lines)) <= 80


def test_nothing_fits() -> None:
    lines = (
        "0 of 35 layouts fit.",
        "     35 out: no configuration fits into 80 GB; the smallest needs 918.3 GB: dp=1",
        "             tp=8",
    )
    assert text(8, 1).endswith("\n".join(("  out of it.", "", *lines)))
