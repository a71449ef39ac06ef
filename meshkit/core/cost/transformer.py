"""ModelShape: the sizes of a transformer, and the number of its weights.

The sizes are read from a ``config.json`` of the Hugging Face Hub, with the names of Llama, Mixtral,
Qwen, DeepSeek-MoE or GPT-2. Weights of a decoder, without the biases of GPT-2::

    layer    hidden x head_dim x (2 heads + 2 kv_heads)       attention
             3 x hidden x ffn                                 gate, up and down; 2 if not gated
             2 x hidden                                       norms
    experts  experts x 3 x hidden x expert_ffn                instead of the ffn, and a router
    ends     vocab x hidden, twice unless tied                embedding and head; a norm
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..call import quotes_call
from ..errors import SpecError
from ..validate import parse_integer

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

    def __post_init__(self) -> None:
        for name in NAMES:
            self._set(name, _check_size(name, getattr(self, name)))
        self._set("kv_heads", self.kv_heads or self.heads)
        self._set("head_dim", self.head_dim or self.hidden // self.heads)
        self._set("expert_ffn", self.expert_ffn or self.ffn)
        self._set("dense_layers", self.dense_layers if self.experts else self.layers)
        if self.heads % self.kv_heads:
            raise self._conflict("kv_heads", "does not divide", "heads")
        if self.experts and not 0 < self.top_k <= self.experts:
            raise self._conflict("top_k", "is not from 1 to", "experts")
        if self.dense_layers > self.layers:
            raise self._conflict("dense_layers", "is more than", "layers")

    @classmethod
    @quotes_call("ModelShape.of")
    def of(cls, config: Mapping[str, object]) -> ModelShape:
        """Return the shape that a ``config.json`` describes. Local.

        Args:
            config: the content of the file, with the names of LlamaConfig or of ``NAMES``.

        Raises:
            SpecError: if a size is missing or not an int of 1 or more, if sizes do not fit each
                other, or for latent attention (``kv_lora_rank``), which is not modelled.

        Cost: O(1).

        Example:
            >>> shape = ModelShape.of({"hidden_size": 4096, "num_hidden_layers": 32,
            ...     "num_attention_heads": 32, "num_key_value_heads": 8,
            ...     "intermediate_size": 14336, "vocab_size": 128256})
            >>> shape.parameters
            8030261248
        """
        if config.get("kv_lora_rank") is not None:
            raise SpecError(
                f"kv_lora_rank is {config['kv_lora_rank']!r}.",
                "Latent attention is not modelled.",
                fix="leave kv_lora_rank out; plain attention is then counted instead.",
            )
        plain = "n_embd" in config
        sizes = {name: _first_present(config, names) for name, names in NAMES.items()}
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
        return cls(**present, plain=plain, tied=tied)  # type: ignore[arg-type]

    def _set(self, name: str, value: int) -> None:
        object.__setattr__(self, name, value)

    def _conflict(self, name: str, relation: str, other: str) -> SpecError:
        """Return the error of two sizes that do not fit each other."""
        values = f"{name} is {getattr(self, name)}, {other} is {getattr(self, other)}."
        fix = f"{NAMES[name][0]} and {NAMES[other][0]} as the model has them."
        return SpecError(f"{name} {relation} {other}.", values, fix=fix)

    @property
    def attention(self) -> int:
        """Weights of the attention of one layer."""
        biases = self.head_dim * (self.heads + 2 * self.kv_heads) + self.hidden
        matrices = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return matrices + self.plain * biases

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
        norms = 2 * self.hidden * (2 if self.plain else 1)
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


def _first_present(config: Mapping[str, object], names: tuple[str, ...]) -> object:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _check_size(name: str, value: object) -> int:
    least = 1 if name in REQUIRED else 0
    number = parse_integer(value)
    if number is None or not least <= number <= MAX_SIZE:
        fix = f"a whole number from {least} to {MAX_SIZE} for {' or '.join(NAMES[name])}."
        raise SpecError(f"{name} is {value!r}.", fix=fix)
    return number
