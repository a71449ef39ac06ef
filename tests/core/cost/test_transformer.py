"""Sizes of a model: weights counted tensor by tensor, and as published."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.core.cost.transformer import ModelShape

law = settings(deadline=None, max_examples=60, database=None)

LLAMA = {"num_key_value_heads": 8, "vocab_size": 128256}
CONFIGS: dict[str, tuple[dict[str, Any], int]] = {
    "Llama 3 8B": (
        {
            **LLAMA,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 14336,
        },
        8_030_261_248,
    ),
    "Llama 3 70B": (
        {
            **LLAMA,
            "hidden_size": 8192,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "intermediate_size": 28672,
        },
        70_553_706_496,
    ),
    "Llama 3.1 405B": (
        {
            **LLAMA,
            "hidden_size": 16384,
            "num_hidden_layers": 126,
            "num_attention_heads": 128,
            "intermediate_size": 53248,
        },
        405_853_388_800,
    ),
    "Mixtral 8x7B": (
        {
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 32000,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        46_702_792_704,
    ),
    "GPT-2": (
        {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257},
        124_439_808,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_published_counts(name: str) -> None:
    config, published = CONFIGS[name]
    assert ModelShape.of(config).parameters == published


def test_deepseek_moe_has_a_dense_layer_and_experts_of_another_width() -> None:
    shape = ModelShape.of(
        {
            "hidden_size": 2048,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "first_k_dense_replace": 1,
            "vocab_size": 102400,
        }
    )
    assert shape.parameters == 16_375_728_128  # "16.4B"
    assert shape.active_parameters + 2 * shape.embedding == pytest.approx(
        2.8e9, rel=0.02
    )  # "2.8B activated"
    assert shape.sparse == 27 / 28
    assert shape.width == pytest.approx((10944 + 27 * 8 * 1408) / 28)


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
def configs(draw: st.DrawFn) -> dict[str, Any]:
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
@given(configs())
def test_every_weight_is_counted_once(config: dict[str, Any]) -> None:
    shape, shapes = ModelShape.of(config), tensors(config)
    assert shape.parameters == sum(math.prod(size) for size in shapes.values())
    routed = sum(math.prod(size) for name, size in shapes.items() if ".expert" in name)
    assert shape.routed == routed
    ends = sum(math.prod(shapes[name]) for name in ("embed", "head", "norm") if name in shapes)
    assert shape.shared == shape.parameters - routed - ends
    share = config.get("num_experts_per_tok", 0) / config.get("num_local_experts", 1)
    assert shape.active_parameters == pytest.approx(shape.shared + routed * share)


@law
@given(configs())
def test_the_width_counts_the_matrices_that_process_a_token(config: dict[str, Any]) -> None:
    shape, shapes = ModelShape.of(config), tensors(config)
    ups = {name: size[0] for name, size in shapes.items() if name.endswith(".up")}
    share = config.get("num_experts_per_tok", 0) / config.get("num_local_experts", 1)
    active = sum(width * (share if ".expert" in name else 1) for name, width in ups.items())
    assert shape.width == pytest.approx(active / config["num_hidden_layers"])


def test_defaults_of_missing_sizes() -> None:
    shape = ModelShape.of(
        {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 96,
            "vocab_size": 10,
            "num_experts_per_tok": 2,  # present in some dense configs
            "head_dim": None,
        }
    )
    assert (shape.kv_heads, shape.head_dim, shape.tied, shape.plain) == (4, 16, False, False)
    assert (shape.routed, shape.sparse, shape.width) == (0, 0, 96)
