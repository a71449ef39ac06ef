"""ModelShape: the sizes and weights of a transformer; and the memory of one rank that trains it.

Weights of a decoder, without the biases of GPT-2::

    layer    hidden x head_dim x (2 heads + 2 kv_heads)       attention
             3 x hidden x ffn                                 gate, up and down; 2 if not gated
             2 x hidden                                       norms
    experts  experts x 3 x hidden x expert_ffn                instead of the ffn, and a router
    ends     vocab x hidden, twice unless tied                embedding and head; a norm

Latent attention (arXiv 2412.19437) counts its two low-rank projections. A head then has the mean of
the dims of keys and of values, which gives its activations, scores and traffic.

Mixed precision with Adam needs 18 bytes per weight: 2 for the weight (bf16), 4 for its gradient,
12 for its fp32 copy and two moments. In fp32 it needs 4, 4 and 8. Copies of a rank share them
according to ``shard``::

    shard     weights  gradients  optimizer
    ddp          2         4         12
    zero1        2         4         12 / n     Megatron's distributed optimizer: 6 + 12/n
    fsdp         2 / n     4 / n     12 / n     and buffers: 8 bytes per weight of a layer, gathered

Here n is dp x ep x cp x sp, and dp x cp x sp for routed experts. A rank has 1/tp of its layers, and
1/ep of their experts. (Megatron-core, distributed optimizer; ZeRO, arXiv 1910.02054.) If tp is more
than the heads of keys and values, each rank has one of them, which tp / heads ranks copy. So do
tp x sp ranks, with the activations of a head.

For each token a layer keeps the bf16 tensors that are expensive to recompute: the inputs of its two
norms, q, k, v, the output of attention, gate and up, and a copy for each routed expert. They take
``2 (4 hidden + 2 kv + 2 ffn + top_k hidden) / tp`` bytes, because tp divides either the weights or
the sequence. Flash attention keeps no scores. Recomputation in backward changes this::

    cheap    norms and activation functions are computed again, as above
    none     a layer also keeps the outputs of its norms, and two more tensors as wide as gate
    full     a layer keeps its input alone; one layer at a time keeps all, as with none

Logits take 6 bytes each: themselves, and their fp32 softmax, which becomes their gradient in place.
With none they take 12, as in torch's ``cross_entropy``: the fp32 log of their softmax, its
gradient, and theirs. After the logits, one layer at a time has the gradients of gate and up. With
cheap it also has the two tensors as wide that are computed again. A pipeline keeps pp micro
batches, or ``pp + (pp - 1) / v`` if it is interleaved (arXiv 2205.05198, 4.2.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..call import parse_integer, quotes_call
from ..errors import SpecError
from ..text import Floats, Ints

NAMES = {
    "hidden": ("hidden_size", "n_embd"),
    "layers": ("num_hidden_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_head"),
    "vocab": ("vocab_size",),
    "ffn": ("intermediate_size", "n_inner"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts"),
    "top_k": ("num_experts_per_tok",),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts",),
    "dense_layers": ("first_k_dense_replace",),
    "positions": ("n_positions",),
}
LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
REQUIRED = ("hidden", "layers", "heads", "vocab", "ffn")
MAX_SIZE = 10**8  # so that weights are counted exactly enough in float64


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder. Read them from a config with :meth:`of`."""

    hidden: int  # elements of the residual stream per token
    layers: int
    heads: int  # query heads
    vocab: int  # rows of the embedding
    ffn: int  # inner width of a dense feed-forward
    kv_heads: int = 0  # key and value heads; 0 means as many as ``heads``
    head_dim: int = 0  # elements of one head; 0 means hidden / heads
    experts: int = 0  # routed experts per layer; 0 if the model is dense
    top_k: int = 0  # routed experts per token
    expert_ffn: int = 0  # inner width of an expert; 0 means ``ffn``
    shared_experts: int = 0  # experts that process every token
    dense_layers: int = 0  # layers without experts, in a model with experts
    positions: int = 0  # learned positions, as in GPT-2
    plain: bool = False  # feed-forward of two matrices, and biases in all layers, as in GPT-2
    tied: bool = False  # whether the head is the embedding
    latent: int = 0  # weights of the latent attention of a layer; 0 if attention is plain
    qk_norm: bool = False  # whether queries and keys have norms of head_dim weights, as in Qwen3

    def __post_init__(self) -> None:
        vars(self).update({name: _check_size(name, getattr(self, name)) for name in NAMES})
        vars(self).update(
            kv_heads=self.kv_heads or self.heads,
            head_dim=self.head_dim or self.hidden // self.heads,
            expert_ffn=self.expert_ffn or self.ffn,
            dense_layers=self.dense_layers if self.experts else self.layers,
        )
        is_top_k_wrong = self.experts and not 0 < self.top_k <= self.experts
        for is_wrong, name, relation, other in (
            (self.heads % self.kv_heads, "kv_heads", "does not divide", "heads"),
            (is_top_k_wrong, "top_k", "is not from 1 to", "experts"),
            (self.dense_layers > self.layers, "dense_layers", "is more than", "layers"),
        ):
            if is_wrong:
                values = f"{name} is {getattr(self, name)}, {other} is {getattr(self, other)}."
                fix = f"{NAMES[name][0]} and {NAMES[other][0]} as the model has them."
                raise SpecError(f"{name} {relation} {other}.", values, fix=fix)

    @classmethod
    @quotes_call("ModelShape.of")
    def of(cls, config: Mapping[str, object]) -> ModelShape:
        """Return the shape that a ``config.json`` of the Hugging Face Hub describes.

        It knows the names of Llama, Mixtral, Qwen, DeepSeek and GPT-2. It leaves out the layers of
        DeepSeek-V3 that predict further tokens.

        Raises:
            SpecError: if a size is missing or not an int of 1 or more, or if sizes do not fit each
                other.
        """
        plain = "n_embd" in config
        sizes = {
            name: next((config[key] for key in keys if config.get(key) is not None), None)
            for name, keys in NAMES.items()
        }
        hidden = parse_integer(sizes["hidden"])
        if plain and sizes["ffn"] is None and hidden is not None:
            sizes["ffn"] = 4 * hidden  # n_inner is null in the config of GPT-2
        missing = next((name for name in REQUIRED if sizes[name] is None), None)
        if missing is not None:
            names = " or ".join(NAMES[missing])
            fix = "the config.json of a decoder, as the Hugging Face Hub has it."
            raise SpecError(f"there is no {names}.", fix=fix)
        tied = bool(config.get("tie_word_embeddings", plain))
        present = {name: value for name, value in sizes.items() if value is not None}
        if config.get("kv_lora_rank") is not None:
            present |= _latent_attention(config, present["hidden"], present["heads"])
        qk_norm = str(config.get("model_type")).startswith("qwen3")
        return cls(**present, plain=plain, tied=tied, qk_norm=qk_norm)  # type: ignore[arg-type]

    @property
    def attention(self) -> int:
        """Weights of the attention of one layer."""
        if self.latent:
            return self.latent
        biases = self.head_dim * (self.heads + 2 * self.kv_heads) + self.hidden
        matrices = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return matrices + self.plain * biases

    def copied_kv(self, tp: Ints) -> Ints:
        """Return the weights of a layer that exist for copies of kv heads, on all ranks of tp."""
        copies = np.maximum(tp - self.kv_heads, 0)
        return np.asarray(copies * 2 * self.head_dim * (self.hidden + self.plain))

    def feed_forward(self, width: int) -> int:
        """Return the number of weights of a feed-forward with that inner width."""
        return (2 if self.plain else 3) * self.hidden * width + self.plain * (width + self.hidden)

    @property
    def routed(self) -> int:
        """Weights of all routed experts, which ep divides."""
        layers = self.layers - self.dense_layers
        return layers * self.experts * self.feed_forward(self.expert_ffn)

    @property
    def shared(self) -> int:
        """Weights of all layers that process every token, with the router."""
        norms = 2 * self.hidden * (2 if self.plain else 1) + self.qk_norm * 2 * self.head_dim
        always = self.shared_experts * self.feed_forward(self.expert_ffn)
        router = self.hidden * self.experts
        dense = self.dense_layers * self.feed_forward(self.ffn)
        sparse = (self.layers - self.dense_layers) * (always + router)
        return self.layers * (self.attention + norms) + dense + sparse

    @property
    def embedding(self) -> int:
        """Weights of one table of the vocabulary."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights."""
        tables = self.embedding * (1 if self.tied else 2) + self.positions * self.hidden
        return self.shared + self.routed + tables + self.hidden * (2 if self.plain else 1)

    @property
    def active_parameters(self) -> float:
        """Weights of the layers that process one token."""
        return self.shared + (self.routed * self.top_k / self.experts if self.experts else 0)

    @property
    def width(self) -> float:
        """Inner width of the feed-forwards that process one token in a layer, on average."""
        experts = (self.top_k + self.shared_experts) * self.expert_ffn
        return (1 - self.sparse) * self.ffn + self.sparse * experts

    @property
    def sparse(self) -> float:
        """The share of the layers that have experts."""
        return 1 - self.dense_layers / self.layers


def _check_size(name: str, value: object) -> int:
    least = 1 if name in REQUIRED else 0
    number = parse_integer(value)
    if number is None or not least <= number <= MAX_SIZE:
        fix = f"a whole number from {least} to {MAX_SIZE} for {' or '.join(NAMES[name])}."
        raise SpecError(f"{name} is {value!r}.", fix=fix)
    return number


def _latent_attention(
    config: Mapping[str, object], hidden: object, heads: object
) -> dict[str, int]:
    """Return the weights of latent attention, and the head of plain attention of that work."""
    ranks = {name: config[name] for name in LATENT if config.get(name) is not None}
    names = {"hidden": hidden, "heads": heads, **ranks}
    sizes = {name: parse_integer(value) or 0 for name, value in names.items()}
    if missing := [name for name in (*names, *LATENT[1:]) if sizes.get(name, 0) < 1]:
        fix = f"a whole number of 1 or more for {missing[0]}."
        raise SpecError(f"{missing[0]} is {config.get(missing[0])!r}.", fix=fix)
    hidden_size, num_heads, *_ = sizes.values()
    key = sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"]
    value, rank, q_rank = sizes["v_head_dim"], sizes["kv_lora_rank"], sizes.get("q_lora_rank", 0)
    q = q_rank * (hidden_size + 1 + num_heads * key) if q_rank else hidden_size * num_heads * key
    kv = hidden_size * (rank + sizes["qk_rope_head_dim"]) + rank
    kv += rank * num_heads * (sizes["qk_nope_head_dim"] + value)
    output = num_heads * value * hidden_size
    return {"latent": q + kv + output, "head_dim": (key + value) // 2, "kv_heads": num_heads}


SHARDS = ("ddp", "zero1", "fsdp")
RECOMPUTE = ("cheap", "full", "none")  # what backward computes again


class Precision(NamedTuple):
    """The bytes of one number, and the speed of its matrix products."""

    element: int  # a weight or an activation
    optimizer: int  # the moments of Adam, and the fp32 copy of a weight
    speed: float  # of matrix products, relative to bf16

    @property
    def of_weight(self) -> dict[str, int]:
        """Bytes of one weight by part; a gradient is fp32."""
        return {"weights": self.element, "gradients": 4, "optimizer": self.optimizer}


# Data sheets of A100, H100 and B200: fp32 products run in TF32, at half the speed of bf16
PRECISIONS = {
    "bf16": Precision(2, 12, 1),
    "fp16": Precision(2, 12, 1),
    "fp32": Precision(4, 8, 0.5),
}
FIRST_SHARDED = {"weights": 2, "gradients": 2, "optimizer": 1}  # the first of SHARDS to divide it


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
    recompute: Any = 0  # an index in ``RECOMPUTE``

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
    layers = stage_layers(model, config.pp)
    shared, routed = _layer_weights(model, config)
    tables = np.where(np.equal(config.pp, 1), 1 if model.tied else 2, 1)
    return layers * shared + tables * model.embedding / config.tp, layers * routed


def _layer_weights(model: ModelShape, config: ParallelConfig) -> tuple[Floats, Floats]:
    """Return the weights of a rank in one layer, the mean of all: shared and routed ones."""
    shared = (model.shared / model.layers + model.copied_kv(config.tp)) / config.tp
    return shared, model.routed / model.layers / (config.ep * config.tp)


def bytes_per_rank(
    model: ModelShape, config: ParallelConfig, global_batch: int, seq: int, dtype: str = "bf16"
) -> dict[str, Floats]:
    """Return the memory of the rank that needs most, by part. Cost: O(ways to run)."""
    shared, routed = stage_weights(model, config)
    precision = PRECISIONS[dtype]
    memory = {}
    for part, size in precision.of_weight.items():
        is_sharded = np.asarray(config.shard) >= FIRST_SHARDED[part]
        shared_over = np.where(is_sharded, config.copies * config.ep, 1)
        routed_over = np.where(is_sharded, config.copies, 1)
        memory[part] = size * (shared / shared_over + routed / routed_over)
    memory["activations"] = _activations(model, config, global_batch, seq, precision.element)
    gathered = 2 * precision.element + 4  # bytes: the weights of two layers, the gradients of one
    buffers = np.where(np.asarray(config.shard) == SHARDS.index("fsdp"), gathered, 0)
    return {**memory, "buffers": buffers * sum(_layer_weights(model, config))}


def _activations(
    model: ModelShape, config: ParallelConfig, global_batch: int, seq: int, element: int
) -> Floats:
    """Return the bytes of activations on the first or the last stage, whichever needs more."""
    tokens = config.micro_batch * seq / (config.cp * config.sp * config.tp)
    kv_heads = np.maximum(model.kv_heads, config.tp * config.sp)  # with copies
    heads = 2 * model.head_dim * (model.heads + kv_heads)  # q, the output, k and v
    inputs = 2 + model.top_k * model.sparse  # of the norms, and a copy for each routed expert
    is_none, is_full = (np.equal(config.recompute, RECOMPUTE.index(n)) for n in ("none", "full"))
    cheap = inputs * model.hidden + heads + 2 * model.width  # elements of a token in a layer
    complete = element * tokens * (cheap + 2 * (model.hidden + model.width))
    layer = np.where(is_none, complete, element * tokens * cheap)
    layer = np.where(is_full, element * tokens * model.hidden, layer)
    gradients = element * tokens * 2 * model.width  # of gate and up
    again = np.where(is_full, complete, np.where(is_none, 0, gradients))  # computed by backward
    backward = gradients + again  # of the layer whose backward runs
    is_interleaved = np.asarray(config.virtual) > 1
    depth = config.pp + np.where(is_interleaved, (config.pp - 1) / config.virtual, 0)
    stage = stage_layers(model, config.pp) * layer
    logits = np.where(is_none, 12, element + 4) * tokens * model.vocab
    first = np.minimum(config.num_micro_batches(global_batch), depth) * stage + backward
    return np.asarray(np.maximum(first, stage + np.maximum(logits, backward)))
