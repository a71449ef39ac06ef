"""What the ranks of test_sequence.py run. No pytest here: every child imports this."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import meshkit

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
SHAPES = [(0, 1), (1, 2), (2, 3), (-1, 3), (-2, 4), (-3, 3)]  # dim of the sequence, number of dims


def caught(call: Callable[[], Any]) -> tuple[str, str] | None:
    """Kind and text of what a call raises."""
    try:
        call()
    except meshkit.MeshkitError as error:
        return type(error).__name__, str(error)
    return None


def whole_of(length: int, dim: int, ndim: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """A tensor whose entries are all different, the same on every rank, with strides of its own."""
    shape = [2, 3, 4, 5][:ndim]
    shape[dim] = length
    drawn = torch.randperm(torch.Size(shape).numel(), generator=torch.Generator().manual_seed(1))
    return drawn.reshape(shape[::-1]).permute(*range(ndim - 1, -1, -1)).to(dtype)


def by_index(whole: Tensor, positions: list[int], dim: int) -> Tensor:
    """The tokens at some positions, one by one; zeros beyond the end."""
    rows = [
        whole.select(dim, at) if at < whole.shape[dim] else torch.zeros_like(whole.select(dim, 0))
        for at in positions
    ]
    return torch.stack(rows, dim if dim >= 0 else whole.ndim + dim)


Cut = tuple[dict[str, Any], Any, tuple[str, ...]]  # the mesh, the axes as written, the group


def every_cut(cuts: list[Cut]) -> list[dict[str, Any]]:
    """One job for all meshes."""
    return [there_and_back(*cut) for cut in cuts]


def there_and_back(sizes: dict[str, Any], axes: Any, group: tuple[str, ...]) -> dict[str, Any]:
    """Cut and gather tensors of all kinds; the faults found, and what this rank holds."""
    faults, held = [], []
    with meshkit.build_mesh(**sizes) as mesh:
        parts = mesh.size(*group)
        for order, length in itertools.product(("contiguous", "zigzag"), (16, 13, 3, 1)):
            shard = mesh.sequence(length, axes=axes, order=order, pad=True)
            mine = shard.positions.tolist()
            held.append(mine)
            if (shard.part, shard.plan.parts) != (
                mesh.peers(*group).tolist().index(mesh.rank),
                parts,
            ):
                faults.append(("part", shard.part))
            if shard.is_token.tolist() != [at < length for at in mine]:
                faults.append(("is_token", mine))
            if shard.num_tokens != int(shard.is_token.sum()):
                faults.append(("num_tokens", shard.num_tokens))
            for dim, ndim in SHAPES:
                whole = whole_of(length, dim, ndim)
                slice_ = shard.take(whole, dim)
                if not torch.equal(slice_, by_index(whole, mine, dim)):
                    faults.append(("take", order, length, dim, ndim))
                again = shard.gather(slice_, dim)
                if not torch.equal(again, whole):
                    faults.append(("gather", order, length, dim, ndim))
    return {"faults": faults, "held": held}


def kinds() -> list[bool]:
    """Whether every dtype comes back as it was, and gathered tensors carry no gradient."""
    found = []
    with meshkit.build_mesh(dp=1, sp=2) as mesh:
        shard = mesh.sequence(7, order="zigzag", pad=True)
        for dtype in DTYPES:
            whole = whole_of(7, 1, 2, dtype)
            again = shard.gather(shard.take(whole))
            found += [again.dtype == dtype, torch.equal(again, whole)]
        carrying = shard.take(torch.ones(2, 7, requires_grad=True))
        found += [carrying.requires_grad, not shard.gather(carrying).requires_grad]
        alone = mesh.sequence(7, axes="dp", order="zigzag")
        kept = torch.ones(2, 7, requires_grad=True)
        gathered = alone.gather(kept)
        found += [not gathered.requires_grad, gathered.data_ptr() != kept.data_ptr()]
        none = mesh.sequence(7, axes=())
        found += [
            none.take(kept).data_ptr() == kept.data_ptr(),
            none.positions.tolist() == [*range(7)],
        ]
        found += [torch.equal(none.gather(kept), kept)]
    return found


def without_its_group() -> list[Any]:
    """Axes whose group was not built: all that is local works, gather says which to ask for."""
    with meshkit.build_mesh(dp=1, cp=2, sp=2) as mesh:
        shard = mesh.sequence(8, axes="sp cp")
        mine = shard.take(torch.arange(8), dim=0)
        told = caught(lambda: shard.gather(mine, dim=0))
        cp_sp = mesh.sequence(8, axes="cp sp")
        refused = [
            caught(lambda: mesh.sequence(10, axes=("cp", "sp"), order="zigzag")),
            caught(lambda: mesh.sequence(9)),
            caught(lambda: mesh.sequence(8, axes="tp")),
            caught(lambda: mesh.sequence(8, axes="sp sp")),
            caught(lambda: mesh.sequence(8, axes=3)),  # type: ignore[arg-type]
            caught(lambda: mesh.sequence(0, pad=True)),
            caught(lambda: mesh.sequence(8, order="striped")),  # type: ignore[arg-type]
        ]
    closed = [caught(lambda: mesh.sequence(8)), caught(lambda: cp_sp.gather(mine, dim=0))]
    return [mine.tolist(), told, refused, closed]


def outside() -> Any:
    """What a rank outside the mesh is told."""
    with meshkit.build_mesh(sp=2, ranks=[0, 1]) as mesh:
        return caught(lambda: mesh.sequence(8))
