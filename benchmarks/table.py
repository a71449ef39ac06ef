"""What two groups of the same ranks took, beside each other: statistics and their table. Pure.

The words are those of nccl-tests, see :mod:`meshkit.core.bandwidth`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from meshkit.core.bandwidth import busbw_factor, gigabytes_per_second
from meshkit.core.timing import Spread


@dataclass(frozen=True)
class Speed:
    """The time of one call, the median over repetitions, and the bandwidths that follow."""

    seconds: float
    algbw: float
    busbw: float

    @classmethod
    def of(cls, operation: str, ranks: int, size: int, seconds: Sequence[float]) -> Speed:
        """From the seconds of one call in each repetition."""
        middle = median(seconds)
        algbw = gigabytes_per_second(size, middle)
        return cls(middle, algbw, algbw * busbw_factor(operation, ranks))


@dataclass(frozen=True)
class Row:
    """One operation over one axis at one size, on meshkit's group and on torch's own.

    Attributes:
        op: one of ``OPERATIONS``.
        axis: the axis whose group it ran over.
        ranks: how many ranks that group has.
        bytes: of the total array.
        factor: what takes algbw to busbw.
        wrong: how many elements of both results were wrong, over all ranks of the world.
        mesh: on meshkit's group.
        raw: on a group that torch made of the same ranks.
        ratio: mesh time / raw time, repetition by repetition.
        lacks: what the backend said, where it has no such operation; wrong, mesh, raw and ratio
            are None then, and only then.
    """

    op: str
    axis: str
    ranks: int
    bytes: int
    factor: float
    wrong: int | None = None
    mesh: Speed | None = None
    raw: Speed | None = None
    ratio: Spread | None = None
    lacks: str | None = None


def measured(
    op: str, axis: str, ranks: int, size: int, seconds: Sequence[Sequence[float]], wrong: int
) -> Row:
    """The row of what was measured.

    Args:
        op: one of ``OPERATIONS``.
        axis: the axis.
        ranks: how many ranks its group has.
        size: bytes of the total array.
        seconds: of one call in each repetition, (2, repeats): meshkit's, then torch's own.
        wrong: how many elements were wrong.
    """
    mesh, raw = (Speed.of(op, ranks, size, times) for times in seconds)
    ratio = Spread.of([ours / theirs for ours, theirs in zip(*seconds, strict=True)])
    return Row(op, axis, ranks, size, busbw_factor(op, ranks), wrong, mesh, raw, ratio)


def lacking_row(op: str, axis: str, ranks: int, size: int, said: str) -> Row:
    """The row of an operation that the backend does not have, with what it said."""
    return Row(op, axis, ranks, size, busbw_factor(op, ranks), lacks=said)


@dataclass(frozen=True)
class Report:
    """A whole run.

    Attributes:
        cores: of the machine of rank 0.
        torch: the version of torch.
        backend: what the collectives ran on.
        device: the kind of device that held the tensors.
        sizes: axis name to size, outermost first.
        repeats: how many repetitions each row is the median of.
        calls: how many calls in a row one repetition times.
        rows: op by op, axis by axis, size by size.
    """

    cores: int
    torch: str
    backend: str
    device: str
    sizes: dict[str, int]
    repeats: int
    calls: int
    rows: tuple[Row, ...]

    @property
    def wrong(self) -> int:
        """How many elements were wrong in all rows together."""
        return sum(row.wrong or 0 for row in self.rows)


GROUPS = f"{'':31}{'meshkit':^28}{'torch new_group':^28}  {'mesh/raw time':<18}"
NAMES = (
    f"{'op':<14} {'axis':<4} {'n':>3} {'bytes':>7}"
    + f"{'us':>10} {'algbw':>8} {'busbw':>8}" * 2
    + f"  {'median (quartiles)':<18} {'#wrong':>6}"
)


def table(report: Report) -> str:
    """The machine line, the table and its legend, as text without a final newline."""
    lines = [machine(report), "", GROUPS, NAMES, *map(line, report.rows), "", summary(report)]
    lines += ["GB/s, decimal, as nccl-tests: algbw = bytes / time, busbw = algbw * factor(op, n)."]
    return "\n".join(text.rstrip() for text in lines)


def machine(report: Report) -> str:
    """What it ran on, and how often."""
    mesh = " ".join(f"{axis}={size}" for axis, size in report.sizes.items())
    return (
        f"{report.cores} cores, torch {report.torch}, {report.backend} on {report.device}; {mesh}; "
        f"median of {report.repeats} x {report.calls} calls, float32"
    )


def line(row: Row) -> str:
    """One row of the table."""
    head = f"{row.op:<14} {row.axis:<4} {row.ranks:>3} {row.bytes:>7}"
    if row.mesh is None or row.raw is None or row.ratio is None:
        return f"{head}  not measured: {row.lacks}"
    return f"{head}{_cells((row.mesh, row.raw))}  {_ratio(row.ratio):<18} {row.wrong:>6}"


def summary(report: Report) -> str:
    """The ratios of all rows in one line, and how many elements were wrong."""
    medians = [row.ratio.median for row in report.rows if row.ratio is not None]
    told = (
        f"mesh/raw time over {len(medians)} rows: {_ratio(Spread.of(medians))}; " if medians else ""
    )
    return f"{told}{report.wrong} wrong elements"


def _ratio(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f}-{spread.high:.2f})"


def _cells(speeds: Iterable[Speed]) -> str:
    return "".join(f"{s.seconds * 1e6:>10.1f} {s.algbw:>8.4f} {s.busbw:>8.4f}" for s in speeds)
