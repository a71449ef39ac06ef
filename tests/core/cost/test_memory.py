"""The memory of a rank, counted again weight by weight and tensor by tensor, and as published."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.core.cost.memory import (
    SHARDS,
    ModelShape,
    ParallelConfig,
    bytes_per_rank,
    stage_layers,
    stage_weights,
)

law = settings(deadline=None, max_examples=80, database=None)

DENSE = ModelShape(64, layers=12, heads=8, vocab=100, ffn=96, kv_heads=4)
SPARSE = ModelShape(
    64, 12, 8, 100, 96, 4, experts=8, top_k=2, expert_ffn=32, shared_experts=1, dense_layers=3
)
LLAMA = ModelShape(16384, layers=126, heads=128, vocab=128256, ffn=53248, kv_heads=8)

sizes = st.sampled_from([1, 2, 4])
configs = st.builds(
    ParallelConfig,
    pp=st.sampled_from([1, 2, 3, 6]),
    dp=sizes,
    ep=sizes,
    cp=sizes,
    sp=sizes,
    tp=sizes,
    virtual=st.sampled_from([1, 2]),
    micro_batch=sizes,
    shard=st.integers(0, 2),
    recompute=st.integers(0, 1),
)
models = st.sampled_from([DENSE, SPARSE])


# ---------------------------------------------------------------- weights, gradients, optimizer


@pytest.mark.parametrize(
    ("shard", "n", "bytes_each"),
    [(0, 8, 18), (1, 8, 6 + 12 / 8), (1, 64, 6 + 12 / 64), (2, 8, 18 / 8)],
)
def test_bytes_of_a_weight_are_those_of_megatron_and_zero(
    shard: int, n: int, bytes_each: float
) -> None:
    memory = bytes_per_rank(DENSE, ParallelConfig(1, n, 1, 1, 1, 1, shard=shard), 64, 64)
    states = sum(memory[kind] for kind in ("weights", "gradients", "optimizer"))
    ends = DENSE.parameters - DENSE.shared - 2 * DENSE.embedding  # the last norm
    assert float(states) == pytest.approx(bytes_each * (DENSE.parameters - ends))


def by_hand(model: ModelShape, config: ParallelConfig) -> tuple[Fraction, Fraction, Fraction]:
    """Bytes of weights, gradients and optimizer on one rank, layer by layer, exactly."""
    layers = model.layers // config.pp
    shared = Fraction(layers * model.shared, model.layers * config.tp)
    routed = Fraction(layers * model.routed, model.layers * config.tp * config.ep)
    tables = 2 if config.pp == 1 else 1
    shared += Fraction(tables * model.vocab * model.hidden, config.tp)
    everyone, apart = (
        config.dp * config.ep * config.cp * config.sp,
        config.dp * config.cp * config.sp,
    )
    found = []
    for bytes_each, sharded_by in ((2, "fsdp"), (4, "fsdp"), (12, "fsdp zero1")):
        if SHARDS[config.shard] in sharded_by.split():
            found.append(bytes_each * (shared / everyone + routed / apart))
        else:
            found.append(bytes_each * (shared + routed))
    return found[0], found[1], found[2]


@law
@given(models, configs)
def test_states_again_in_fractions(model: ModelShape, config: ParallelConfig) -> None:
    memory = bytes_per_rank(model, config, 64, 64)
    found = [float(memory[kind]) for kind in ("weights", "gradients", "optimizer")]
    assert found == pytest.approx([float(size) for size in by_hand(model, config)])


@law
@given(models, configs)
def test_all_ranks_together_hold_each_copy_of_each_weight(
    model: ModelShape, config: ParallelConfig
) -> None:
    shared, routed = stage_weights(model, config)
    ranks = config.pp * config.dp * config.ep * config.cp * config.sp * config.tp
    copies, apart = config.dp * config.ep * config.cp * config.sp, config.dp * config.cp * config.sp
    tables = (
        2 if config.pp == 1 else config.pp
    ) * model.embedding  # counted on every stage: an upper bound
    whole = copies * (model.shared + tables) + apart * model.routed
    assert float(ranks * (shared + routed)) == pytest.approx(whole)


def test_a_tied_embedding_is_held_once() -> None:
    tied = ModelShape(64, 12, 8, 100, 96, 4, tied=True)
    both = [
        float(stage_weights(model, ParallelConfig(1, 1, 1, 1, 1, 1))[0]) for model in (DENSE, tied)
    ]
    assert both[0] - both[1] == DENSE.embedding


# ---------------------------------------------------------------- activations


def kept(model: ModelShape, tokens: Fraction, *, sparse: bool) -> Fraction:
    """bf16 elements that a layer keeps, tensor by tensor, before tp."""
    widths = [model.ffn]
    if sparse:
        widths = [model.expert_ffn] * (model.top_k + model.shared_experts)
    tensors = {
        "input of the first norm": model.hidden,
        "input of the second norm": model.hidden,
        "q": model.heads * model.head_dim,
        "k": model.kv_heads * model.head_dim,
        "v": model.kv_heads * model.head_dim,
        "output of attention": model.heads * model.head_dim,
        "gate": sum(widths),
        "up": sum(widths),
        "copies for routed experts": model.top_k * model.hidden if sparse else 0,
    }
    return tokens * sum(tensors.values())


@law
@given(models, configs)
def test_activations_again_tensor_by_tensor(model: ModelShape, config: ParallelConfig) -> None:
    batch, seq = 1024, 64
    tokens = Fraction(config.micro_batch * seq, config.cp * config.sp * config.tp)
    sparse = model.layers - model.dense_layers
    layer = (
        2
        * (
            (model.layers - sparse) * kept(model, tokens, sparse=False)
            + sparse * kept(model, tokens, sparse=True)
        )
        / model.layers
    )
    one = 2 * tokens * model.hidden if config.recompute else layer
    micros = batch // (config.dp * config.ep * config.micro_batch)
    depth = Fraction(config.pp) + (
        Fraction(config.pp - 1, config.virtual) if config.virtual > 1 else 0
    )
    stage = model.layers // config.pp
    first = min(Fraction(micros), depth) * stage * one
    last = stage * one + 6 * tokens * model.vocab
    expected = max(first, last) + (layer if config.recompute else 0)
    if SHARDS[config.shard] == "fsdp":  # two layers of weights in bf16, gradients of one in fp32
        expected += 8 * Fraction(
            model.shared * config.ep + model.routed, config.ep * model.layers * config.tp
        )
    memory = bytes_per_rank(model, config, batch, seq)
    assert float(memory["activations"]) == pytest.approx(float(expected))


def test_a_pipeline_holds_no_more_micro_batches_than_there_are() -> None:
    few, many = (
        float(bytes_per_rank(DENSE, ParallelConfig(6, 1, 1, 1, 1, 1), batch, 64)["activations"])
        for batch in (3, 6)
    )
    assert many == pytest.approx(2 * few)


# ---------------------------------------------------------------- stages


def test_the_ends_may_count_as_a_layer_each() -> None:
    pp = np.array([1, 2, 3, 4, 8, 16, 32, 64, 128, 5])
    assert stage_layers(LLAMA, pp).tolist() == [126, 63, 42, 32, 16, 8, 4, 2, 1, 0]


@law
@given(st.integers(1, 40), st.integers(1, 42))
def test_stages_again_by_dealing_layers(layers: int, pp: int) -> None:
    model = ModelShape(8, layers=layers, heads=1, vocab=9, ffn=8)
    plain = [len(part) for part in np.array_split(np.arange(layers), pp)]
    ends = [len(part) for part in np.array_split(np.arange(layers + 2), pp)]  # embedding and head
    longest = plain[0] if len({*plain}) == 1 else ends[0] if len({*ends}) == 1 else 0
    assert int(stage_layers(model, np.int64(pp))) == longest


def test_many_choices_at_once_are_as_one_at_a_time() -> None:
    one = [ParallelConfig(1, 4, 1, 1, 1, 2), ParallelConfig(3, 1, 2, 2, 1, 1, 2, 2, 2, 1)]
    many = ParallelConfig(*np.array([list(config) for config in one]).T)
    together = bytes_per_rank(SPARSE, many, 64, 64)
    for place, config in enumerate(one):
        alone = bytes_per_rank(SPARSE, config, 64, 64)
        assert {k: float(v[place]) for k, v in together.items()} == pytest.approx(
            {k: float(v) for k, v in alone.items()}
        )


def test_llama_405b_fits_as_it_was_run_and_would_not_with_half_the_stages() -> None:
    memory = [
        float(sum(bytes_per_rank(LLAMA, choice, 2048, 8192).values())) / 1e9
        for choice in (
            ParallelConfig(16, 128, 1, 1, 1, 8, virtual=8, shard=1),
            ParallelConfig(8, 256, 1, 1, 1, 8, virtual=16, shard=1),
        )
    ]
    assert memory == pytest.approx([66.66, 85.7], abs=0.1)
