"""Weights of a model and the memory of a rank, counted again tensor by tensor, and as published."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.cli.options import MODELS
from meshkit.plan.memory import (
    PRECISIONS,
    RECOMPUTE,
    SHARDS,
    ModelShape,
    ParallelConfig,
    bytes_per_rank,
    stage_layers,
)

law = settings(deadline=None, max_examples=80, database=None)

DENSE = ModelShape(64, layers=12, heads=8, vocab=100, ffn=96, kv_heads=4)
SPARSE = ModelShape(
    64, 12, 8, 100, 96, 4, experts=8, top_k=2, expert_ffn=32, shared_experts=1, dense_layers=3
)

sizes = st.sampled_from([1, 2, 4])
configs = st.builds(
    ParallelConfig,
    pp=st.sampled_from([1, 2, 3, 6]),
    dp=sizes,
    ep=sizes,
    cp=sizes,
    sp=sizes,
    tp=st.sampled_from([1, 2, 4, 8]),  # with 8, each of the 4 kv heads is on two ranks
    virtual=st.sampled_from([1, 2]),
    micro_batch=sizes,
    shard=st.integers(0, 2),
    recompute=st.integers(0, 2),
)
dtypes = st.sampled_from([*PRECISIONS])
models = st.sampled_from([DENSE, SPARSE])


# ---------------------------------------------------------------- weights, gradients, optimizer


def shared_of_layer(model: ModelShape, tp: int) -> Fraction:
    """Weights of a rank in one layer, whose keys and values it has for one head or more."""
    head = 2 * model.head_dim * model.hidden
    others = Fraction(model.shared, model.layers) - model.kv_heads * head
    return others / tp + max(Fraction(model.kv_heads, tp), Fraction(1)) * head


def by_hand(model: ModelShape, config: ParallelConfig) -> tuple[Fraction, Fraction, Fraction]:
    """Bytes of weights, gradients and optimizer on one rank, layer by layer, exactly."""
    layers = model.layers // config.pp
    shared = layers * shared_of_layer(model, config.tp)
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


# ---------------------------------------------------------------- activations


def kept(
    model: ModelShape, tokens: Fraction, recompute: str, kv_heads: int, *, sparse: bool
) -> Fraction:
    """Elements that a layer keeps, tensor by tensor, before tp."""
    widths = [model.ffn]
    if sparse:
        widths = [model.expert_ffn] * (model.top_k + model.shared_experts)
    tensors = {
        "input of the first norm": model.hidden,
        "input of the second norm": model.hidden,
        "q": model.heads * model.head_dim,
        "k": kv_heads * model.head_dim,
        "v": kv_heads * model.head_dim,
        "output of attention": model.heads * model.head_dim,
        "gate": sum(widths),
        "up": sum(widths),
        "copies for routed experts": model.top_k * model.hidden if sparse else 0,
    }
    if recompute == "none":
        tensors |= {
            "output of the first norm": model.hidden,
            "output of the second norm": model.hidden,
            "activation of gate": sum(widths),
            "its product with up": sum(widths),
        }
    return tokens * sum(tensors.values())


@law
@given(models, configs, dtypes)
def test_activations_again_tensor_by_tensor(
    model: ModelShape, config: ParallelConfig, dtype: str
) -> None:
    batch, seq, recompute = 1024, 64, RECOMPUTE[config.recompute]
    element = 4 if dtype == "fp32" else 2
    tokens = Fraction(config.micro_batch * seq, config.cp * config.sp * config.tp)
    sparse, kv_heads = model.layers - model.dense_layers, max(model.kv_heads, config.tp * config.sp)
    layer = (
        element
        * (
            (model.layers - sparse) * kept(model, tokens, recompute, kv_heads, sparse=False)
            + sparse * kept(model, tokens, recompute, kv_heads, sparse=True)
        )
        / model.layers
    )
    one = element * tokens * model.hidden if recompute == "full" else layer
    again = element * (
        (model.layers - sparse) * kept(model, tokens, "none", kv_heads, sparse=False)
        + sparse * kept(model, tokens, "none", kv_heads, sparse=True)
    )
    feed_forward = element * tokens * Fraction(model.width).limit_denominator(1000)
    again = {"none": 0, "cheap": 2 * feed_forward, "full": again / model.layers}[recompute]
    again += 2 * feed_forward  # the gradients of gate and up
    micros = batch // (config.dp * config.ep * config.micro_batch)
    depth = Fraction(config.pp) + (
        Fraction(config.pp - 1, config.virtual) if config.virtual > 1 else 0
    )
    stage = model.layers // config.pp
    first = min(Fraction(micros), depth) * stage * one
    logits = (12 if recompute == "none" else element + 4) * tokens * model.vocab
    expected = max(first + again, stage * one + max(logits, again))
    memory = bytes_per_rank(model, config, batch, seq, dtype)
    assert float(memory["activations"]) == pytest.approx(float(expected))
    routed = Fraction(model.routed, config.ep * model.layers * config.tp)
    gathered = (2 * element + 4) * (shared_of_layer(model, config.tp) + routed)
    is_gathered = SHARDS[config.shard] == "fsdp"
    assert float(memory["buffers"]) == pytest.approx(float(gathered) if is_gathered else 0)


# ---------------------------------------------------------------- stages


@law
@given(st.integers(1, 40), st.integers(1, 42))
def test_stages_again_by_dealing_layers(layers: int, pp: int) -> None:
    model = ModelShape(8, layers=layers, heads=1, vocab=9, ffn=8)
    plain = [len(part) for part in np.array_split(np.arange(layers), pp)]
    ends = [len(part) for part in np.array_split(np.arange(layers + 2), pp)]  # embedding and head
    longest = plain[0] if len({*plain}) == 1 else ends[0] if len({*ends}) == 1 else 0
    assert int(stage_layers(model, np.int64(pp))) == longest


CONFIGS: dict[str, dict[str, Any]] = {
    **{name: json.loads(path.read_text()) for name, path in MODELS.items()},
    "gpt2": {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
}


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("deepseek-v3", 671_026_404_352),  # without the layer that predicts a further token
        ("gpt2", 124_439_808),
    ],
)
def test_models_have_their_published_counts(name: str, published: int) -> None:
    assert ModelShape.of(CONFIGS[name]).parameters == published


def test_latent_attention_keeps_and_computes_what_its_heads_have() -> None:
    model = ModelShape.of(CONFIGS["deepseek-v3"])
    query_and_key, value = 128 * (128 + 64), 128 * 128
    assert 2 * model.head_dim * (model.heads + model.kv_heads) == 2 * query_and_key + 2 * value
    assert 2 * model.heads * model.head_dim == query_and_key + value  # scores, and their use


# ---------------------------------------------------------------- counted tensor by tensor


def tensors(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the weights of a model like Llama or Mixtral, as in a state dict."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv = config.get("num_key_value_heads", heads)
    dim = config.get("head_dim", hidden // heads)
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (config["vocab_size"], hidden),
        "norm": (hidden,),
    }
    if not config.get("tie_word_embeddings", False):
        shapes["head"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        shapes |= {
            f"{layer}.q": (heads * dim, hidden),
            f"{layer}.k": (kv * dim, hidden),
            f"{layer}.v": (kv * dim, hidden),
            f"{layer}.o": (hidden, heads * dim),
            f"{layer}.norm1": (hidden,),
            f"{layer}.norm2": (hidden,),
        }
        experts = config.get("num_local_experts", 0)
        if layer < config.get("first_k_dense_replace", 0) or not experts:
            widths = {"mlp": config["intermediate_size"]}
        else:
            width = config.get("moe_intermediate_size", config["intermediate_size"])
            shared = config.get("n_shared_experts", 0)
            widths = {f"expert{e}": width for e in range(experts)}
            widths |= {f"shared{e}": width for e in range(shared)}
            shapes[f"{layer}.router"] = (experts, hidden)
        for name, width in widths.items():
            shapes |= {
                f"{layer}.{name}.gate": (width, hidden),
                f"{layer}.{name}.up": (width, hidden),
                f"{layer}.{name}.down": (hidden, width),
            }
    return shapes


@st.composite
def model_configs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw small configs, dense or with experts."""
    kv = draw(st.integers(1, 4))
    heads = kv * draw(st.integers(1, 4))
    layers = draw(st.integers(1, 5))
    config: dict[str, Any] = {
        "hidden_size": heads * draw(st.integers(1, 8)),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": draw(st.integers(1, 50)),
        "vocab_size": draw(st.integers(1, 100)),
    }
    config |= draw(st.sampled_from([{}, {"tie_word_embeddings": True}, {"head_dim": 3}]))
    if draw(st.booleans()):
        experts = draw(st.integers(1, 6))
        config |= {
            "num_local_experts": experts,
            "num_experts_per_tok": draw(st.integers(1, experts)),
            "first_k_dense_replace": draw(st.integers(0, layers)),
            "n_shared_experts": draw(st.integers(0, 2)),
        }
        config |= draw(st.sampled_from([{}, {"moe_intermediate_size": 7}]))
    return config


@law
@given(model_configs())
def test_every_weight_is_counted_once(config: dict[str, Any]) -> None:
    shape, shapes = ModelShape.of(config), tensors(config)
    assert shape.parameters == sum(math.prod(size) for size in shapes.values())
    routed = sum(math.prod(size) for name, size in shapes.items() if ".expert" in name)
    assert shape.routed == routed
    ends = sum(math.prod(shapes[name]) for name in ("embed", "head", "norm") if name in shapes)
    assert shape.shared == shape.parameters - routed - ends
    share = config.get("num_experts_per_tok", 0) / config.get("num_local_experts", 1)
    assert shape.active_parameters == pytest.approx(shape.shared + routed * share)
    # the width counts the matrices that process a token
    ups = {name: size[0] for name, size in shapes.items() if name.endswith(".up")}
    active = sum(width * (share if ".expert" in name else 1) for name, width in ups.items())
    assert shape.width == pytest.approx(active / config["num_hidden_layers"])
