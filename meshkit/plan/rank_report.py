"""The report of one rank, as data and as text: coordinate, samples, tokens and seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data.batch import BatchPlan, resolve_data_axes
from ..data.seeds import stream_seed
from ..layout.axes import Axes
from ..layout.layout import Layout
from ..layout.position import group_rank
from ..layout.sequence import SequencePlan, sequence_axes
from ..layout.topology import Topology
from ..text import format_sizes, format_table, summarize


@dataclass(frozen=True)
class RankReport:
    """The report of one rank, from :func:`rank_reports`. A field is None if it is unknown."""

    rank: int
    coordinate: Mapping[str, int]
    node: int | None
    slot: int | None  # index among the ranks of its node
    axes: tuple[dict[str, Any], ...]  # a row for each axis
    samples: range | None  # index of the first sample of each micro batch in step 0
    micro_batch: int | None  # samples
    tokens: tuple[range, ...] | None  # sequence positions
    seed: int | None  # of a stream that is equal on all ranks

    def as_dict(self) -> dict[str, object]:
        """Return the report in JSON types."""
        size = self.micro_batch or 0
        samples = self.samples and [[*range(first, first + size)] for first in self.samples]
        tokens = self.tokens and [[part[0], part[-1]] for part in self.tokens]
        lists = {"axes": [*self.axes], "samples": samples, "tokens": tokens}
        report = {**vars(self), "coordinate": dict(self.coordinate), **lists}
        del report["micro_batch"]
        return report


def rank_reports(
    layout: Layout,
    ranks: Iterable[int],
    topology: Topology | None = None,
    batch: BatchPlan | None = None,
    sequence: SequencePlan | None = None,
    seed: int | None = None,
    *,
    data: Axes | None = None,
) -> Iterator[RankReport]:
    """Yield the reports of some ranks."""
    axes = () if batch is None else resolve_data_axes(data, layout.sizes)
    for rank in ranks:
        coordinate = layout.coordinate(rank)
        node = slot = samples = None
        if topology is not None:
            node = int(topology.node_of(rank))
            slot = int(np.searchsorted(topology.ranks_of(node), rank))
        if batch is not None:  # of step 0, as BatchPlan.samples
            start, size = group_rank(layout, rank, axes) * batch.micro_batch, batch.micro_batch
            samples = range(start, batch.global_batch, batch.dp * size)
        yield RankReport(
            rank,
            coordinate,
            node,
            slot,
            tuple(_axis_row(layout, rank, axis, coordinate[axis], seed) for axis in layout.axes),
            samples,
            None if batch is None else batch.micro_batch,
            None if sequence is None else sequence.ranges(sequence_part(layout, rank)),
            None if seed is None else stream_seed(seed),
        )


def sequence_part(layout: Layout, rank: int) -> int:
    """Return the part of a sequence that a rank holds, as :meth:`meshkit.Mesh.sequence` cuts it."""
    return group_rank(layout, rank, sequence_axes(layout))


def format_rank_table(
    layout: Layout, topology: Topology | None = None, *, width: int = 80, ascii: bool = False
) -> str:
    """Return a table of all ranks with node, slot and coordinate. Cost: O(ranks log ranks)."""
    ranks = layout.grid.ravel()
    columns = [ranks.tolist(), *[["-"] * len(ranks)] * 2, *layout.coordinates(ranks).T.tolist()]
    if topology is not None:
        nodes = topology.node_of(np.arange(topology.world_size))
        slots = np.empty_like(nodes)
        slots[np.argsort(nodes, kind="stable")] = np.concatenate([*map(np.arange, topology.sizes)])
        columns[1:3] = [nodes[ranks].tolist(), slots[ranks].tolist()]
    rows = [[*map(str, row)] for row in zip(*columns, strict=True)]
    return format_table(rows, ["rank", "node", "slot", *layout.axes], width=width, ascii=ascii)


def format_rank(
    report: RankReport, layout: Layout, job: str, *, width: int = 80, ascii: bool = False
) -> str:
    """Return the report of one rank as text."""
    seeded = report.seed is not None
    header = ["axis", "index", "before", "after", "group", *["seed"] * seeded]
    rows = [
        [
            row["axis"],
            f"{row['index']} of {layout.sizes[row['axis']]}",
            *("-" if rank is None else str(rank) for rank in (row["before"], row["after"])),
            summarize(row["peers"]),
            *[str(row["seed"])] * seeded,
        ]
        for row in report.axes
    ]
    drawn = format_table(rows, header, width=width, ascii=ascii)
    facts = format_table([*_facts(report, layout)], width=width)
    return "\n\n".join([f"rank {report.rank} of {job}", facts, drawn])


def _axis_row(layout: Layout, rank: int, axis: str, index: int, seed: int | None) -> dict[str, Any]:
    """Return index, group, neighbors and seed along an axis; None if there are none."""
    is_alone = layout.sizes[axis] == 1
    return {
        "axis": axis,
        "index": index,
        "peers": layout.peers(rank, axis).tolist(),
        "before": None if is_alone else layout.neighbor(rank, axis, -1),
        "after": None if is_alone else layout.neighbor(rank, axis, 1),
        "seed": None if seed is None else stream_seed(seed, **{axis: index}),
    }


def _facts(report: RankReport, layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield name and text of each fact that belongs to the rank, not to one axis."""
    yield "coordinate", format_sizes(report.coordinate)
    if report.node is not None:
        yield "node", f"{report.node}, slot {report.slot}"
    if report.samples is not None:
        more = (report.micro_batch or 0) - 1
        steps = summarize(report.samples, lambda n: f"{n}-{n + more}" if more > 0 else f"{n}")
        yield "samples", f"{steps} in step 0, a range for each micro batch"
    if report.tokens is not None:
        axes = " ".join(sequence_axes(layout))
        positions = ", ".join(f"{part[0]}-{part[-1]}" for part in report.tokens)
        cut = f"{positions} of each sequence, which is cut over {axes}"
        yield "tokens", cut if axes else "all positions; no axis cuts the sequence"
    if report.seed is not None:
        yield "seed", f"{report.seed} on all ranks; by axis below"
