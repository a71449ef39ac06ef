"""A fused weight is cut inside its brackets: each rank has its heads of q, of k and of v.

One process is the oracle: its heads are those of the ranks, one after the other.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import meshkit
from meshkit import Mesh, SpecError
from meshkit.testing import compare_meshes
from tests.pool import Pool

RANKS = 4  # of the pool
D, WIDTH = 3, 5
LAYOUT = {"*.qkv": "(qkv h/tp d) i", "*.up": "o/tp i"}
# the heads of a weight, and the sizes that say them: h is inferred, or given
CASES: list[tuple[int, dict[str, int]]] = [
    (4, {"qkv": 3, "d": D}),
    (4, {"qkv": 3, "h": 4}),
    (4, {"qkv": 3, "h": 4, "d": D}),
    (4, {"qkv": 3, "h": 4, "d": D, "o": 8, "i": WIDTH}),
    (5, {"qkv": 3, "d": D}),
    (5, {"qkv": 3, "h": 5, "d": D}),
    (1, {"qkv": 3, "d": D}),
]


def whole_weight(heads: int) -> Tensor:
    """Return the weight of one process: all heads of q, then those of k, then those of v."""
    return torch.arange(3.0 * heads * D * WIDTH).reshape(-1, WIDTH)


def part_of(whole: Tensor, heads: int, mesh: Mesh) -> Tensor:
    """Return the heads of a rank, by hand."""
    cut = whole.reshape(3, heads, D, WIDTH).tensor_split(mesh.size("tp"), 1)
    return cut[mesh.coordinate["tp"]].reshape(-1, WIDTH)


def join_and_cut(heads: int, sizes: dict[str, int]) -> None:
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        whole = {"qkv": whole_weight(heads), "up": torch.arange(8.0 * WIDTH).reshape(8, WIDTH)}
        up = whole["up"].chunk(2)[mesh.coordinate["tp"]]
        local = {"a": {"qkv": part_of(whole["qkv"], heads, mesh), "up": up}}
        joined = mesh.whole_state(local, LAYOUT, sizes=sizes)["a"]
        assert all(joined[name].equal(whole[name]) for name in whole)
        parts = mesh.local_state({"a": whole}, LAYOUT, sizes=sizes)["a"]
        assert all(parts[name].equal(local["a"][name]) for name in whole)


@pytest.mark.parametrize(("heads", "sizes"), CASES, ids=str)
def test_a_fused_weight_is_whole_and_local_as_in_one_process(
    heads: int, sizes: dict[str, int], pool: Pool
) -> None:
    pool.run(join_and_cut, heads, sizes)


def compute_heads() -> None:
    """Compute q, k and v of the heads of this rank, as a layer of one process does of all."""
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        whole, x = whole_weight(4), torch.arange(2.0 * WIDTH).reshape(2, WIDTH)
        sizes = {"qkv": 3, "d": D}
        layout = {"*.qkv": LAYOUT["*.qkv"]}
        weight = mesh.local_state({"a.qkv": whole}, layout, sizes=sizes)
        own = (x @ weight["a.qkv"].T).unflatten(1, (3, -1, D))
        every = (x @ whole.T).unflatten(1, (3, 4, D))
        at = mesh.coordinate["tp"]
        assert own.equal(every[:, :, 2 * at : 2 * at + 2])
        # GQA: 4 heads of q and 2 of k and of v have no common dim, so they are three tensors
        rows = [4 * D, 2 * D, 2 * D]
        grouped = torch.arange(8.0 * D * WIDTH).reshape(-1, WIDTH)
        names = dict(zip(("q", "k", "v"), grouped.split(rows), strict=True))
        local = mesh.local_state(names, {"[qkv]": "o/tp i"})
        q, k, v = (x @ local[name].T for name in "qkv")
        whole_q, whole_k, whole_v = (x @ names[name].T for name in "qkv")
        assert q.equal(whole_q.unflatten(1, (4, D))[:, 2 * at : 2 * at + 2].flatten(1))
        assert k.equal(whole_k.unflatten(1, (2, D))[:, at])
        assert v.equal(whole_v.unflatten(1, (2, D))[:, at])
        # groups of two heads of q, one of k and one of v, one after the other: the first dim
        groups = mesh.local_state({"w": grouped}, {"w": "(g/tp n d) i"}, sizes={"n": 4, "d": D})
        assert groups["w"].equal(grouped.chunk(2)[at])


def test_a_rank_computes_its_heads_of_one_process(pool: Pool) -> None:
    pool.run(compute_heads)


def move_fused(staged: bool) -> None:
    """Move a fused weight to another cut, and to whole copies; heads of 5 are uneven."""
    source = meshkit.build_mesh(tp=2, ranks=[0, 1])
    target = meshkit.build_mesh(dp=1, tp=3, ranks=[1, 2, 3])
    with source, target:
        for heads, right in ((6, "(qkv h/tp d) i"), (5, "(qkv h/tp d) i"), (5, "(qkv h d) i")):
            whole = whole_weight(heads)
            own = {"w": part_of(whole, heads, source)} if source.inside else None
            wanted = None
            if target.inside:
                wanted = part_of(whole, heads, target) if "/" in right else whole
            sizes = {"qkv": 3, "h": heads}
            out = {"w": torch.zeros_like(wanted)} if wanted is not None else None
            like = own if source.inside else out
            patterns = {"w": f"(qkv h/tp d) i -> {right}"}
            sync = source.transfer(patterns, to=target, like=like, staged=staged, sizes=sizes)
            got = sync(own, out=out)
            assert (got is None) == (wanted is None)
            assert got is None or got["w"].equal(wanted)


@pytest.mark.parametrize("staged", [False, True])
def test_a_transfer_moves_a_fused_weight(staged: bool, pool: Pool) -> None:
    pool.run(move_fused, staged)


def measure_norms() -> None:
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        whole = whole_weight(4)
        for call in (mesh.grad_norm, lambda *a, **o: mesh.clip_grad_norm(a[0], math.inf, **o)):
            parameter = nn.Parameter(torch.zeros_like(part_of(whole, 4, mesh)))
            parameter.grad = part_of(whole, 4, mesh)
            sizes, layout = {"qkv": 3, "d": D}, {"a.qkv": LAYOUT["*.qkv"]}
            norm = call({"a.qkv": parameter}, layout=layout, sizes=sizes)
            assert norm.item() == pytest.approx(whole.double().norm().item())
            with pytest.raises(SpecError, match="no dim heads"):
                call({"a.qkv": parameter}, layout=layout, sizes={"heads": 3})


def test_a_norm_takes_the_layout_of_a_fused_weight(pool: Pool) -> None:
    pool.run(measure_norms)


@pytest.mark.parametrize(("heads", "sizes"), CASES, ids=str)
def test_a_comparison_joins_a_fused_weight(heads: int, sizes: dict[str, int]) -> None:
    sizes = {name: sizes[name] for name in sizes if name != "o"}

    def step(mesh: Mesh) -> dict[str, Tensor]:
        return {"w": part_of(whole_weight(heads), heads, mesh)}

    layout = {"w": LAYOUT["*.qkv"]}
    assert compare_meshes(step, "tp=2", "dp=2 tp=2", layout=layout, sizes=sizes).differences == ()
    if heads > 1:
        (difference,) = compare_meshes(step, "tp=2", layout={"w": "o/tp i"}).differences
        assert difference.cause == "order"


# the sizes of a call, and what the error of every rank says
WRONG: list[tuple[Any, str]] = [
    (None, "the sizes of qkv and h and d are unknown"),
    ({"qkv": 3}, "the sizes of h and d are unknown"),
    ({"qkv": 3, "d": 7}, "18"),
    ({"qkv": 3, "h": 3, "d": D}, "18"),
    ({"qkv": 3, "d": D, "heads": 2}, "the layout has no dim heads"),
    ({"qkv": "3", "d": D}, "the size of qkv is '3'"),
    ({"qkv": 3, "d": -1}, "the size of d is -1"),
    ([3], "sizes is [3], not a mapping"),
    ({"qkv": 3, "d": D, "i": 6}, "5"),
]


def refuse_sizes() -> list[list[str]]:
    """Return the texts of both calls for each of the wrong sizes."""
    rows = []
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        whole, layout = whole_weight(4), {"*.qkv": LAYOUT["*.qkv"]}
        for sizes, _ in WRONG:
            row = []
            for call, x in (
                (mesh.whole_state, part_of(whole, 4, mesh)),
                (mesh.local_state, whole),
            ):
                with pytest.raises(meshkit.MeshkitError) as caught:
                    call({"a.qkv": x}, layout, sizes=sizes)
                row.append(str(caught.value))
            rows.append(row)
    return rows


def test_sizes_that_do_not_fit_are_refused_on_all_ranks(pool: Pool) -> None:
    results = pool.run(refuse_sizes)
    for number, (sizes, text) in enumerate(WRONG):
        texts = [rows[number] for rows in results]
        assert all(row[0] == texts[0][0] for row in texts), texts
        assert text in texts[0][0], (sizes, texts[0][0])
        assert texts[0][1].count("Fix: ") == 1
        if sizes is None:
            assert "sizes={'h': " in texts[0][0]


def move_fsdp_of_fused() -> str:
    """Move a fused weight that FSDP has cut again as the fix says, and return the error."""
    whole = torch.arange(24.0).reshape(12, 2)  # four rows each of q, k and v
    sizes, patterns = {"qkv": 3}, {"w": "(qkv h/tp) i -> (qkv h) i"}
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        local = mesh.local_state({"w": whole}, {"w": "(qkv h/tp) i"}, sizes=sizes)["w"]
        shard = local.chunk(2)[mesh.coordinate["dp"]]  # of q and k, or of k and v
        w = DTensor.from_local(shard, mesh.device_mesh("dp"), [Shard(0)])
        with pytest.raises(meshkit.MeshkitError) as info:
            mesh.transfer(patterns, to=mesh, like={"w": w}, sizes=sizes)
        like = {"w": w.full_tensor()}
        moved = mesh.transfer(patterns, to=mesh, like=like, sizes=sizes)(like)
        assert torch.equal(moved["w"], whole)
        return str(info.value)


def test_a_fused_weight_that_fsdp_cuts_again_is_refused_with_a_fix_that_works(pool: Pool) -> None:
    for text in pool.run(move_fsdp_of_fused):
        assert "w.full_tensor()" in text
        assert "qkv/dp" not in text


def move_dtensors_of_a_view() -> str:
    """Transfer a DTensor whose DeviceMesh is that of a view, by a wrong and a right pattern."""
    whole = torch.arange(16.0).reshape(4, 4)
    with meshkit.build_mesh(dp=2, tp=2) as mesh, mesh.view(x=2, y=2, order="x y") as view:
        state = {"w": distribute_tensor(whole, view.device_mesh("x y"), [Shard(0), Shard(1)])}
        with pytest.raises(meshkit.MeshkitError) as caught:
            mesh.transfer({"w": "a/tp b/dp -> a b"}, to=mesh, like=state)
        moved = mesh.transfer({"w": "a/dp b/tp -> a b"}, to=mesh, like=state)(state)
        assert moved["w"].equal(whole)
        return str(caught.value)


def test_a_dtensor_of_a_view_is_cut_as_its_pattern_says(pool: Pool) -> None:
    for text in pool.run(move_dtensors_of_a_view):
        assert "w is a DTensor with [Shard(dim=0), Shard(dim=1)] over dp tp." in text
