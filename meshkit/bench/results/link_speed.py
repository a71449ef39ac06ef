"""Latency and bandwidth of the links of this cluster, from the fitted lines of a run.

A ring moves, for an array of S bytes on n ranks, ``factor * S`` bytes from each rank in sequential
steps (:mod:`.collectives`; ring_passes and n as there)::

    alpha = steps * latency                        steps = ring_passes * (n - 1)
    beta  = factor / bandwidth                     inside a node
    beta  = factor / ranks_per_link / bandwidth    across nodes

Several ranks of a group may share the traffic that leaves a node::

    ring            0 - 1 - 2 - 3 | 4 - 5 - 6 - 7 -     two of eight messages leave their node
    ranks_per_link  8 / 2 = 4

This inverts the formulas of the cost model. Each figure is the median over the lines of one level.
Across nodes only groups with the fewest ranks on a node count: in the others, the links inside a
node may be the bottleneck. The names are those of the cost model's links, which
``meshkit search --links`` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...core.grid.layout import Layout
from ...core.text import format_sizes
from .collectives import OPERATIONS, busbw_factor
from .fit import Fit
from .run import BenchmarkRun
from .targets import ALONE, CONCURRENT

INSIDE, ACROSS = "inside", "across"
SUFFIX = {INSIDE: "intra_node", ACROSS: "inter_node"}  # of the figures of a cost.Machine
RING = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True)
class Locality:
    """Whether groups stay on one node."""

    level: str  # ``"inside"`` if each group is on one node, else ``"across"``
    ranks_per_link: float  # ranks of a group over the most messages of a ring that leave a node


def locality(layout: Layout, hosts: Mapping[int, str], *axes: str) -> Locality:
    """Return the locality of the groups over some axes. Pure."""
    size = layout.size(*axes)
    groups = layout.groups(*axes).tolist()  # (num_groups, group_size)
    crossing = max(_crossing_messages([hosts[rank] for rank in group]) for group in groups)
    return Locality(ACROSS, size / crossing) if crossing else Locality(INSIDE, float(size))


def _crossing_messages(hosts: list[str]) -> int:
    """Return the number of messages of a ring that go to another host."""
    return sum(here != after for here, after in pairwise([*hosts, hosts[0]]))


def link_speeds(run: BenchmarkRun) -> dict[str, float | str]:
    """Return the measured figures of the links by name, and their ``source``; {} if none. Pure.

    The figures come from all_reduce, all_gather and reduce_scatter with all groups of an axis at
    once, as in training. A figure is left out if no line has it: a line without a slope, for
    example, has no bandwidth.
    """
    lines = [(fit, locality(run.layout, run.hosts, *fit.target.split())) for fit in _ring_fits(run)]
    across = [fit_locality for _, fit_locality in lines if fit_locality.level == ACROSS]
    fewest = Locality(ACROSS, min((where.ranks_per_link for where in across), default=0.0))
    levels = {
        INSIDE: ([fit for fit, where in lines if where.level == INSIDE], 1.0),
        ACROSS: ([fit for fit, where in lines if where == fewest], fewest.ranks_per_link),
    }
    speeds: dict[str, float | str] = {}
    for level, (fits, ranks_per_link) in levels.items():
        if bandwidths := [_bandwidth(fit, ranks_per_link) for fit in fits if fit.beta]:
            speeds[f"bandwidth_{SUFFIX[level]}"] = float(np.median(bandwidths))
        if latencies := [fit.alpha / _steps(fit) for fit in fits if fit.alpha]:
            speeds[f"latency_{SUFFIX[level]}"] = float(np.median(latencies))
    return {**speeds, "source": _source(run, [*speeds])} if speeds else {}


def _ring_fits(run: BenchmarkRun) -> list[Fit]:
    """Return the lines of rings, with all groups at once, or of a single group."""
    ring = [fit for fit in run.fits if fit.op in RING]
    concurrent = [fit for fit in ring if fit.mode == CONCURRENT]
    known = {(fit.op, fit.target) for fit in concurrent}
    single = [fit for fit in ring if fit.mode == ALONE and (fit.op, fit.target) not in known]
    return [*concurrent, *single]


def _bandwidth(fit: Fit, ranks_per_link: float) -> float:
    """Return GB/s, in one direction."""
    return busbw_factor(fit.op, fit.ranks) / fit.beta / ranks_per_link / 1e9


def _steps(fit: Fit) -> int:
    return OPERATIONS[fit.op].ring_passes * (fit.ranks - 1)


def _source(run: BenchmarkRun, names: list[str]) -> str:
    """Return the run and the names of the figures that it measured."""
    software = f"{run.backend} on {run.device}, torch {run.torch}"
    return f"meshkit bench {format_sizes(run.sizes)}, {software}: {', '.join(names)}"
