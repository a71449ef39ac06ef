"""``meshkit explain``: the coordinate, peers, samples and seeds of one rank, or of all ranks."""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from functools import partial

from ...core.batch import BatchPlan
from ...core.call import either
from ...core.errors import CoordinateError, SpecError
from ...core.grid.layout import Layout
from ...core.report.job import headline
from ...core.report.rank import format_rank, format_rank_table, rank_reports
from ...core.sequence import SequencePlan, plan_sequence, sequence_axes
from ...core.text import count_noun
from ..command import Command, Result
from ..options.batch import add_batch, read_batch, read_data_axes
from ..options.grid import SIZES_HELP, add_grid, read_layout
from ..options.nodes import add_nodes, read_topology
from ..options.numbers import INTEGER, read_count, read_integer

MAX_ROWS = 2**18  # ranks in one list, which takes some seconds
MAX_NUMBERS = 10**7  # numbers in JSON, which takes some seconds


def run(args: Namespace) -> Result:
    """Report the requested rank, or all. Pure: no torch, no processes."""
    rank, words = _split_rank(args)
    layout = read_layout(words, args)
    _check_rank(layout, rank)
    topology = read_topology(layout, args)
    (data,) = read_data_axes(args, layout)
    batch, sequence = read_batch(layout, args, data), _read_sequence(layout, args.seq)
    ranks = layout.ranks if rank is None else [rank]
    if len(ranks) > MAX_ROWS:
        summary = f"{len(ranks)} ranks are too many for a list with one row a rank."
        raise SpecError(summary, fix=f"at most {MAX_ROWS} ranks, or a single rank.")
    if args.json:
        _check_numbers(layout, len(ranks), batch)
    reports = rank_reports(layout, ranks, topology, batch, sequence, args.seed, data=data)
    if rank is None:
        return Result(
            lambda: {"ranks": [report.as_dict() for report in reports]},
            partial(format_rank_table, layout, topology),
        )
    report = next(reports)
    return Result(report.as_dict, partial(format_rank, report, layout, headline(layout, topology)))


def _split_rank(args: Namespace) -> tuple[int | None, list[str]]:
    """Return the rank, or None for all ranks, and the words of the sizes."""
    given = [] if args.rank is None else [str(args.rank)]
    words = sorted(
        [*given, *args.words], key=lambda word: not INTEGER.fullmatch(word)
    )  # rank first
    first, *rest = words
    has_rank = bool(INTEGER.fullmatch(first)) and first[0] != "-"
    if args.all and has_rank:
        raise SpecError("a rank and --all exclude each other.", fix="leave out --all.")
    if args.all:
        return None, args.words
    if not has_rank:
        sizes = " ".join(rest if INTEGER.fullmatch(first) else args.words) or "dp=4 sp=2"
        fix = f"for example meshkit explain 0 {sizes}, or meshkit explain {sizes} --all."
        raise SpecError("no rank is given.", fix=fix)
    if not rest:
        raise SpecError("no size is given.", fix="for example dp=4 sp=2.")
    return int(first), rest


def _check_rank(layout: Layout, rank: int | None) -> None:
    """Refuse a rank that the layout does not have."""
    ranks = layout.num_ranks
    if rank is not None and rank >= ranks:
        raise CoordinateError(
            f"there is no rank {rank}.",
            f"The grid has {count_noun(ranks, 'rank')}, counted from 0.",
            fix=f"a rank from 0 to {ranks - 1}." if ranks > 1 else "rank 0.",
            index=rank,
            size=ranks,
        )


def _check_numbers(layout: Layout, ranks: int, batch: BatchPlan | None) -> None:
    """Refuse JSON, which lists all peers and samples, with too many numbers."""
    samples = 0 if batch is None else batch.global_batch // batch.dp
    numbers = ranks * (sum(layout.shape) + samples)
    if numbers > MAX_NUMBERS:
        summary = f"{count_noun(ranks, 'rank')} with {numbers} peers and samples in all."
        limit = f"JSON has at most {MAX_NUMBERS} of them."
        raise SpecError(summary, limit, fix="leave out --json.")


def _read_sequence(layout: Layout, length: int | None) -> SequencePlan | None:
    """Return the plan of a sequence that the sequence axes cut, or None without a length."""
    if length is None:
        return None
    try:
        return plan_sequence(layout, sequence_axes(layout), length)
    except SpecError as error:
        if ways := [f"--seq {n}" for n in (error.below, error.above) if n]:
            error.fix = either(*ways)
        raise


def _add_options(parser: ArgumentParser) -> None:
    help = f"a rank, and {SIZES_HELP}"
    parser.add_argument("words", nargs="+", metavar="WORD", help=help)
    parser.add_argument("--rank", type=partial(read_integer, least=0), help=SUPPRESS)
    help = "all ranks instead of one"
    parser.add_argument("--all", action="store_true", default=None, help=help)
    add_grid(parser)
    add_nodes(parser)
    add_batch(parser)
    help = "tokens of a sequence; axes such as cp, sp and seq cut it"
    parser.add_argument("--seq", type=read_count, metavar="N", help=help)
    parser.add_argument("--seed", type=read_integer, metavar="N", help="the seed of the job")


EXPLAIN = Command(
    "explain",
    "report one rank: coordinate, peers, samples, seeds",
    _add_options,
    run,
    ("5 dp=4 sp=2 --nodes 2 --seed 1", "--all dp=4 sp=2 --nodes 2"),
)
