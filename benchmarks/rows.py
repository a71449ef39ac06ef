"""Rows: one kind of work, done by meshkit and by a peer in the same run, as a ratio. Pure.

The ratio is always ours / theirs, repetition by repetition, then the median and the quartiles:
below 1 meshkit took less. For tokens/s, where more is better, above 1 meshkit did more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from meshkit.bench.results.measurement import Spread

from .ledger import Phase

ITSELF = "itself on 8 ranks"  # the peer of what may not grow
INSTALL = "pip install -c constraints.txt -e '.[bench]'"


@dataclass(frozen=True)
class Goal:
    """What a row should reach: a bound on one of its figures.

    Attributes:
        figure: ``"ratio"`` is its median; ``"low"`` the lower quartile of the ratio, for what
            should not differ within noise; ``"ours"`` the figure of meshkit itself, in the row's
            unit.
        sense: ``"<="`` or ``">="``.
        bound: what the figure is compared to.
    """

    figure: str
    sense: str
    bound: float

    def met(self, ours: float | None, ratio: Spread | None) -> bool | None:
        """Whether the figure is within the bound; None where there is no figure."""
        figure = self.of(ours, ratio)
        if figure is None:
            return None
        return figure <= self.bound if self.sense == "<=" else figure >= self.bound

    def excess(self, ours: float | None, ratio: Spread | None) -> float | None:
        """How far the figure is: 1 is the bound itself, 1.3 is 30 % beyond; None without one.

        Example:
            >>> Goal("ours", "<=", 10).excess(13, None), Goal("ours", ">=", 4).excess(2, None)
            (1.3, 2.0)
        """
        figure = self.of(ours, ratio)
        if figure is None:
            return None
        return figure / self.bound if self.sense == "<=" else self.bound / figure

    def of(self, ours: float | None, ratio: Spread | None) -> float | None:
        """The figure that is looked at; None where there is none."""
        figures = {"ours": ours}
        if ratio is not None:
            figures |= {"ratio": ratio.median, "low": ratio.low}
        return figures.get(self.figure)

    def __str__(self) -> str:
        return f"{self.figure} {self.sense} {self.bound:g}"


@dataclass(frozen=True)
class Row:
    """One kind of work at one scale, by meshkit and by one peer.

    Attributes:
        what: the work, as a reader would say it.
        scale: how many ranks it is about; 1 where it is about one process.
        peer: who else did it; ``"-"`` where nobody does, and ours stands alone.
        unit: of ours and theirs: ``"s"``, ``"groups"``, ``"tokens/s"``, ...
        ours: meshkit's figure, the median over repetitions.
        theirs: the peer's.
        ratio: ours / theirs, repetition by repetition.
        goal: what is aimed at, where something is.
        lacks: why there is no figure of the peer, and what to type; None where there is one.
        phases: of a start, where the time of ours went.
        their_phases: where that of the peer went.
    """

    what: str
    scale: int
    peer: str
    unit: str
    ours: float | None = None
    theirs: float | None = None
    ratio: Spread | None = None
    goal: Goal | None = None
    lacks: str | None = None
    phases: tuple[Phase, ...] = ()
    their_phases: tuple[Phase, ...] = ()

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none, or nothing to compare."""
        return None if self.goal is None else self.goal.met(self.ours, self.ratio)

    @property
    def excess(self) -> float | None:
        """How far the figure is from its goal, see :meth:`Goal.excess`; None as for ``met``."""
        return None if self.goal is None else self.goal.excess(self.ours, self.ratio)


def compared(
    what: str,
    scale: int,
    peer: str,
    unit: str,
    figures: tuple[Sequence[float], Sequence[float]],
    goal: Goal | None = None,
) -> Row:
    """The row of figures that were taken in pairs.

    Args:
        what: the work.
        scale: how many ranks.
        peer: who else did it.
        unit: of the figures.
        figures: ours and theirs, one a repetition, equally many.
        goal: what is aimed at.

    Example:
        >>> compared("a map", 8, "numpy", "s", ([2.0, 3.0], [4.0, 4.0])).ratio
        Spread(low=0.5625, median=0.625, high=0.6875)
    """
    ours, theirs = figures
    ratio = Spread.of([mine / other for mine, other in zip(ours, theirs, strict=True)])
    return Row(what, scale, peer, unit, median(ours), median(theirs), ratio, goal)


def alone(
    what: str, scale: int, unit: str, figures: Sequence[float], goal: Goal | None = None
) -> Row:
    """The row of what no peer does: ours alone."""
    return Row(what, scale, "-", unit, ours=median(figures), goal=goal)


def missing(what: str, scale: int, peer: str, unit: str, package: str) -> Row:
    """The row of a peer that is not installed: it stands in the table, with what brings it."""
    return Row(what, scale, peer, unit, lacks=f"{package} is not installed: {INSTALL}")


# --- the table -----------------------------------------------------------------------------------

WIDTHS = f"{'what':<46} {'ranks':>9}  {'peer':<25}"
NAMES = f"{WIDTHS} {'ours':>10} {'theirs':>10} {'unit':<9} {'ours/theirs':<26} goal"


def rows_table(rows: Sequence[Row]) -> str:
    """The rows as text, with what is missed or missing said in the last column."""
    return "\n".join([NAMES, *map(line, rows)])


def line(row: Row) -> str:
    """One row of the table."""
    head = f"{row.what:<46} {row.scale:>9,}  {row.peer:<25}"
    if row.lacks is not None:
        return f"{head} {row.lacks}"
    ratio = "" if row.ratio is None else ratio_text(row.ratio)
    cells = f"{figure_text(row.ours):>10} {figure_text(row.theirs):>10} {row.unit:<9} {ratio:<26}"
    return f"{head} {cells} {goal_text(row)}".rstrip()


def figure_text(value: float | None) -> str:
    """Three digits that count, or whole where there are more.

    Example:
        >>> figure_text(0.000123456), figure_text(15.0), figure_text(123456.7), figure_text(None)
        ('0.000123', '15', '123,457', '')
    """
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def ratio_text(ratio: Spread) -> str:
    """The median, and the quartiles in brackets.

    Example:
        >>> ratio_text(Spread(0.9, 1.0, 1.123))
        '1 (0.9-1.12)'
    """
    return f"{figure_text(ratio.median)} ({figure_text(ratio.low)}-{figure_text(ratio.high)})"


def goal_text(row: Row) -> str:
    """The goal, and whether it is met; nothing where there is none."""
    if row.goal is None:
        return ""
    return f"{row.goal}: {'met' if row.met else 'MISSED'}"
