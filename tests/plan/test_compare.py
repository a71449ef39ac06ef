"""The weights and samples that move between two layouts, counted again in grids and by loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshkit import BatchPlan, Layout
from meshkit.plan.compare import Holding, share_of_samples_kept
from meshkit.plan.memory import ModelShape

law = settings(deadline=None, max_examples=60, database=None)

DENSE = ModelShape(64, layers=8, heads=8, vocab=100, ffn=96, kv_heads=4)
SPARSE = ModelShape(64, 8, 8, 100, 96, 4, experts=8, top_k=2, expert_ffn=32, tied=True)
CELLS = 32  # rows and columns of the grid for a matrix; a divisor of no cut is larger

NAMES = (("pp", "dp", "ep", "cp", "tp"), ("tp", "pp", "cp", "ep", "dp"))


@st.composite
def meshes(draw: st.DrawFn) -> Layout:
    """Draw a layout of 16 ranks."""
    sizes = [1, 1, 1, 1, 1]
    for dim in draw(st.lists(st.integers(0, 4), min_size=4, max_size=4)):
        sizes[dim] *= 2
    axes = draw(st.sampled_from(NAMES))
    chosen = {axis: size for axis, size in zip(axes, sizes, strict=True) if size <= 8}
    left = 16 // int(np.prod([*chosen.values()]))
    return Layout(chosen | ({"fsdp": left} if left > 1 else {}))


def part(cells: int, index: int, parts: int) -> slice:
    """The cells of one of equal parts."""
    return slice(index * cells // parts, (index + 1) * cells // parts)


def held(model: ModelShape, layout: Layout, rank: int, *, shard: bool) -> dict[str, NDArray[Any]]:
    """The cells that a rank holds of each matrix, as a grid of 0 and 1."""
    at = layout.coordinate(rank)
    sizes = {axis: layout.sizes.get(axis, 1) for axis in ("pp", "ep", "tp")}

    def grid(axes: tuple[str, ...], *, by_columns: bool, parts: int = sizes["tp"]) -> NDArray[Any]:
        index, count = 0, 1
        for axis in layout.axes if shard else ():
            if axis in axes:
                index, count = index * layout.sizes[axis] + at[axis], count * layout.sizes[axis]
        cells = np.zeros((CELLS, CELLS))
        mine = part(CELLS, at["tp"] // (sizes["tp"] // parts), parts)
        if by_columns:
            cells[part(CELLS, index, count), mine] = 1
        else:
            rows = np.arange(CELLS)[mine]
            cells[rows[part(len(rows), index, count)]] = 1
        return cells

    dense, routed = ("dp", "fsdp", "ep", "cp"), ("dp", "fsdp", "cp")
    first, last = at["pp"] == 0, at["pp"] == sizes["pp"] - 1
    grids: dict[str, NDArray[Any]] = {}
    if first or (last and model.tied):
        grids["embedding"] = grid(dense, by_columns=False)
    if last and not model.tied:
        grids["head"] = grid(dense, by_columns=False)
    for layer in range(model.layers)[part(model.layers, at["pp"], sizes["pp"])]:
        grids[f"{layer} rows"] = grid(dense, by_columns=False)
        grids[f"{layer} columns"] = grid(dense, by_columns=True)
        kv_parts = min(sizes["tp"], model.kv_heads)  # two ranks of tp=8 have the same head
        grids[f"{layer} kv"] = grid(dense, by_columns=False, parts=kv_parts)
        for expert in range(model.experts)[part(model.experts, at["ep"], sizes["ep"])]:
            grids[f"{layer} expert rows {expert}"] = grid(routed, by_columns=False)
            grids[f"{layer} expert columns {expert}"] = grid(routed, by_columns=True)
    return grids


def weights_of(model: ModelShape, kind: str) -> float:
    """The weights of one kind of matrices of a layer, or of an expert in it."""
    output = model.hidden * model.head_dim * model.heads
    columns = output + (model.shared / model.layers - model.attention) / 3
    kv = model.hidden * model.head_dim * 2 * model.kv_heads
    one_expert = model.feed_forward(model.expert_ffn) if model.experts else 0
    if kind in ("embedding", "head"):
        return model.embedding
    if "expert" in kind:
        return one_expert / 3 if "columns" in kind else one_expert * 2 / 3
    if "kv" in kind:
        return kv
    return columns if "columns" in kind else model.shared / model.layers - columns - kv


@law
@given(meshes(), meshes(), st.booleans(), st.booleans(), st.sampled_from([DENSE, SPARSE]))
@example(Layout(dp=2, tp=8), Layout(dp=4, tp=4), False, True, DENSE)  # copies of kv heads
def test_common_weights_again_in_grids(
    before: Layout, after: Layout, shard: bool, new_shard: bool, model: ModelShape
) -> None:
    found = Holding(model, before, 1, shard).common(model, Holding(model, after, 1, new_shard))
    for rank in range(16):
        old = held(model, before, rank, shard=shard)
        new = held(model, after, rank, shard=new_shard)
        expected = sum(
            weights_of(model, kind) * float((old[kind] * new[kind]).mean())
            for kind in old.keys() & new.keys()
        )
        assert found[rank] == pytest.approx(expected)


def test_interleaved_stages_deal_the_layers_in_turn() -> None:
    one, other = (Holding(DENSE, Layout(pp=2, dp=1), virtual, False) for virtual in (1, 2))
    assert one.stage.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert other.stage.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    ends = ModelShape(64, layers=6, heads=8, vocab=100, ffn=96)  # 8 with embedding and head
    assert Holding(ends, Layout(pp=4, dp=1), 1, False).stage.tolist() == [0, 1, 1, 2, 2, 3]


@law
@given(meshes(), meshes(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]))
def test_samples_kept_again_by_loops(before: Layout, after: Layout, micro: int, new: int) -> None:
    layouts = before, after
    data = [[a for a in layout.axes if a in ("dp", "fsdp", "ep")] for layout in layouts]
    batches = [
        BatchPlan.solve(dp=layout.size(axes), global_batch=64, micro_batch=size)
        for layout, axes, size in zip(layouts, data, (micro, new), strict=True)
    ]
    kept = total = 0
    for rank in range(16):
        one, other = (
            {
                int(sample)
                for sample in batch.samples(
                    0, layout.peers(rank, axes).tolist().index(rank)
                ).ravel()
            }
            for layout, axes, batch in zip(layouts, data, batches, strict=True)
        )
        kept, total = kept + len(one & other), total + len(other)
    assert share_of_samples_kept(layouts, data, batches) == pytest.approx(kept / total)
