"""About: all that follows for one rank from the grid it is in, as data and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from .batch import BatchPlan
from .draw.table import format_items, format_table
from .layout import Layout
from .seats import Ints
from .sequence import SequencePlan
from .streams import stream_seed
from .topology.topology import Topology
from .words import format_range, format_sizes, summarize

SEQUENCE = ("cp", "sp")  # the axes that divide a sequence, those of them that are present


@dataclass(frozen=True)
class AxisOf:
    """One axis as a rank sees it.

    Attributes:
        axis: its name.
        index: the coordinate of the rank.
        peers: the ranks of its group in order, itself among them.
        before: the neighbour one index lower, around the end; None where the rank is alone.
        after: the neighbour one index higher.
        seed: of a stream that varies along this axis alone; None where no seed was given.
    """

    axis: str
    index: int
    peers: tuple[int, ...]
    before: int | None
    after: int | None
    seed: int | None


@dataclass(frozen=True)
class About:
    """One rank. Made by :func:`abouts`.

    Attributes:
        rank: which.
        coordinate: axis name to index.
        node: on which node it sits; None where nodes are not known.
        slot: its place among the ranks of that node, from 0; None likewise.
        axes: what it sees along each axis.
        samples: the first sample of each micro batch of step 0, or None where no batch was given.
        micro_batch: how many samples follow from each of them, itself among them; or None.
        tokens: the runs of positions of a sequence that it holds, or None likewise.
        seed: of a stream that is the same on all ranks, or None likewise.
    """

    rank: int
    coordinate: Mapping[str, int]
    node: int | None
    slot: int | None
    axes: tuple[AxisOf, ...]
    samples: range | None
    micro_batch: int | None
    tokens: tuple[range, ...] | None
    seed: int | None

    def as_dict(self) -> dict[str, object]:
        """All of it as what JSON can hold: every sample; of a run of tokens its first and last."""
        axes = [{**vars(axis), "peers": list(axis.peers)} for axis in self.axes]
        size = self.micro_batch or 0
        samples = self.samples and [[*range(first, first + size)] for first in self.samples]
        tokens = self.tokens and [
            [format_range[0], format_range[-1]] for format_range in self.tokens
        ]
        more = {"axes": axes, "samples": samples, "tokens": tokens}
        said = {**vars(self), "coordinate": dict(self.coordinate), **more}
        del said["micro_batch"]
        return said


def abouts(
    layout: Layout,
    ranks: Iterable[int],
    topology: Topology | None = None,
    batch: BatchPlan | None = None,
    sequence: SequencePlan | None = None,
    seed: int | None = None,
) -> Iterator[About]:
    """What is to be said of some ranks. Pure, O(axes x size) each, and O(size of a node).

    Args:
        layout: the grid.
        ranks: of whom to say it.
        topology: where the ranks sit, or None.
        batch: a plan over the axis dp, or None.
        sequence: a plan whose parts are the coordinates along cp and sp, or None.
        seed: the seed of the job, or None.

    Raises:
        CoordinateError: for a rank that is not in the grid, or not in the topology.

    Example:
        >>> [about.coordinate for about in abouts(Layout(dp=2, tp=2), [0, 3])]
        [{'dp': 0, 'tp': 0}, {'dp': 1, 'tp': 1}]
    """
    for rank in ranks:
        here = layout.coordinate(rank)
        node, slot = (None, None) if topology is None else _place(topology, rank)
        yield About(
            rank,
            here,
            node,
            slot,
            tuple(_axis(layout, rank, axis, here[axis], seed) for axis in layout.axes),
            None if batch is None else _samples(batch, here["dp"]),
            None if batch is None else batch.micro_batch,
            None if sequence is None else sequence.ranges(part_of(layout, here)),
            None if seed is None else stream_seed(seed),
        )


def part_of(layout: Layout, coordinate: Mapping[str, int]) -> int:
    """Which part of a sequence a coordinate holds: its index along cp and sp, the last fastest.

    Example:
        >>> part_of(Layout(cp=2, sp=4), {"cp": 1, "sp": 2})
        6
    """
    part = 0
    for axis in sequence_axes(layout):
        part = part * layout.sizes[axis] + coordinate[axis]
    return part


def sequence_axes(layout: Layout) -> tuple[str, ...]:
    """The axes of a grid that divide a sequence: those of cp and sp that it has."""
    return tuple(axis for axis in SEQUENCE if axis in layout.axes)


def ranks_text(
    layout: Layout, topology: Topology | None = None, *, width: int = 80, ascii: bool = False
) -> str:
    """All ranks as text, a row each: where each of them sits. O(ranks log ranks).

    Args:
        layout: the grid.
        topology: where the ranks sit, or None.
        width: as for :func:`about_text`, and so is ``ascii``.
        ascii: whether to draw with ASCII characters only.

    Example:
        >>> print(ranks_text(Layout(dp=2), Topology.even(2, nodes=2), ascii=True))
        rank  node  slot  dp
        ----  ----  ----  --
           0     0     0   0
           1     1     0   1
    """
    ranks = layout.grid.ravel()
    unknown = ["-"] * len(ranks)
    place = [unknown, unknown] if topology is None else _places(topology, ranks)
    columns = [_words(ranks), *place, *map(_words, layout.coordinates(ranks).T)]
    header = ["rank", "node", "slot", *layout.axes]
    return format_table(header, [*zip(*columns, strict=True)], width=width, ascii=ascii)


def _places(topology: Topology, ranks: Ints) -> list[list[str]]:
    """The node of each rank, and its place among the ranks there, the lowest first."""
    every = topology.node_of(np.arange(topology.world_size))
    slots = np.empty_like(every)
    slots[np.argsort(every, kind="stable")] = np.concatenate([*map(np.arange, topology.sizes)])
    return [_words(every[ranks]), _words(slots[ranks])]


def _words(numbers: Ints) -> list[str]:
    return [str(number) for number in numbers.tolist()]


def about_text(
    about: About, layout: Layout, job: str, *, width: int = 80, ascii: bool = False
) -> str:
    """One rank as text. Pure.

    Args:
        about: what there is to say.
        layout: the grid.
        job: the grid and its nodes in words, for the first line.
        width: columns to fit into. At least 40 are used; a number is never cut.
        ascii: whether to draw with ASCII characters only.

    Returns:
        Lines without a final newline.
    """
    seeded = about.seed is not None
    header = ["axis", "index", "before", "after", "group", *["seed"] * seeded]
    rows = [_row(axis, layout.sizes[axis.axis]) for axis in about.axes]
    drawn = format_table(header, rows, width=width, ascii=ascii)
    facts = format_items(list(_facts(about, layout)), width=width)
    return "\n\n".join([f"rank {about.rank} of {job}", facts, drawn])


def _place(topology: Topology, rank: int) -> tuple[int, int]:
    """The node of a rank, and its place among the ranks there, the lowest first."""
    node = int(topology.node_of(rank))
    return node, int(np.searchsorted(topology.ranks_of(node), rank))


def _samples(batch: BatchPlan, data_index: int) -> range:
    """Where the micro batches of step 0 begin, as :meth:`BatchPlan.samples`, which makes them."""
    size = batch.micro_batch
    return range(data_index * size, batch.global_batch, batch.dp * size)


def _axis(layout: Layout, rank: int, axis: str, index: int, seed: int | None) -> AxisOf:
    alone = layout.sizes[axis] == 1
    return AxisOf(
        axis,
        index,
        tuple(layout.peers(rank, axis).tolist()),
        None if alone else layout.neighbor(rank, axis, -1),
        None if alone else layout.neighbor(rank, axis, 1),
        None if seed is None else stream_seed(seed, **{axis: index}),
    )


def _row(axis: AxisOf, size: int) -> list[str]:
    near = ["-" if rank is None else str(rank) for rank in (axis.before, axis.after)]
    seed = [] if axis.seed is None else [str(axis.seed)]
    return [axis.axis, f"{axis.index} of {size}", *near, summarize(axis.peers), *seed]


def _facts(about: About, layout: Layout) -> Iterator[tuple[str, str]]:
    """Where the rank sits and what it reads, by name."""
    yield "coordinate", format_sizes(about.coordinate)
    if about.node is not None:
        yield "node", f"{about.node}, slot {about.slot}"
    if about.samples is not None:
        size = about.micro_batch or 0
        steps = summarize(about.samples, lambda first: format_range(first, first + size - 1))
        yield "samples", f"{steps} in step 0, a run for each micro batch"
    if about.tokens is not None:
        over = " ".join(sequence_axes(layout)) or "no axis"
        held = ", ".join(f"{run[0]}-{run[-1]}" for format_range in about.tokens)
        yield "tokens", f"{held} of each sequence, which is cut over {over}"
    if about.seed is not None:
        yield "seed", f"{about.seed} on all ranks; by axis below"
