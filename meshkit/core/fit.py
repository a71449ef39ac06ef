"""A line through measured times: what a call costs before its first byte, and by the byte.

The alpha-beta model (R. W. Hockney, The communication challenge for MPP, Parallel Computing 20(3),
1994)::

    t = alpha + beta * S        S bytes of the total array, 1 / beta bytes a second

The line is the one with the least squares of *relative* residuals, as times of 1 KiB and 64 MiB
differ by orders of magnitude and weigh alike. Neither term is below zero. It says nothing of sizes
outside those measured: algorithms and protocols change with the size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .axes import STANDARD
from .bandwidth import ITEM, MOST
from .call import Call
from .errors import SpecError, told
from .measurement import Measurement
from .words import format_sizes

BEYOND = "Algorithms and protocols change with the size: the line says nothing beyond."
FACTOR = 4  # from one size to the next, in a command that measures more of them


@dataclass(frozen=True)
class Fit:
    """The line of one operation over the groups of one target.

    Attributes:
        op: the operation.
        target: over which groups, as it is typed.
        mode: how they were measured.
        ranks: in a group.
        alpha: seconds before the first byte.
        beta: seconds a byte.
        sizes: bytes, ascending, that were measured.
        residuals: (time of the line - time measured) / time measured, by size.
        mesh: axis name to size, the outermost first, of the mesh that was measured.
    """

    op: str
    target: str
    mode: str
    ranks: int
    alpha: float
    beta: float
    sizes: tuple[int, ...]
    residuals: tuple[float, ...]
    mesh: Mapping[str, int]

    @property
    def worst(self) -> float:
        """The largest residual, without its sign."""
        return max(map(abs, self.residuals))

    def seconds(self, size: float) -> float:
        """How long a call takes. Pure.

        Args:
            size: bytes of the total array, no less and no more than what was measured.

        Raises:
            SpecError: for a size outside those measured.

        Example:
            >>> sizes, mesh = (1024, 4096), {"dp": 4}
            >>> fit = Fit("all_reduce", "dp", "alone", 4, 1e-4, 1e-9, sizes, (0.0, 0.0), mesh)
            >>> round(fit.seconds(2048), 9)
            0.000102048
        """
        if not self.covers(size):
            wider = self.wider(size)
            fix = f"fit.seconds({self.sizes[0]}), say{wider and f'; or first {wider}'}."
            raise SpecError(told(f"{Call('fit.seconds', (size,))}: {self.range}", BEYOND, fix=fix))
        return self.alpha + self.beta * size

    def covers(self, size: float) -> bool:
        """Whether a size is one of those between which the line was drawn."""
        return self.sizes[0] <= size <= self.sizes[-1]

    @property
    def range(self) -> str:
        """Where the line was drawn, in a sentence."""
        least, most = self.sizes[0], self.sizes[-1]
        return f"{self.op} over {self.target} was measured from {least} to {most} bytes."

    def wider(self, size: float) -> str:
        """The command that measures a size too, as :func:`wider`; "" if none does."""
        return wider([self], [size])


def wider(fits: Sequence[Fit], sizes: Sequence[float], *, here: bool = True) -> str:
    """The command that measures some sizes too, and those from there to here; "" if none does.

    Sizes are rounded down to what all ranks can share, so it goes one such step further.

    Args:
        fits: one line or more, of one mesh.
        sizes: in bytes, one or more.
        here: whether it starts ranks on this machine; else each rank is one of a launcher.
    """
    mesh = fits[0].mesh
    step = ITEM * math.prod(mesh.values())
    reached = all(step <= size <= MOST for size in sizes)  # nan is neither
    if not reached or any([*fit.mesh.items()] != [*mesh.items()] for fit in fits):
        return ""
    least = last = min(*(fit.sizes[0] for fit in fits), *map(int, sizes))
    while last < max(*(fit.sizes[-1] for fit in fits), *sizes) + step:
        last *= FACTOR
    standard = [axis for axis in STANDARD if axis in mesh] == list(mesh)
    words = [
        "meshkit bench",
        format_sizes(mesh),
        *([f"-n {math.prod(mesh.values())}"] if here else []),
    ]
    words += [] if standard else [f"--order {_word(' '.join(mesh))}"]
    words.append(f"--ops {','.join(dict.fromkeys(fit.op for fit in fits))}")
    words.append(f"--axes {_word(','.join(dict.fromkeys(fit.target for fit in fits)))}")
    return " ".join([*words, f"--sizes {least}:{last}:{FACTOR}"]) if last <= MOST else ""


def _word(text: str) -> str:
    """One word of a command."""
    return f"'{text}'" if " " in text else text


def line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Alpha and beta of the line with the least squares of relative residuals. Pure.

    Args:
        sizes: in bytes, two different ones at least.
        seconds: what each took, above zero.

    Returns:
        Seconds, and seconds a byte; neither is below zero.

    Example:
        >>> alpha, beta = line([1000, 3000], [3e-3, 5e-3])
        >>> round(alpha, 9), round(beta, 12)
        (0.002, 1e-06)
    """
    weight = 1 / np.asarray(seconds, dtype=np.float64)
    columns = np.stack([weight, weight * np.asarray(sizes, dtype=np.float64)])
    scale = np.linalg.norm(columns, axis=1)
    found, *_ = np.linalg.lstsq((columns / scale[:, None]).T, np.ones(len(weight)), rcond=None)
    if (found >= 0).all():
        return float(found[0] / scale[0]), float(found[1] / scale[1])
    # one term alone: of the two the one that leaves less
    alone = [float(c.sum() / (c @ c)) for c in columns]
    left = [float(((c * one - 1) ** 2).sum()) for c, one in zip(columns, alone, strict=True)]
    return (alone[0], 0.0) if left[0] <= left[1] else (0.0, alone[1])


def fits(found: Sequence[Measurement], mesh: Mapping[str, int]) -> tuple[Fit, ...]:
    """A line for each operation, target and way, where two sizes or more were measured. Pure.

    Args:
        found: what was measured.
        mesh: axis name to size, the outermost first.
    """
    series: dict[tuple[str, str, str, int], dict[int, float]] = {}
    for one in found:
        if one.timing is not None and len(one.sizes) == 1:
            key = one.case.op, one.case.target.name, one.mode, one.sizes[0]
            series.setdefault(key, {})[one.case.bytes] = one.timing.median
    return tuple(_fit(key, times, mesh) for key, times in series.items() if len(times) > 1)


def _fit(key: tuple[str, str, str, int], times: dict[int, float], mesh: Mapping[str, int]) -> Fit:
    sizes = tuple(sorted(times))
    alpha, beta = line(sizes, [times[size] for size in sizes])
    residuals = tuple((alpha + beta * size - times[size]) / times[size] for size in sizes)
    return Fit(*key, alpha, beta, sizes, residuals, dict(mesh))
