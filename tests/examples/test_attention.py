"""Attention over slices of a sequence is torch's own over the whole, forward and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import meshkit
from examples import attention
from tests.newer_torch import needs_order

# with order="sp dp" the ranks of an sp group are not neighbours, and no place is a global rank
MESHES = [{"sp": 4}, {"dp": 2, "sp": 2}, {"dp": 2, "sp": 2, "order": "sp dp"}, {"dp": 4, "sp": 1}]
SHAPES = [(2, 16, 4, 8), (1, 4, 8, 1), (3, 64, 4, 5)]  # 4 tokens over sp=4: one each
ODD = [(2, 16, 3, 8), (1, 8, 1, 2)]  # heads that no sp divides
PAIRED = [SHAPES[0], SHAPES[2], (1, 8, 8, 1)]  # tokens that two chunks a rank divide
Shape = tuple[int, int, int, int]  # batch, tokens, heads, d
Order = Literal["contiguous", "zigzag"]
Case = tuple[str, Shape, torch.dtype, float, Order]  # kind, shape, dtype, scale of the queries
CASES: list[tuple[Case, float]] = [  # and how far off it may be
    *((("ulysses", shape, torch.float64, 1.0, "contiguous"), 1e-12) for shape in SHAPES),
    *((("ulysses", shape, torch.float64, 1.0, "zigzag"), 1e-12) for shape in PAIRED),
    *((("ring", shape, torch.float64, 1.0, "contiguous"), 1e-12) for shape in SHAPES + ODD),
    *((("ring", shape, torch.float64, 1.0, "zigzag"), 1e-12) for shape in PAIRED + ODD),
    # exp(scores) alone would overflow
    (("ring", SHAPES[-1], torch.float64, 1000.0, "contiguous"), 1e-9),
    (("ring", SHAPES[-1], torch.float64, 1000.0, "zigzag"), 1e-9),
    (("ring", SHAPES[-1], torch.float32, 1.0, "zigzag"), 1e-5),
    # gradients travel in float32, in other sizes than keys and values
    (("ring", SHAPES[-1], torch.bfloat16, 1.0, "contiguous"), 2e-2),
    (("ring", SHAPES[-1], torch.bfloat16, 1.0, "zigzag"), 2e-2),
]


def draw(shape: Shape, dtype: torch.dtype, scale: float) -> tuple[Tensor, Tensor]:
    """The whole qkv, (3, *shape), and a gradient for the whole output: equal on all ranks."""
    generator = torch.Generator().manual_seed(sum(shape))
    qkv = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    qkv[0] *= scale
    return qkv.to(dtype), torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def both_ways(attend: Callable[[Tensor], Tensor], qkv: Tensor, grad: Tensor) -> list[Tensor]:
    """Return the output of attention, and the gradient of its input."""
    qkv = qkv.clone().requires_grad_()
    mixed = attend(qkv)
    mixed.backward(grad)
    assert qkv.grad is not None
    return [mixed.detach(), qkv.grad]


def torchs(qkv: Tensor) -> Tensor:
    """Torch's own attention over the whole sequence."""
    q, k, v = qkv.transpose(2, 3)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def off(mesh: meshkit.Mesh, case: Case) -> list[float]:
    """How far this rank's slice is from torch's in float64, by the largest number in each."""
    kind, shape, dtype, scale, order = case
    qkv, grad = draw(shape, dtype, scale)
    sp, here = mesh.size("sp"), mesh.coordinate["sp"]
    count = 2 * sp if order == "zigzag" else sp
    picked = [here, count - 1 - here] if order == "zigzag" else [here]

    def cut(x: Tensor, dim: int) -> Tensor:
        chunks = x.chunk(count, dim)
        return torch.cat([chunks[number] for number in picked], dim)

    plan = meshkit.SequencePlan(shape[1], sp, order)
    mine = cut(qkv, 2), cut(grad, 1)
    results = both_ways(lambda x: attention.KINDS[kind](x, mesh, plan), *mine)
    whole = both_ways(torchs, qkv.double(), grad.double())
    wanted = [cut(whole[0], 1), cut(whole[1], 2)]
    pairs = zip(results, wanted, strict=True)
    return [float((x.double() - y).abs().max() / y.abs().max()) for x, y in pairs]


def compare(meshes: Sequence[dict[str, Any]], cases: Sequence[Case]) -> list[list[list[float]]]:
    """For each mesh and case, how far the output and the gradient are from torch's."""
    report = []
    for sizes in meshes:
        with meshkit.build_mesh(**sizes) as mesh:
            report.append([off(mesh, case) for case in cases])
    return report


@needs_order
def test_it_is_torchs_attention_over_the_whole_sequence() -> None:
    cases, limits = zip(*CASES, strict=True)
    for rank in meshkit.spawn(compare, 4, (MESHES, cases), timeout=120):
        for results in rank:
            assert results == [pytest.approx([0, 0], abs=limit) for limit in limits]


def padded() -> list[float]:
    """Zigzag over 13 tokens and 3 of padding: how far the tokens here are from torch's."""
    with meshkit.build_mesh(sp=4) as mesh:
        qkv, grad = draw((2, 13, 3, 8), torch.float64, 1.0)
        shard = mesh.sequence(13, order="zigzag", pad=True)
        mine = shard.take(qkv, dim=2, fill=1e9), shard.take(grad)
        results = both_ways(lambda x: attention.ring(x, mesh, shard.plan), *mine)
        whole = both_ways(torchs, qkv, grad)
        wanted = shard.take(whole[0]), shard.take(whole[1], dim=2)
        real = shard.is_token
        return [
            float((results[0] - wanted[0])[:, real].abs().max()),
            float((results[1] - wanted[1])[:, :, real].abs().max()),
        ]


def test_padding_is_not_seen() -> None:
    for output, gradient in meshkit.spawn(padded, 4, timeout=120):
        assert output < 1e-12
        assert gradient < 1e-12


def see(poisoned: int) -> list[bool]:
    """Whether NaN in the slice of one sp rank is seen by the output and by the gradient here."""
    with meshkit.build_mesh(sp=4) as mesh:
        qkv = torch.randn(3, 2, 4, 3, 8)
        if mesh.coordinate["sp"] == poisoned:
            qkv[1:] = torch.nan
        plan = meshkit.SequencePlan(16, 4)
        mixed, grad = both_ways(
            lambda x: attention.ring(x, mesh, plan), qkv, torch.ones(2, 4, 3, 8)
        )
    return [bool(mixed.isnan().any()), bool(grad[0].isnan().any())]


def test_what_is_in_the_future_is_not_seen() -> None:
    """Not even a NaN, which a weight of zero would let through."""
    reported = meshkit.spawn(see, 4, (2,), timeout=120)
    assert reported == [[False, False], [False, False], [True, True], [True, True]]
