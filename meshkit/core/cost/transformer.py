"""ModelShape: the sizes of a transformer that say how it can be split and what it costs.

They are read from a ``config.json`` as the Hugging Face Hub keeps them, under the names of Llama,
Mixtral, Qwen, DeepSeek-MoE or GPT-2. Weights of a decoder, biases of GPT-2 apart::

    layer    hidden x head_dim x (2 heads + 2 kv_heads)       attention
             3 x hidden x ffn                                 gate, up and down; 2 where not gated
             2 x hidden                                       norms
    experts  experts x 3 x hidden x expert_ffn                in place of the ffn, and a router
    ends     vocab x hidden, twice unless tied                embedding and head; a norm
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..call import public
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
NEEDED = ("hidden", "layers", "heads", "vocab", "ffn")
MOST = 10**8  # of any size; what a rank holds is then counted exactly enough


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder. Read it with :meth:`of`.

    Attributes:
        hidden: elements of the residual stream of one token.
        layers: how many there are.
        heads: of the queries.
        vocab: rows of the embedding.
        ffn: inner width of a dense feed-forward.
        kv_heads: of keys and values; 0 means as many as heads.
        head_dim: elements of one head; 0 means hidden / heads.
        experts: routed experts of a layer; 0 where the model is dense.
        top_k: routed experts that one token meets.
        expert_ffn: inner width of an expert; 0 means ffn.
        shared_experts: experts that every token meets.
        dense_layers: layers without experts, in a model that has some.
        positions: learned positions, as GPT-2 has them.
        plain: GPT-2's feed-forward of two matrices, with biases everywhere.
        tied: whether the head is the embedding.
    """

    hidden: int
    layers: int
    heads: int
    vocab: int
    ffn: int
    kv_heads: int = 0
    head_dim: int = 0
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    positions: int = 0
    plain: bool = False
    tied: bool = False

    def __post_init__(self) -> None:
        for name in NAMES:
            self._set(name, _checked(name, getattr(self, name)))
        self._set("kv_heads", self.kv_heads or self.heads)
        self._set("head_dim", self.head_dim or self.hidden // self.heads)
        self._set("expert_ffn", self.expert_ffn or self.ffn)
        self._set("dense_layers", self.dense_layers if self.experts else self.layers)
        self._within("kv_heads", "heads", self.heads % self.kv_heads == 0, "does not divide")
        self._within("top_k", "experts", not self.experts or 0 < self.top_k <= self.experts)
        self._within("dense_layers", "layers", self.dense_layers <= self.layers)

    @classmethod
    @public("ModelShape.of")
    def of(cls, config: Mapping[str, object]) -> ModelShape:
        """The shape that a ``config.json`` describes. Local, O(1).

        Args:
            config: what the file holds: LlamaConfig's names, or those of ``NAMES``.

        Raises:
            SpecError: where a size is missing or is no int of 1 or more, sizes do not fit each
                other, or attention is latent (``kv_lora_rank``), which is not modelled.

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
                fix="leave kv_lora_rank out; plain attention is then counted in its place.",
            )
        plain = "n_embd" in config
        found = {name: _found(config, names) for name, names in NAMES.items()}
        if plain and found["ffn"] is None and parse_integer(width := found["hidden"]) is not None:
            found["ffn"] = 4 * (parse_integer(width) or 0)  # n_inner is null in GPT-2's own
        missing = next((name for name in NEEDED if found[name] is None), None)
        if missing is not None:
            names = " or ".join(NAMES[missing])
            fix = "the config.json of a decoder, as the Hugging Face Hub has it."
            raise SpecError(f"there is no {names}.", fix=fix)
        tied = bool(config.get("tie_word_embeddings", plain))
        given = {name: value for name, value in found.items() if value is not None}
        return cls(**given, plain=plain, tied=tied)  # type: ignore[arg-type]

    def _set(self, name: str, value: int) -> None:
        object.__setattr__(self, name, value)

    @public("ModelShape")
    def _within(self, name: str, other: str, fits: bool, how: str = "is not within") -> None:
        if fits:
            return
        fix = f"{NAMES[name][0]} and {NAMES[other][0]} as the model has them."
        raise SpecError(f"{name} {how} {other}.", fix=fix)

    @property
    def attention(self) -> int:
        """Weights of the attention of one layer."""
        biases = self.head_dim * (self.heads + 2 * self.kv_heads) + self.hidden
        matrices = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return matrices + self.plain * biases

    def feed_forward(self, width: int) -> int:
        """Weights of one feed-forward of that inner width."""
        return (2 if self.plain else 3) * self.hidden * width + self.plain * (width + self.hidden)

    @property
    def routed(self) -> int:
        """Weights of all routed experts, which ep divides."""
        layers = self.layers - self.dense_layers
        return layers * self.experts * self.feed_forward(self.expert_ffn)

    @property
    def shared(self) -> int:
        """Weights of all layers that every token meets, the router among them."""
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
    def met(self) -> float:
        """Weights of the layers that one token is multiplied with."""
        return self.shared + (self.routed * self.top_k / self.experts if self.experts else 0)

    @property
    def width(self) -> float:
        """Inner width of the feed-forwards that one token meets in a layer, on average."""
        experts = (self.top_k + self.shared_experts) * self.expert_ffn
        return (1 - self.sparse) * self.ffn + self.sparse * experts

    @property
    def sparse(self) -> float:
        """The share of the layers that have experts."""
        return 1 - self.dense_layers / self.layers


def _found(config: Mapping[str, object], names: tuple[str, ...]) -> object:
    return next((config[name] for name in names if config.get(name) is not None), None)


@public("ModelShape")
def _checked(name: str, value: object) -> int:
    least = 1 if name in NEEDED else 0
    number = parse_integer(value)
    if number is None or not least <= number <= MOST:
        fix = f"a whole number from {least} to {MOST} for {' or '.join(NAMES[name])}."
        raise SpecError(f"{name} is {value!r}.", fix=fix)
    return number
