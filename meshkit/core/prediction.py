"""What measured lines say of sizes that were not measured, as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .bandwidth import busbw_factor, gigabytes_per_second
from .draw.table import format_table
from .fit import Fit


@dataclass(frozen=True)
class Prediction:
    """What one line says of one size.

    Attributes:
        fit: the line.
        size: bytes of the total array, inside the sizes that were measured.
    """

    fit: Fit
    size: int

    @property
    def seconds(self) -> float:
        """Of a call."""
        return self.fit.seconds(self.size)

    @property
    def busbw(self) -> float:
        """Decimal GB/s."""
        fit = self.fit
        return gigabytes_per_second(self.size, self.seconds) * busbw_factor(fit.op, fit.ranks)

    def as_dict(self) -> dict[str, object]:
        """For a program: in the words of ``core.measured_json``; ``within`` is a share."""
        fit, algbw = self.fit, gigabytes_per_second(self.size, self.seconds)
        about = {"op": fit.op, "axes": fit.target, "mode": fit.mode, "ranks": fit.ranks}
        speed = {"time": self.seconds * 1e6, "alg_bw": algbw, "bus_bw": self.busbw}
        return {**about, "size": self.size, **speed, "within": fit.worst}


def prediction_table(found: Sequence[Prediction], *, width: int = 80, ascii: bool = False) -> str:
    """A row for each. Pure.

    Example:
        >>> fit = Fit("all_reduce", "dp", "alone", 4, 1e-4, 1e-9, (1, 9), (0.0, 0.02), {"dp": 4})
        >>> print(prediction_table([Prediction(fit, 8)], ascii=True))
        operation   over  mode   n  bytes     us   busbw  within
        ----------  ----  -----  -  -----  -----  ------  ------
        all_reduce  dp    alone  4      8  100.0  0.0001  2 %
    """
    header = ["operation", "over", "mode", "n", "bytes", "us", "busbw", "within"]
    columns = [list(column) for column in zip(header, *map(_row, found), strict=True)]
    for place in (header.index("us"), header.index("busbw")):
        wide = max(map(len, columns[place]))
        columns[place] = [cell.rjust(wide) for cell in columns[place]]
    head, *rows = zip(*columns, strict=True)
    return format_table(head, rows, width=width, ascii=ascii)


def _row(one: Prediction) -> list[str]:
    fit, time = one.fit, f"{one.seconds * 1e6:.1f}"
    about = [fit.op, fit.target, fit.mode, str(fit.ranks), str(one.size)]
    return [*about, time, f"{one.busbw:.4f}", f"{100 * fit.worst:.0f} %"]
