"""Run the Trainer of Transformers on the ranks of a mesh; its losses do not depend on their number.

    torchrun --nproc-per-node 4 examples/transformers_trainer.py

Needs ``pip install -e '.[interop]'``. The Trainer takes the batch of one device, so a batch plan
computes it from the global batch. A tiny Llama with random weights learns random tokens.
"""

from __future__ import annotations

import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import meshkit

CONFIG = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}


def main() -> list[float]:
    """Train; return the loss of each step."""
    meshkit.init(seed=0)  # Trainer joins this job; it starts none of its own
    with meshkit.build_mesh(dp=-1) as mesh:
        plan = mesh.batch(global_batch=16, micro_batch=2)
        model = LlamaForCausalLM(LlamaConfig(**CONFIG, **HEADS))
        tokens = torch.randint(0, 64, (64, 16))
        arguments = TrainingArguments(
            output_dir=tempfile.gettempdir(),  # nothing is saved
            per_device_train_batch_size=plan.micro_batch,
            gradient_accumulation_steps=plan.accumulation_steps,
            max_steps=4,
            learning_rate=1e-2,
            use_cpu=mesh.device.type == "cpu",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        rows = [{"input_ids": row, "labels": row} for row in tokens]
        trainer = Trainer(model, arguments, train_dataset=rows)
        trainer.train()
        mesh.check_parameters(model)  # raises if the replicas differ
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        if mesh.rank == 0:
            sys.stdout.write(f"{mesh!r}: losses {' '.join(f'{loss:.4f}' for loss in losses)}\n")
    return losses


if __name__ == "__main__":
    try:
        main()
    finally:
        meshkit.shutdown()
