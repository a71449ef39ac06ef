"""LayoutCost: the memory, the time and the traffic of one layout; and the tables of several.

The tables have a row for each layout, so that one layout, two, and the best of a search are shown
in one form. All figures are of the rank that needs most, and of one optimizer step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from ..errors import SpecError
from ..layout.layout import Layout
from ..layout.topology import NODE, Topology
from ..synonyms import STANDARD_OF
from ..text import GB, count_noun, format_figure, format_sizes, format_table, wrap_lines
from .memory import PRECISIONS, RECOMPUTE, SHARDS, ModelShape, ParallelConfig, bytes_per_rank
from .step_time import (
    AXES,
    GroupLocality,
    Locality,
    TrainingJob,
    model_flops,
    step_terms,
    step_traffic,
    transfer_time,
)

RACK = "rack"
LINKS = ("in a node", "across nodes", "across racks")  # those across racks are across nodes, too
MIN_SHARE = 0.005  # of a step; smaller terms are not shown
HEADER = ["", "layout", "step s", "tokens/s", "MFU %", "GB", "sharding", "micro batches"]
DISCLAIMER = "A model of compute, memory and links gives these figures; it promises no seconds."


@dataclass(frozen=True)
class LayoutCost:
    """The figures of a layout in one configuration."""

    sizes: dict[str, int]  # axis to size
    micro_batch: int  # samples in one forward and backward of one rank
    accumulation_steps: int  # micro batches of a rank in one step
    virtual: int  # interleaved parts of a pipeline stage
    shard: str  # one of ``memory.SHARDS``
    recompute: str  # one of ``memory.RECOMPUTE``
    fits: bool  # whether the memory suffices
    memory_gb: float  # GB (1e9 bytes) of the rank that needs most, the sum of ``memory``
    memory: dict[str, float]  # GB by part
    step: float  # predicted seconds of one optimizer step, the sum of ``terms``
    terms: dict[str, float]  # seconds of each term of the step, see ``step_time.step_terms``
    tokens_per_second: float  # of all ranks
    mfu: float  # operations of the model in a second, divided by the peak of all devices
    idle: dict[str, float]  # seconds of the traffic of each axis alone, on otherwise idle links
    sent: dict[str, dict[str, float]]  # GB that a rank sends in one step: link, then axis


def measured_locality(layout: Layout, topology: Topology) -> Locality:
    """Return the locality of the groups of a layout on the nodes and racks of a topology.

    A ring visits the ranks of a node one after the other, so it leaves each node once. The node
    that has the fewest ranks of a group counts, since it has the fewest links for the same bytes.
    Cost: O(ranks) for each question.
    """
    names = axes_by_standard(layout)

    def locality(*axes: str) -> GroupLocality:
        groups = layout.groups(tuple(name for axis in axes for name in names[axis]))
        size = groups.shape[1]
        shared = [np.int64(size)] * 2
        for i, level in enumerate((NODE, RACK)):
            if level in topology.levels:
                domains = np.sort(topology.domain_of(level, groups), axis=1)
                begins = np.diff(domains, axis=1, prepend=-1) != 0  # of the ranks of a domain
                counts = np.diff(np.flatnonzero(begins), append=domains.size)
                shared[i] = counts.min()
        return GroupLocality(np.int64(size), *shared)

    return locality


def axes_by_standard(layout: Layout) -> dict[str, tuple[str, ...]]:
    """Return the axes of a layout for each standard axis, which has their product as its size."""
    unknown = [axis for axis in layout.axes if axis not in STANDARD_OF]
    if unknown:
        line = f"the cost of the axis {unknown[0]} is unknown; its name has no role."
        raise SpecError(line, fix=f"a name of {' '.join(AXES)} in place of {unknown[0]}.")
    return {
        standard: tuple(axis for axis in layout.axes if STANDARD_OF[axis] == standard)
        for standard in AXES
    }


def layout_cost(
    model: ModelShape,
    job: TrainingJob,
    config: ParallelConfig,
    sizes: Mapping[str, int],
    locality: Locality,
) -> LayoutCost:
    """Return the figures of a layout. ``config`` has ints."""
    parts = bytes_per_rank(model, config, job.global_batch, job.seq, job.dtype)
    memory = {part: float(size) / GB for part, size in parts.items()}
    times = step_terms(model, job, config, locality)
    terms = {name: float(seconds) for name, seconds in times.items()}
    step, peak = sum(terms.values()), job.machine.peak * PRECISIONS[job.dtype].speed
    traffic = step_traffic(model, job, config, locality)
    return LayoutCost(
        sizes=dict(sizes),
        micro_batch=int(config.micro_batch),
        accumulation_steps=int(config.num_micro_batches(job.global_batch)),
        virtual=int(config.virtual),
        shard=SHARDS[config.shard],
        recompute=RECOMPUTE[config.recompute],
        fits=sum(memory.values()) <= job.machine.memory,
        memory_gb=sum(memory.values()),
        memory=memory,
        step=step,
        terms=terms,
        tokens_per_second=job.tokens / step,
        mfu=model_flops(model, job) / step / (peak * job.world_size),
        idle={axis: float(transfer_time(job.machine, part)) for axis, part in traffic.items()},
        sent={
            link: {axis: float(amounts[i]) / GB for axis, amounts in traffic.items()}
            for i, link in enumerate(LINKS)
        },
    )


@dataclass(frozen=True)
class CostTable:
    """The figures of some layouts of one job, a row for each."""

    name: str  # of the model
    model: ModelShape
    job: TrainingJob
    links: str  # the name of the figures of the devices
    costs: tuple[LayoutCost, ...]
    labels: tuple[str, ...] = ()  # of the rows, if the sizes do not tell them apart
    chosen: tuple[str, ...] = ()  # what was not given, and is that of the fastest that fits

    def as_dict(self) -> dict[str, object]:
        """Return all figures in JSON types."""
        return {
            "name": self.name,
            "model": asdict(self.model),
            "parameters": self.model.parameters,
            "job": asdict(self.job),
            "links": self.links,
            "layouts": [asdict(cost) for cost in self.costs],
            "note": DISCLAIMER,
        }

    def describe_job(self, width: int) -> list[str]:
        """Return the lines about the model, the step and the devices."""
        job, machine = self.job, self.job.machine
        speed = PRECISIONS[job.dtype].speed / 1e12
        racks = f", in {count_noun(job.racks, 'rack')}" if job.racks > 1 else ""
        nodes = count_noun(job.nodes, "node")
        bandwidth = machine.bandwidth_inter_rack or machine.bandwidth_inter_node
        out_of_rack = f", {bandwidth:g} GB/s out of a rack" if job.racks > 1 else ""
        texts = [
            f"{self.name}: {self.model.parameters / 1e9:.2f} billion weights, {job.dtype}; "
            f"{count_noun(job.world_size, 'rank')} on {nodes}{racks}.",
            f"A step: {job.global_batch} samples of {job.seq} tokens.",
            f"A rank ({self.links}): {machine.memory:g} GB, {machine.flops * speed:.0f} of "
            f"{machine.peak * speed:.0f} TFLOP/s attained, {machine.bandwidth_intra_node:g} GB/s "
            f"in a node, {machine.bandwidth_inter_node:g} GB/s out of it{out_of_rack}.",
        ]
        return [line for text in texts for line in wrap_lines(text, width)]

    def draw(self, *, width: int = 80, ascii: bool = False, traffic: bool = True) -> str:
        """Return the figures as tables, and lines that explain their words."""
        draw, job = partial(format_table, width=width, ascii=ascii), self.job
        numbered = [(str(number), cost) for number, cost in enumerate(self.costs, 1)]
        least = MIN_SHARE * min(cost.step for cost in self.costs)
        facts = [[n, *_facts(cost)] for n, cost in numbered]
        for row, label in zip(facts, self.labels, strict=False):
            row[1] += f" {label}"
        memory = [([n], cost.memory) for n, cost in numbered]
        terms = [([n], cost.terms) for n, cost in numbered]
        links = LINKS[: 3 if job.racks > 1 else 2]
        sent = [([n, link], cost.sent[link]) for n, cost in numbered for link in links]
        tables = [
            draw(facts, HEADER),
            f"GB of a rank, which has {job.machine.memory:g}",
            draw(*_columns([""], memory)),
            "seconds of a step",
            draw(*_columns([""], terms, least)),
            *[
                f"GB that a rank sends in a step: weights and activations in {job.dtype}, "
                "gradients in fp32",
                draw(*_columns(["", ""], sent)),
            ]
            * traffic,
        ]
        blocks = ["\n".join(self.describe_job(width)), tables[0]]
        titled = zip(tables[1::2], tables[2::2], strict=True)
        blocks += [f"{title}\n{table}" for title, table in titled]
        notes = [line for text in self._notes() for line in wrap_lines(text, width)]
        return "\n\n".join([*blocks, "\n".join(notes)])

    def _notes(self) -> list[str]:
        steps, micro = self.costs[0].accumulation_steps, self.costs[0].micro_batch
        ways = {
            "cheap": "Backward computes norms and activation functions again.",
            "full": "recompute=full: backward computes whole layers again.",
            "none": "recompute=none: backward computes nothing again.",
        }
        used = [ways[way] for way in ways if any(cost.recompute == way for cost in self.costs)]
        misfits = [str(i) for i, cost in enumerate(self.costs, 1) if not cost.fits]
        all_misfit = len(misfits) == len(self.costs)
        reason = "what needs least memory" if all_misfit else "the fastest that fits"
        chosen = f"Chosen, as {reason}: {', '.join(self.chosen)}."
        noun = "Layout {} does" if len(misfits) == 1 else "Layouts {} do"
        misfit = f"{noun.format(', '.join(misfits))} not fit; shown with what needs least memory."
        return [
            *[chosen] * bool(self.chosen),
            f"{steps} of {micro}: a rank runs {count_noun(steps, 'micro batch')} of "
            f"{count_noun(micro, 'sample')} in a step.",
            *used,
            *[misfit] * bool(misfits),
            DISCLAIMER,
        ]


def _facts(cost: LayoutCost) -> list[str]:
    virtual = f" virtual={cost.virtual}" if cost.virtual > 1 else ""
    recompute = "" if cost.recompute == RECOMPUTE[0] else f" recompute={cost.recompute}"
    return [
        format_sizes(cost.sizes),
        format_figure(cost.step),
        f"{cost.tokens_per_second:.0f}",
        f"{100 * cost.mfu:.1f}",
        format_figure(cost.memory_gb),
        f"{cost.shard}{virtual}{recompute}",
        f"{cost.accumulation_steps} of {cost.micro_batch}",
    ]


def _columns(
    first: list[str], rows: Sequence[tuple[list[str], Mapping[str, float]]], least: float = 0
) -> tuple[list[list[str]], list[str]]:
    """Return a table of figures by name: those that are large in a row, and the sum of all."""
    names = [name for name in rows[0][1] if max(row[name] for _, row in rows) > least]
    cells = [
        [*labels, *(format_figure(row[name]) for name in names), format_figure(sum(row.values()))]
        for labels, row in rows
    ]
    return cells, [*first, *names, "all"]
