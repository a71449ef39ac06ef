"""The ledger of a start in the report: phase by phase, the numbers of ranks side by side. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from .ledger import Ledger, Phase, phases
from .rows import Row, figure_text

OURS = "meshkit"
HEAD = "Where a start's time went, in s: the middle rank / the slowest of all repetitions (which)"


def over(jobs: Sequence[Sequence[Ledger]]) -> tuple[Phase, ...]:
    """The phases of several repetitions: the median, and the slowest of all."""
    every = [phases(job) for job in jobs]
    names = [one.name for one in every[0]]
    return tuple(_over(name, [p for one in every for p in one if p.name == name]) for name in names)


def _over(name: str, found: Sequence[Phase]) -> Phase:
    slowest = max(found, key=lambda one: one.slowest)
    return Phase(name, median(one.median for one in found), slowest.slowest, slowest.rank)


def phase_table(rows: Sequence[Row]) -> str:
    """A block for each start and side of those rows that have phases; empty without any.

    Jobs of a peer that stand beside several of ours are shown once.
    """
    starts = [row for row in rows if row.phases]
    blocks: list[list[str]] = []
    for what in dict.fromkeys(row.what for row in starts):
        same = [row for row in starts if row.what == what]
        blocks.append([f"{what}, {OURS}", *_block([(row.scale, row.phases) for row in same])])
        peers = [*_block([(row.scale, row.their_phases) for row in same])]
        if peers not in [block[1:] for block in blocks]:
            blocks.append([f"{what}, {same[0].peer}", *peers])
    text = ["\n".join(line.rstrip() for line in block) for block in blocks]
    return "\n\n".join([HEAD, *text]) if text else ""


def _block(columns: Sequence[tuple[int, Sequence[Phase]]]) -> Iterator[str]:
    """The lines of one side: a phase each, a column for each number of ranks."""
    yield f"  {'ranks':<12}" + "".join(f"{ranks:<24,}" for ranks, _ in columns)
    for name in dict.fromkeys(one.name for _, found in columns for one in found):
        cells = ({one.name: _cell(one) for one in found}.get(name, "") for _, found in columns)
        yield f"  {name:<12}" + "".join(f"{cell:<24}" for cell in cells)


def _cell(one: Phase) -> str:
    return f"{figure_text(one.median)} / {figure_text(one.slowest)} ({one.rank})"
