"""Compare two layouts of a job: the weights that each rank would fetch, the samples that it keeps.

A rank holds the layers of its stage. It holds one part of each matrix along tp, and one part of
that along the axes that shard it. Both are intervals, so a rank keeps the product of the overlaps::

    rank 1 of tp=4       ..##....
    rank 1 of tp=2       ....####        keeps 0 of 4, fetches 4
    rank 0 of dp=2       ####....        keeps 2 of 4, fetches 2

tp cuts q, k, v, gate, up and the tables of the vocabulary by rows, within which fsdp cuts again. It
cuts the output of attention and down by columns, and fsdp cuts these by rows. Norms and the router
count as cut by tp. If tp is more than the heads of keys and values, its ranks copy them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..data.batch import BatchPlan
from ..layout.layout import Layout
from ..text import GB, Floats, Ints, format_table
from .layout_cost import CostTable, axes_by_standard
from .memory import FIRST_SHARDED, PRECISIONS, SHARDS, ModelShape

MAX_SAMPLES = 10**7  # of a step that are compared


@dataclass(frozen=True)
class Moves:
    """The weights and samples that move from a layout to another one. GB are of one rank."""

    needed_gb: dict[str, float]  # by part of the state: what a rank holds afterwards, on average
    fetched_gb: dict[str, float]  # what a rank lacks of it, on average
    most_gb: dict[str, float]  # what the rank that lacks most lacks
    samples_kept: float | None  # share of the samples of step 0 that stay on their rank

    @classmethod
    def of(
        cls,
        layouts: Sequence[Layout],
        table: CostTable | None,
        batches: Sequence[BatchPlan],
        data: Sequence[Sequence[str]],
    ) -> Moves:
        """Return what moves from the first of two layouts to the second.

        Without a table of their costs, the weights are unknown, and without batches, the samples.
        ``data`` has the axes that divide the samples. Cost: O(axes x ranks + samples).
        """
        samples = share_of_samples_kept(layouts, data, batches) if batches else None
        moves = cls({}, {}, {}, samples)
        if table is None:
            return moves
        dtype, model = PRECISIONS[table.job.dtype], table.model
        for part in ("weights", "optimizer"):
            before, after = (
                Holding(
                    model, layout, cost.virtual, SHARDS.index(cost.shard) >= FIRST_SHARDED[part]
                )
                for layout, cost in zip(layouts, table.costs, strict=True)
            )
            held, kept = (
                one.common(model, after) * dtype.of_weight[part] / GB for one in (after, before)
            )
            moves.needed_gb[part] = float(held.mean())
            moves.fetched_gb[part] = float((held - kept).mean())
            moves.most_gb[part] = float((held - kept).max())
        return moves

    def draw(self, *, width: int = 80) -> str:
        """Return the moves as text."""
        rows = [
            (
                part,
                f"{self.fetched_gb[part]:.3g} of {needed:.3g} GB are fetched by a rank on average, "
                f"{self.most_gb[part]:.3g} GB at most",
            )
            for part, needed in self.needed_gb.items()
        ]
        if self.samples_kept is not None:
            kept = f"{100 * self.samples_kept:.3g} % of a step stay on their rank"
            rows.append(("samples", kept))
        return format_table(rows, width=width)


class Shard:
    """The interval of a rank in a dim that some axes cut: its index, and the number of parts."""

    def __init__(self, index: Ints, parts: int) -> None:
        self.index, self.parts = index, parts

    def within(self, inner: Shard) -> Shard:
        """Return the interval after another cut of each part."""
        return Shard(self.index * inner.parts + inner.index, self.parts * inner.parts)

    def common(self, other: Shard) -> Floats:
        """Return the length that both intervals share, of a dim of length 1."""
        begin = np.maximum(self.index * other.parts, other.index * self.parts)
        end = np.minimum((self.index + 1) * other.parts, (other.index + 1) * self.parts)
        return np.asarray(np.maximum(end - begin, 0) / (self.parts * other.parts))


class Holding:
    """The parts of the state that each rank holds."""

    def __init__(self, model: ModelShape, layout: Layout, virtual: int, is_sharded: bool) -> None:
        names = axes_by_standard(layout)

        def cut(*standard: str) -> Shard:
            axes = [axis for axis in layout.axes if any(axis in names[s] for s in standard)]
            return Shard(_index_along(layout, axes), layout.size(axes))

        self.pp, self.ep, self.tp = cut("pp"), cut("ep"), cut("tp")
        kv_parts = min(self.tp.parts, model.kv_heads)
        self.kv = Shard(self.tp.index * kv_parts // self.tp.parts, kv_parts)  # with copies
        self.shard = cut("dp", "ep", "cp", "sp") if is_sharded else cut()
        self.expert_shard = cut("dp", "cp", "sp") if is_sharded else cut()
        self.stage = _stage_of_layers(model.layers, self.pp.parts, virtual)  # (layers,)

    def common(self, model: ModelShape, other: Holding) -> Floats:
        """Return the number of weights that each rank has here and in another holding."""
        layers = np.zeros((self.pp.parts, other.pp.parts))
        np.add.at(layers, (self.stage, other.stage), 1 / model.layers)
        has_table = [
            [pp.index == 0, pp.index == pp.parts - 1] for pp in (self.pp, other.pp)
        ]  # of each holding, whether a rank has the embedding, and the head
        if model.tied:
            has_table = [[embedding | head] for embedding, head in has_table]
        tables = sum((a & b).astype(np.int64) for a, b in zip(*has_table, strict=True))
        width = 3 - model.plain  # matrices of a feed-forward, of which one is cut by columns
        attention = model.attention * model.layers
        head = attention / (2 * (model.heads + model.kv_heads))  # q, k, v or the output of one
        by_columns = head * model.heads + (model.shared - attention) / width
        kv = head * 2 * model.kv_heads
        rows = self.tp.within(self.shard).common(other.tp.within(other.shard))
        columns = self.tp.common(other.tp) * self.shard.common(other.shard)
        kv_rows = self.kv.within(self.shard).common(other.kv.within(other.shard))
        shared = (model.shared - by_columns - kv) * rows + by_columns * columns + kv * kv_rows
        own, theirs = (part.tp.within(part.expert_shard) for part in (self, other))
        rows_of_experts = own.common(theirs)
        columns_of_experts = self.tp.common(other.tp) * self.expert_shard.common(other.expert_shard)
        routed = (1 - 1 / width) * rows_of_experts + columns_of_experts / width
        routed = routed * self.ep.common(other.ep) * model.routed
        of_layers = layers[self.pp.index, other.pp.index] * (shared + routed)
        return np.asarray(of_layers + rows * tables * model.embedding)


def share_of_samples_kept(
    layouts: Sequence[Layout], data: Sequence[Sequence[str]], batches: Sequence[BatchPlan]
) -> float:
    """Return the share of the samples of step 0 that stay on their rank, over all ranks.

    ``data`` has the axes of each layout that divide the samples. Cost: O(samples + ranks).
    """
    period = math.lcm(*(batch.micro_batch * batch.dp for batch in batches))
    samples = np.arange(min(period, *(batch.global_batch for batch in batches), MAX_SAMPLES))
    owner, new_owner = (samples // batch.micro_batch % batch.dp for batch in batches)
    pairs, counts = np.unique(owner * batches[1].dp + new_owner, return_counts=True)
    index, new_index = map(_index_along, layouts, data)
    pair_of_rank = index * batches[1].dp + new_index
    found = np.minimum(np.searchsorted(pairs, pair_of_rank), len(pairs) - 1)
    kept = np.where(pairs[found] == pair_of_rank, counts[found], 0)
    return float(kept.mean() * batches[1].dp / len(samples))


def _index_along(layout: Layout, axes: Sequence[str]) -> Ints:
    """Return the index of each rank along some axes, as one: int64 (num_ranks,)."""
    groups = layout.groups(tuple(axes))  # (num_groups, group_size)
    index = np.empty(layout.num_ranks, np.int64)
    index[groups] = np.arange(groups.shape[1])
    return index


def _stage_of_layers(layers: int, pp: int, virtual: int) -> Ints:
    """Return the stage of each layer; embedding and head count as layers if pp divides so alone."""
    ends = layers % pp != 0
    positions = np.arange(ends, layers + ends)
    return np.asarray(positions * pp * virtual // (layers + 2 * ends) % pp)
