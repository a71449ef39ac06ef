"""Memory of one rank in training: weights, gradients, optimizer states and activations, in bytes.

Mixed precision with Adam needs 18 bytes per weight: 2 for the weight (bf16), 4 for its gradient, 12
for its fp32 copy and two moments. Copies of a rank share them according to ``shard``::

    shard     weights  gradients  optimizer
    ddp          2         4         12
    zero1        2         4         12 / n     Megatron's distributed optimizer: 6 + 12/n
    fsdp         2 / n     4 / n     12 / n     and 8 bytes per weight of a layer, gathered

Here n is dp x ep x cp x sp, and dp x cp x sp for routed experts. A rank has 1/tp of its layers, and
1/ep of their experts. (Megatron-core, distributed optimizer; ZeRO, arXiv 1910.02054.)

For each token a layer keeps the bf16 tensors that are expensive to recompute: the inputs of its two
norms, q, k, v, the output of attention, gate and up, and a copy for each routed expert. They take
``2 (4 hidden + 2 kv + 2 ffn + top_k hidden) / tp`` bytes, because tp divides either the weights or
the sequence. Flash attention keeps no scores. Norms and activation functions are computed again.
With full recomputation a layer keeps only its input, and one layer at a time is complete. Logits
take 6 bytes each. A pipeline keeps pp micro batches, or ``pp + (pp - 1) / v`` if it is interleaved
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
GATHERED_BYTES = 8  # per weight with fsdp: two layers in bf16, gradients of one in fp32
LOGIT_BYTES = 6


class ParallelConfig(NamedTuple):
    """One way to run a job, in ints; or many ways, in int64 arrays of one shape."""

    pp: Any  # pipeline stages
    dp: Any  # data parallelism
    ep: Any  # experts; dp x ep divides the samples
    cp: Any  # ring attention
    sp: Any  # attention by all-to-all (Ulysses)
    tp: Any  # tensor parallelism, which also divides the sequence
    virtual: Any = 1  # interleaved parts of a pipeline stage
    micro_batch: Any = 1  # samples in one forward and backward
    shard: Any = 0  # an index in ``SHARDS``
    recompute: Any = 0  # 1 if backward computes the layers again, otherwise 0

    @property
    def copies(self) -> Any:  # noqa: ANN401  # an int or an array, as the fields
        """The number of ranks that hold copies of the same routed experts."""
        return self.dp * self.cp * self.sp

    def num_micro_batches(self, global_batch: int) -> Any:  # noqa: ANN401
        """Return the number of micro batches of a rank in one step."""
        return global_batch // (self.dp * self.ep * self.micro_batch)


def stage_layers(model: ModelShape, pp: Ints) -> Ints:
    """Return the number of layers of the longest stage; 0 if the layers do not divide evenly.

    If pp divides the layers only with two more, embedding and head count as one layer each. The
    first and the last stage are then one layer shorter, as those of Llama 3 405B.
    """
    even, with_ends = model.layers % pp == 0, (model.layers + 2) % pp == 0
    return np.where(even, model.layers // pp, np.where(with_ends, (model.layers + 2) // pp, 0))


def stage_weights(model: ModelShape, config: ParallelConfig) -> tuple[Floats, Floats]:
    """Return the weights of a rank in the largest stage: shared ones, and routed experts."""
    layers = stage_layers(model, config.pp) / model.layers
    tables = np.where(np.equal(config.pp, 1), 1 if model.tied else 2, 1)
    shared = (layers * model.shared + tables * model.embedding) / config.tp
    return shared, layers * model.routed / (config.ep * config.tp)


def bytes_per_rank(
    model: ModelShape, config: ParallelConfig, global_batch: int, seq: int
) -> dict[str, Floats]:
    """Return the memory of the rank that needs most, by kind. Pure.

    Cost: O(ways to run).
    """
    shared, routed = stage_weights(model, config)
    memory = {}
    for kind, size in BYTES.items():
        is_sharded = np.asarray(config.shard) >= FIRST_SHARDED[kind]
        shared_over = np.where(is_sharded, config.copies * config.ep, 1)
        routed_over = np.where(is_sharded, config.copies, 1)
        memory[kind] = size * (shared / shared_over + routed / routed_over)
    layer_weights = (model.shared + model.routed / config.ep) / (model.layers * config.tp)
    gathered = np.where(np.asarray(config.shard) == 2, GATHERED_BYTES * layer_weights, 0)
    return {**memory, "activations": _activations(model, config, global_batch, seq) + gathered}


def _activations(model: ModelShape, config: ParallelConfig, global_batch: int, seq: int) -> Floats:
    """Return the bytes of activations on the first or the last stage, whichever needs more."""
    tokens = config.micro_batch * seq / (config.cp * config.sp * config.tp)
    heads = 2 * model.head_dim * (model.heads + model.kv_heads)  # q, the output, k and v
    inputs = 2 + model.top_k * model.sparse  # of the norms, and a copy for each routed expert
    full = 2 * tokens * (inputs * model.hidden + heads + 2 * model.width)
    layer = np.where(config.recompute, 2 * tokens * model.hidden, full)
    is_interleaved = np.asarray(config.virtual) > 1
    depth = config.pp + np.where(is_interleaved, (config.pp - 1) / config.virtual, 0)
    layers = stage_layers(model, config.pp)
    first = np.minimum(config.num_micro_batches(global_batch), depth) * layers * layer
    last = layers * layer + LOGIT_BYTES * tokens * model.vocab
    return np.asarray(np.maximum(first, last) + np.where(config.recompute, full, 0))
