"""What the ranks of the attention tests run. No pytest here: every child imports this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import meshkit
from examples import attention

Shape = tuple[int, int, int, int]  # batch, tokens, heads, d
Order = Literal["contiguous", "zigzag"]
Case = tuple[str, Shape, torch.dtype, float, Order]  # kind, shape, dtype, scale of the queries


def draw(shape: Shape, dtype: torch.dtype, scale: float) -> tuple[Tensor, Tensor]:
    """The whole qkv, (3, *shape), and a gradient for the whole output: equal on all ranks."""
    generator = torch.Generator().manual_seed(sum(shape))
    qkv = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    qkv[0] *= scale
    return qkv.to(dtype), torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def both_ways(attend: Callable[[Tensor], Tensor], qkv: Tensor, grad: Tensor) -> list[Tensor]:
    """What attention returns, and the gradient of its input."""
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

    plan = [meshkit.SequencePlan(shape[1], sp, order)] if order == "zigzag" else []
    mine = cut(qkv, 2), cut(grad, 1)
    found = both_ways(lambda x: attention.KINDS[kind](x, mesh, *plan), *mine)
    whole = both_ways(torchs, qkv.double(), grad.double())
    wanted = [cut(whole[0], 1), cut(whole[1], 2)]
    pairs = zip(found, wanted, strict=True)
    return [float((x.double() - y).abs().max() / y.abs().max()) for x, y in pairs]


def compare(meshes: Sequence[dict[str, Any]], cases: Sequence[Case]) -> list[list[list[float]]]:
    """For each mesh and case, how far the output and the gradient are from torch's."""
    report = []
    for sizes in meshes:
        with meshkit.build_mesh(**sizes) as mesh:
            report.append([off(mesh, case) for case in cases])
    return report


def count(sp: int, order: Order) -> dict[str, list[int]]:
    """How many blocks and pairs this rank computes, and what it sends, forward and back."""
    done = {"computed": 0, "pairs": 0, "sent": 0}
    scores, batch = attention.scores, dist.batch_isend_irecv

    def counted(*args: Any) -> Tensor:
        found = scores(*args)
        done["computed"] += 1
        done["pairs"] += found.shape[-2] * found.shape[-1]
        return found

    def sent(moves: Any) -> Any:
        done["sent"] += 1
        return batch(moves)

    attention.scores, dist.batch_isend_irecv = counted, sent
    with meshkit.build_mesh(dp=-1, sp=sp) as mesh:
        qkv = torch.randn(3, 2, 4, 3, 8, requires_grad=True)
        mixed = attention.ring(qkv, mesh, meshkit.SequencePlan(4 * sp, sp, order))
        forward = dict(done)
        mixed.sum().backward()
    return {name: [forward[name], done[name] - forward[name]] for name in done}


def see(poisoned: int) -> list[bool]:
    """Whether NaN in the slice of one sp rank is seen by the output and by the gradient here."""
    with meshkit.build_mesh(sp=4) as mesh:
        qkv = torch.randn(3, 2, 4, 3, 8)
        if mesh.coordinate["sp"] == poisoned:
            qkv[1:] = torch.nan
        mixed, grad = both_ways(lambda x: attention.ring(x, mesh), qkv, torch.ones(2, 4, 3, 8))
    return [bool(mixed.isnan().any()), bool(grad[0].isnan().any())]


def differentiate_twice() -> str:
    """The error of a second derivative, which nobody has written."""
    with meshkit.build_mesh(sp=1) as mesh:
        qkv = torch.randn(3, 1, 4, 1, 2, requires_grad=True)
        mixed = attention.ring(qkv, mesh)
        (first,) = torch.autograd.grad(mixed.square().sum(), qkv, create_graph=True)
        try:
            first.sum().backward()
        except RuntimeError as error:
            return str(error)
    return ""


def padded() -> list[float]:
    """Zigzag over 13 tokens and 3 of padding: how far the tokens here are from torch's."""
    with meshkit.build_mesh(sp=4) as mesh:
        qkv, grad = draw((2, 13, 3, 8), torch.float64, 1.0)
        shard = mesh.sequence(13, order="zigzag", pad=True)
        mine = shard.take(qkv, dim=2, fill=1e9), shard.take(grad)
        found = both_ways(lambda x: attention.ring(x, mesh, shard.plan), *mine)
        whole = both_ways(torchs, qkv, grad)
        wanted = shard.take(whole[0]), shard.take(whole[1], dim=2)
        real = shard.is_token
        return [
            float((found[0] - wanted[0])[:, real].abs().max()),
            float((found[1] - wanted[1])[:, :, real].abs().max()),
        ]
