"""A line through measured times: the latency of a call, and its seconds per byte.

The alpha-beta model (R. W. Hockney, The communication challenge for MPP, Parallel Computing 20(3),
1994)::

    t = alpha + beta * S        S bytes of the total array, 1 / beta bytes a second

The line has the least squares of *relative* residuals, since times of 1 KiB and 64 MiB differ by
orders of magnitude and count equally. Neither term is below zero. The line holds only between the
measured sizes, because algorithms and protocols change with the size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .measurement import Measurement


@dataclass(frozen=True)
class Fit:
    """The line of one operation over the groups of one target."""

    op: str
    target: str
    mode: str  # how the groups were measured
    ranks: int  # ranks in a group
    alpha: float  # seconds before the first byte
    beta: float  # seconds per byte


def fit_line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return alpha and beta of the line with the least squares of relative residuals. Pure."""
    weight = 1 / np.asarray(seconds, dtype=np.float64)
    columns = np.stack([weight, weight * np.asarray(sizes, dtype=np.float64)])  # (2, num_sizes)
    scale = np.linalg.norm(columns, axis=1)
    terms, *_ = np.linalg.lstsq((columns / scale[:, None]).T, np.ones(len(weight)), rcond=None)
    if (terms >= 0).all():
        return float(terms[0] / scale[0]), float(terms[1] / scale[1])
    # one term is below zero: keep the single term with the smaller sum of squares
    alpha, beta = (float(c.sum() / (c @ c)) for c in columns)
    constant, slope = (
        float(((c * term - 1) ** 2).sum()) for c, term in zip(columns, (alpha, beta), strict=True)
    )
    return (alpha, 0.0) if constant <= slope else (0.0, beta)


def fit_measurements(measurements: Sequence[Measurement]) -> tuple[Fit, ...]:
    """Return a line for each operation, target and mode with two sizes or more. Pure."""
    series: dict[tuple[str, str, str, int], dict[int, float]] = {}
    for row in measurements:
        if row.median is not None and len(row.sizes) == 1:
            key = row.case.op, row.case.target.name, row.mode, row.sizes[0]
            series.setdefault(key, {})[row.case.bytes] = row.median
    return tuple(_fit(key, times) for key, times in series.items() if len(times) > 1)


def _fit(key: tuple[str, str, str, int], times: dict[int, float]) -> Fit:
    sizes = sorted(times)
    return Fit(*key, *fit_line(sizes, [times[size] for size in sizes]))
