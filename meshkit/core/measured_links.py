"""What the wires of this cluster carry, out of measured lines: figures for ``core.links``.

A ring moves, of an array of S bytes on n ranks, ``factor * S`` bytes from each rank in so many
steps, one after the other (``core.bandwidth``; passes and n as there)::

    alpha = steps * wait                    steps = passes * (n - 1)
    beta  = factor / bandwidth              inside a node
    beta  = factor / close / bandwidth      across nodes, where close ranks share what leaves one

That is ``core.cost`` read backwards. Of the lines of one level the middle one counts; across nodes
only those of groups with the fewest ranks on a node, as in others the wires inside may decide.
"""

from __future__ import annotations

import numpy as np

from .bandwidth import busbw_factor
from .fit import Fit
from .measured import Measured
from .measurement import ALONE, CONCURRENT
from .operations import OPERATIONS
from .reach import ACROSS, INSIDE, reach
from .words import format_sizes

RING = ("all_reduce", "all_gather", "reduce_scatter")


def measured_links(report: Measured) -> dict[str, float | str]:
    """The figures of ``Links`` that a run has measured, and ``source``. Pure; {} where it has none.

    Counted are all_reduce, all_gather and reduce_scatter, with all groups of an axis at once, as in
    training. What a line does not tell, as one without a slope tells no bandwidth, is left out.

    Args:
        report: what was found.
    """
    lines = [
        (fit, reach(report.layout, report.hosts, *fit.target.split())) for fit in _fits(report)
    ]
    least = min((where.close for _, where in lines if where.level == ACROSS), default=0.0)
    found: dict[str, float | str] = {}
    for level, close in ((INSIDE, None), (ACROSS, least)):
        there = [(f, r) for f, r in lines if r.level == level and close in (None, r.close)]
        rates = [_rate(fit, 1.0 if close is None else close) for fit, _ in there if fit.beta]
        found |= {level: float(np.median(rates))} if rates else {}
        waits = [fit.alpha / _steps(fit) for fit, _ in there if fit.alpha]
        found |= {f"wait_{level}": float(np.median(waits))} if waits else {}
    return {**found, "source": _source(report, [*found])} if found else {}


def _fits(report: Measured) -> list[Fit]:
    """The lines that count: of rings, of all groups at once, or of the only group."""
    ring = [fit for fit in report.fits if fit.op in RING]
    together = {(fit.op, fit.target) for fit in ring if fit.mode == CONCURRENT}
    lone = [fit for fit in ring if fit.mode == ALONE and (fit.op, fit.target) not in together]
    return [fit for fit in ring if fit.mode == CONCURRENT] + lone


def _rate(fit: Fit, close: float) -> float:
    """GB/s, one direction."""
    return busbw_factor(fit.op, fit.ranks) / fit.beta / close / 1e9


def _steps(fit: Fit) -> int:
    return OPERATIONS[fit.op].passes * (fit.ranks - 1)


def _source(report: Measured, names: list[str]) -> str:
    """Where the figures are from; the others are those of a data sheet."""
    what = f"{report.backend} on {report.device}, torch {report.torch}"
    return f"meshkit bench {format_sizes(report.sizes)}, {what}: {', '.join(names)}"
