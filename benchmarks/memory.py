"""The memory that torch allocates for a small decoder on a CPU, beside that of the cost model.

A dispatch mode counts the bytes of all storages that are alive. ``activations`` are their maximum
over a forward and a backward, without weights and gradients. The decoder has the shapes of Llama;
its norm is ``LayerNorm`` without a bias, since torch has a kernel of it for a CPU that keeps what
RMSNorm has to keep. In bf16 gradients, optimizer and a copy of the weights are fp32.

``cheap`` and ``full`` use ``torch.utils.checkpoint`` and a loss that reuses its softmax. ``none``
is a plain program with ``cross_entropy``. ``python -m benchmarks memory`` writes the table into
``results/memory.md``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import checkpoint

from meshkit.plan.memory import RECOMPUTE, ModelShape, ParallelConfig, bytes_per_rank

from .report import markdown_table

TABLE = Path(__file__).parent / "results" / "memory.md"
TORCH = {"bf16": torch.bfloat16, "fp32": torch.float32}
PARTS = ("weights", "gradients", "optimizer", "activations")
SHAPES = {
    "wide": ModelShape(256, layers=4, heads=8, vocab=1024, ffn=704, kv_heads=4),
    "deep": ModelShape(128, layers=12, heads=4, vocab=512, ffn=512, kv_heads=4),
    "large vocabulary": ModelShape(192, layers=2, heads=6, vocab=4096, ffn=512, kv_heads=2),
}


class Case(NamedTuple):
    """A decoder, and how it is trained."""

    shape: str  # a name of ``SHAPES``
    dtype: str
    recompute: str
    batch: int = 1
    seq: int = 512


CASES = [
    Case(shape, dtype, recompute) for shape in SHAPES for dtype in TORCH for recompute in RECOMPUTE
]


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes of all storages that operations made and that are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = self.state = 0  # ``state`` is left out of the peak
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        out = func(*args, **(kwargs or {}))
        for value in tree_iter(out):
            if isinstance(value, Tensor):
                self._add(value.untyped_storage())
        self.peak = max(self.peak, self.live - self.state)
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.live += storage.nbytes()
            weakref.finalize(storage, self._remove, key)

    def _remove(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


class SoftmaxLoss(torch.autograd.Function):
    """The mean cross-entropy, whose softmax becomes the gradient in its own memory."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:  # noqa: ANN401
        """Return the loss of logits, (tokens, vocab)."""
        weights = logits.to(torch.float32, copy=True)
        weights -= weights.amax(-1, keepdim=True)
        chosen = weights.gather(-1, targets[:, None])
        total = weights.exp_().sum(-1, keepdim=True)
        weights /= total
        ctx.save_for_backward(weights, targets)
        ctx.dtype = logits.dtype
        return (total.log() - chosen).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        """Return the gradient of the logits."""
        softmax, targets = ctx.saved_tensors
        softmax.scatter_add_(-1, targets[:, None], -torch.ones(len(targets), 1))
        softmax *= gradients[0] / len(targets)
        return softmax.to(ctx.dtype), None


class Layer(nn.Module):
    """A layer of a decoder, without positions."""

    def __init__(self, shape: ModelShape, recompute: str) -> None:
        super().__init__()
        dim, self.recompute, self.dim = shape.hidden, recompute, shape.head_dim
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.norm1, self.norm2 = (nn.LayerNorm(dim, bias=False) for _ in range(2))
        self.q, self.k, self.v = (nn.Linear(dim, size, bias=False) for size in (q, kv, kv))
        self.o, self.down = nn.Linear(q, dim, bias=False), nn.Linear(shape.ffn, dim, bias=False)
        self.gate, self.up = (nn.Linear(dim, shape.ffn, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream, (batch, tokens, hidden), after the layer."""
        out: Tensor = again(self._compute, x) if self.recompute == "full" else self._compute(x)
        return out

    def _compute(self, x: Tensor) -> Tensor:
        run: Callable[..., Any] = (
            again if self.recompute == "cheap" else lambda function, *args: function(*args)
        )
        q, k, v = run(self._project, x)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        out: Tensor = x + run(self._combine, *run(self._widen, x))
        return out

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.norm1(x)
        heads = (part(y).unflatten(-1, (-1, self.dim)) for part in (self.q, self.k, self.v))
        return tuple(part.transpose(1, 2) for part in heads)

    def _widen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.norm2(x)
        return self.gate(y), self.up(y)

    def _combine(self, gate: Tensor, up: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(gate) * up)
        return out


def again(function: Callable[..., Any], *args: Tensor) -> Any:  # noqa: ANN401
    """Return the values of a function that backward computes again."""
    return checkpoint(function, *args, use_reentrant=False)


@cache
def measure(case: Case) -> dict[str, int]:
    """Return the bytes of each part that torch allocates."""
    shape, dtype = SHAPES[case.shape], TORCH[case.dtype]
    tokens = torch.randint(shape.vocab, (case.batch, case.seq))
    with LiveBytes() as memory:
        layers = [Layer(shape, case.recompute) for _ in range(shape.layers)]
        head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        ends = nn.LayerNorm(shape.hidden, bias=False), head
        model = nn.Sequential(nn.Embedding(shape.vocab, shape.hidden), *layers, *ends).to(dtype)
        weights = memory.live
        copies = [p.detach().float() if dtype != torch.float32 else p for p in model.parameters()]
        optimizer = torch.optim.AdamW(copies)
        before = memory.peak = memory.state = memory.live

        def keep(weight: Tensor, copy: Tensor) -> None:
            gradient, weight.grad = weight.grad, None
            copy.grad = gradient if gradient is None else gradient.float()
            memory.state += 4 * copy.numel()

        for weight, copy in zip(model.parameters(), copies, strict=True):
            weight.register_post_accumulate_grad_hook(partial(keep, copy=copy))  # type: ignore[no-untyped-call]
        memory.peak = 0
        logits = model(tokens).flatten(0, 1)
        loss_of = F.cross_entropy if case.recompute == "none" else SoftmaxLoss.apply
        loss = loss_of(logits.float() if case.recompute == "none" else logits, tokens.flatten())
        del logits
        loss.backward()
        del loss
        activations, gradients = memory.peak, memory.live - before
        optimizer.step()
        states = memory.live - before - gradients
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": states + before - weights,
        "activations": activations,
    }


def predict(case: Case) -> dict[str, float]:
    """Return the bytes of each part that the cost model predicts."""
    recompute = RECOMPUTE.index(case.recompute)
    config = ParallelConfig(1, 1, 1, 1, 1, 1, micro_batch=case.batch, recompute=recompute)
    parts = bytes_per_rank(SHAPES[case.shape], config, case.batch, case.seq, case.dtype)
    return {part: float(parts[part]) for part in PARTS}


def table() -> str:
    """Return the table in Markdown: a row for each decoder and dtype."""
    rows: dict[tuple[str, str], list[str]] = {}
    for case in CASES:
        measured, predicted = measure(case), predict(case)
        row = rows.setdefault((case.shape, case.dtype), [])
        parts = PARTS if not row else PARTS[3:]  # all but activations are the same
        row += [
            f"{measured[part] / 1e6:.2f}, {predicted[part] / measured[part] - 1:+.1%}"
            for part in parts
        ]
    head = ["decoder", "dtype", *PARTS[:3], *(f"activations, {way}" for way in RECOMPUTE)]
    return markdown_table([head, *([*key, *row] for key, row in rows.items())]) + "\n"


def update_page() -> str:
    """Write the table, and return it."""
    TABLE.write_text(text := table())
    return text
