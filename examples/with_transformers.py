"""Train a model of Transformers on a mesh: split over tp, with parameters sharded over dp.

    torchrun --nproc-per-node 4 examples/with_transformers.py

Needs ``pip install -e '.[interop]'``. A tiny Llama with random weights learns two sentences of
random tokens, one on each data rank. All ranks of one tp group read the same sentence.
"""

from __future__ import annotations

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import meshkit
from meshkit.interop.transformers import distribute

CONFIG = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}


def main(steps: int = 3) -> list[float]:
    """Train; return the losses of this rank."""
    losses = []
    device = meshkit.init().device
    with meshkit.build_mesh(dp=-1, tp=2) as mesh:
        torch.manual_seed(0)  # equal weights on every rank
        model = LlamaForCausalLM(LlamaConfig(**CONFIG, **HEADS)).to(device)
        model, view = distribute(model, mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        each = torch.randint(0, 64, (mesh.layout.size("dp"), 1, 16))  # (dp, sentences, tokens)
        tokens = each[mesh.coordinate["dp"]].to(device)
        for _ in range(steps):
            loss = model(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        view.close()
        if mesh.rank == 0:
            words = " ".join(f"{loss:.3f}" for loss in losses)
            sys.stdout.write(f"{view!r}\nlosses {words}\n{mesh.groups_report()}\n")
    return losses


if __name__ == "__main__":
    try:
        main()
    finally:
        meshkit.shutdown()
