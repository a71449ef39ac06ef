"""The number of weights of models that Transformers creates on the meta device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meshkit.plan.memory import ModelShape

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install -e '.[interop]'"
)

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("LlamaConfig", SMALL),
    ("LlamaConfig", {**SMALL, "tie_word_embeddings": True, "head_dim": 32}),
    ("MixtralConfig", {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 2}),
    ("GPT2Config", {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 128}),
    ("GPT2Config", {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 128, "n_inner": 96}),
]


@pytest.mark.parametrize(("kind", "sizes"), CASES)
def test_the_count_is_that_of_the_model(kind: str, sizes: dict[str, Any]) -> None:
    config = getattr(transformers, kind)(**sizes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    counted = sum(weight.numel() for weight in model.parameters())
    assert ModelShape.of(config.to_dict()).parameters == counted
