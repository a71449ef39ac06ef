"""What one rank holds while it trains: weights, gradients, optimizer, activations. In bytes.

Mixed precision with Adam: a weight is 2 bytes (bf16), its gradient 4, its fp32 copy and two moments
12: 18 in all. Who keeps them::

    shard     weights  gradients  optimizer
    ddp          2         4         12
    zero1        2         4         12 / n     Megatron's distributed optimizer: 6 + 12/n
    fsdp         2 / n     4 / n     12 / n     and what is gathered of two layers, 8 bytes a weight

where n is dp x ep x cp x sp, for routed experts dp x cp x sp. A rank has 1/tp of its layers, and
1/ep of their experts. (Megatron-core, distributed optimizer; ZeRO, arXiv 1910.02054.)

A layer keeps of each token, in bf16, what is no cheap function of the rest: the inputs of its two
norms, q, k, v and the output of attention, gate and up, and a copy for each routed expert:
``2 (4 hidden + 2 kv + 2 ffn + top_k hidden) / tp``, as the sequence is split over tp where the
weights are not. No scores are kept (flash attention); norms and activation functions are computed
again. With full recomputation a layer keeps its input alone, and one layer is whole at a time.
Logits are 6 bytes each. A pipeline holds pp micro batches, or interleaved ``pp + (pp - 1) / v``
(arXiv 2205.05198, 4.2.3).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..arrays import Floats, Ints
from .transformer import ModelShape

SHARDS = ("ddp", "zero1", "fsdp")
BYTES = {"weights": 2, "gradients": 4, "optimizer": 12}
FIRST_SHARDED = {"weights": 2, "gradients": 2, "optimizer": 1}  # the first of SHARDS to divide it


class ParallelConfig(NamedTuple):
    """Ways to run a job: of one, ints; of many at once, int64 arrays of one shape.

    Attributes:
        pp: pipeline stages; as the next five, the size of the axis of that name.
        dp: data parallel.
        ep: expert parallel; the samples are divided over dp x ep.
        cp: context parallel, a ring.
        sp: sequence parallel, all-to-all (Ulysses).
        tp: tensor parallel, with the sequence split between its matrix products.
        virtual: parts of a pipeline stage that are interleaved.
        micro_batch: samples in one forward and backward.
        shard: the index in ``SHARDS``.
        recompute: 1 where the layers are computed again in backward.
    """

    pp: Any
    dp: Any
    ep: Any
    cp: Any
    sp: Any
    tp: Any
    virtual: Any = 1
    micro_batch: Any = 1
    shard: Any = 0
    recompute: Any = 0


def stage_layers(model: ModelShape, pp: Ints) -> Ints:
    """Layers of the longest stage, or 0 where no even split is.

    Where pp does not divide the layers, but does with two more, the embedding and the head each
    count as one: the first and the last stage are a layer shorter, as Llama 3 405B's were.

    Example:
        >>> llama = ModelShape(hidden=8, layers=126, heads=1, vocab=9, ffn=8)
        >>> [int(stage_layers(llama, np.int64(pp))) for pp in (1, 2, 16, 5)]
        [126, 63, 8, 0]
    """
    even, ends = model.layers % pp == 0, (model.layers + 2) % pp == 0
    return np.where(even, model.layers // pp, np.where(ends, (model.layers + 2) // pp, 0))


def stage_weights(model: ModelShape, c: ParallelConfig) -> tuple[Floats, Floats]:
    """Weights of one rank of the heaviest stage: those that all share, and its routed experts."""
    layers = stage_layers(model, c.pp) / model.layers
    tables = np.where(np.equal(c.pp, 1), 1 if model.tied else 2, 1)
    shared = (layers * model.shared + tables * model.embedding) / c.tp
    return shared, layers * model.routed / (c.ep * c.tp)


def bytes_per_rank(
    model: ModelShape, c: ParallelConfig, global_batch: int, seq: int
) -> dict[str, Floats]:
    """What the fullest rank holds, by kind. Pure, O(choices).

    Args:
        model: the sizes of the model.
        c: the ways to run it.
        global_batch: samples in one optimizer step.
        seq: tokens of a sample.

    Returns:
        bytes of weights, gradients, optimizer and activations, an array each, as long as ``c``.

    Example:
        >>> llama = ModelShape(4096, layers=32, heads=32, vocab=128256, ffn=14336, kv_heads=8)
        >>> held = bytes_per_rank(llama, ParallelConfig(1, 64, 1, 1, 1, 1, shard=1), 1024, 8192)
        >>> [f"{kind} {size / 1e9:.1f} GB" for kind, size in held.items()]
        ['weights 16.1 GB', 'gradients 32.1 GB', 'optimizer 1.5 GB', 'activations 31.0 GB']
    """
    shared, routed = stage_weights(model, c)
    copies = c.dp * c.cp * c.sp
    held = {}
    for kind, size in BYTES.items():
        divided = np.asarray(c.shard) >= FIRST_SHARDED[kind]
        among = np.where(divided, copies, 1), np.where(divided, copies * c.ep, 1)
        held[kind] = size * (shared / among[1] + routed / among[0])
    one = (model.shared + model.routed / c.ep) / (model.layers * c.tp)  # weights of a layer
    gathered = np.where(np.asarray(c.shard) == 2, 8 * one, 0)
    return {**held, "activations": _activations(model, c, global_batch, seq) + gathered}


def _activations(model: ModelShape, c: ParallelConfig, global_batch: int, seq: int) -> Floats:
    tokens = c.micro_batch * seq / (c.cp * c.sp * c.tp)
    heads = 2 * model.head_dim * (model.heads + model.kv_heads)  # q, the output, k and v
    inputs = 2 + model.top_k * model.sparse  # of the norms, and a copy for each routed expert
    whole = 2 * tokens * (inputs * model.hidden + heads + 2 * model.width)
    layer = np.where(c.recompute, 2 * tokens * model.hidden, whole)
    micros = global_batch // (c.dp * c.ep * c.micro_batch)
    depth = c.pp + np.where(np.asarray(c.virtual) > 1, (c.pp - 1) / c.virtual, 0)
    layers = stage_layers(model, c.pp)
    logits = 6 * tokens * model.vocab
    first, last = np.minimum(micros, depth) * layers * layer, layers * layer + logits
    return np.asarray(np.maximum(first, last) + np.where(c.recompute, whole, 0))
