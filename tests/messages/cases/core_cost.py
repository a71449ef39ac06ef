"""Cases of errors that core/cost raises."""

from __future__ import annotations

from meshkit.core.cost.machines import MACHINES
from meshkit.core.cost.step_time import TrainingJob
from meshkit.core.cost.transformer import ModelShape
from tests.messages.snapshot import unique

CONFIG = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}

SIZES = {"hidden": 4096, "layers": 32, "heads": 32, "vocab": 128256, "ffn": 14336}

CASES = unique(
    (
        "a model config without a size",
        lambda: ModelShape.of({k: v for k, v in CONFIG.items() if k != "num_hidden_layers"}),
    ),
    ("a model with latent attention", lambda: ModelShape.of({**CONFIG, "kv_lora_rank": 512})),
    ("a model size that is a str", lambda: ModelShape.of({**CONFIG, "hidden_size": "4096"})),
    (
        "kv heads that do not divide the heads",
        lambda: ModelShape.of({**CONFIG, "num_key_value_heads": 5}),
    ),
    ("more experts per token than experts", lambda: ModelShape(**SIZES, experts=4, top_k=8)),
    (
        "more dense layers than layers",
        lambda: ModelShape(**SIZES, experts=4, top_k=2, dense_layers=33),
    ),
    ("an unknown figure of a machine", lambda: MACHINES["h100"].with_measured({"nvlink": 450})),
    (
        "a machine with a bandwidth of 0",
        lambda: MACHINES["h100"].with_measured({"bandwidth_inter_node": 0}),
    ),
    ("a training job of 0 ranks", lambda: TrainingJob(0, 1, 8, 64, MACHINES["h100"])),
    (
        "a training job that does not divide over its nodes",
        lambda: TrainingJob(64, 7, 8, 64, MACHINES["h100"]),
    ),
)
