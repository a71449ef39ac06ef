"""``meshkit explain``: all about one rank, or about all of them, before the job runs."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from ...core.data.batch import BatchPlan
from ...core.data.sequence import SequencePlan, plan_sequence
from ...core.errors import Change, CoordinateError, SpecError
from ...core.grid.layout import Layout
from ...core.report.job import headline
from ...core.report.rank import format_rank, format_rank_table, rank_reports, sequence_axes
from ...core.text import count_noun
from .. import terminal
from ..command import Command, Result
from ..options.command_line import command_line
from ..options.grid import (
    INTEGER,
    add_batch,
    add_grid,
    batch_of,
    integer,
    layout_of,
    number,
    sizes_of,
    topology_of,
)

ROWS = 2**18  # ranks listed at once: some seconds
MOST = 10**7  # numbers in JSON: some seconds


def run(asked: Namespace) -> Result:
    """Say all about the rank that was asked for. Pure: no torch, no processes.

    Args:
        asked: ``words``, a rank and sizes; the options of a grid and of a batch; ``seq``, ``seed``
            and ``all``.

    Raises:
        SpecError: as :func:`meshkit.cli.commands.plan.run`; for no rank, or one beside ``--all``.
        CoordinateError: for a rank that there is not.
        BatchError: for a batch that does not divide.
    """
    rank, words = _rank_of(asked)
    sizes = sizes_of(words, f"meshkit explain{'' if rank is None else f' {rank}'}")
    asked.line = command_line(asked, sizes, *([] if rank is None else [rank]))
    layout = layout_of(sizes, asked.order, asked.world)
    _check_rank(layout, rank)
    topology = topology_of(layout, asked)
    batch, sequence = batch_of(layout, asked), _sequence_of(layout, asked.seq)
    ranks = layout.ranks if rank is None else [rank]
    if len(ranks) > ROWS:
        line = f"{len(ranks)} ranks are too many to list, a row each."
        raise SpecError(line, fix=f"{ROWS} or fewer; or one rank.")
    found = rank_reports(layout, ranks, topology, batch, sequence, asked.seed)
    if asked.json:
        _check_numbers(layout, len(ranks), batch)
        said = [about.as_dict() for about in found]
        return Result(json.dumps({"ranks": said} if rank is None else said[0]))
    width, ascii = terminal.width(), not terminal.lines()
    if rank is None:
        return Result(format_rank_table(layout, topology, width=width, ascii=ascii))
    job = headline(layout, topology)
    return Result(format_rank(next(found), layout, job, width=width, ascii=ascii))


def _rank_of(asked: Namespace) -> tuple[int | None, list[str]]:
    """The rank, or None for all, and the sizes among the words that were typed.

    Raises:
        SpecError: where there is no rank, or one beside ``--all``.
    """
    first, *rest = asked.words
    line = f"meshkit explain {' '.join(asked.words)}"
    ranked = bool(INTEGER.fullmatch(first)) and first[0] != "-"
    if asked.all:
        if ranked:
            raise SpecError(
                f"{line} --all: one rank, or all of them?", fix="leave out one of the two."
            )
        return None, asked.words
    if not ranked or not rest:
        words = rest if INTEGER.fullmatch(first) else asked.words
        fix = f"meshkit explain 0 {' '.join(words) or 'dp=4 sp=2'}, or --all."
        if ranked:
            fix = f"meshkit explain {first} dp=4 sp=2, say."
        raise SpecError(f"{line}: no {'size' if ranked else 'rank'} is given.", fix=fix)
    return int(first), rest


def _check_rank(layout: Layout, rank: int | None) -> None:
    """Refuse a rank that there is not.

    Raises:
        CoordinateError: with those that there are.
    """
    ranks = layout.num_ranks
    if rank is not None and rank >= ranks:
        raise CoordinateError(
            f"there is no rank {rank}.",
            f"There {'is' if ranks == 1 else 'are'} {ranks}, counted from 0.",
            fix=f"a rank from 0 to {ranks - 1}." if ranks > 1 else "rank 0.",
            index=rank,
            size=ranks,
        )


def _check_numbers(layout: Layout, ranks: int, batch: BatchPlan | None) -> None:
    """Refuse more numbers in JSON, which has all peers and samples, than can be written.

    Raises:
        SpecError: with how many there would be.
    """
    samples = 0 if batch is None else batch.global_batch // batch.dp
    many = ranks * (sum(layout.shape) + samples)
    if many > MOST:
        line = f"{count_noun(ranks, 'rank')} with {many} peers and samples in all."
        raise SpecError(line, f"JSON says up to {MOST}.", fix=(Change(json=None), "."))


def _sequence_of(layout: Layout, length: int | None) -> SequencePlan | None:
    """The plan of the sequence that was asked for, over cp and sp.

    Raises:
        SpecError: for a length that does not divide.
    """
    if length is None:
        return None
    try:
        return plan_sequence(layout, sequence_axes(layout), length)
    except SpecError as error:
        head = str(error).rpartition("Fix: ")[0]
        near = [f"--seq {n}" for n in (error.below, error.above) if n]
        raise SpecError(f"{head}Fix: {', or '.join(near)}.", **vars(error)) from None


def _add(parser: ArgumentParser) -> None:
    text = "a rank, and the size of each axis: 5 dp=4 sp=2"
    parser.add_argument("words", nargs="+", metavar="WORD", help=text)
    parser.add_argument(
        "--all", action="store_true", default=None, help="all ranks, in place of one"
    )
    add_grid(parser)
    add_batch(parser)
    length = "tokens of a sequence, cut over cp and sp"
    parser.add_argument("--seq", type=number, metavar="N", help=length)
    parser.add_argument("--seed", type=integer, metavar="N", help="the seed of the job")


EXPLAIN = Command("explain", "all about one rank: its place, peers, samples, seeds", _add, run)
