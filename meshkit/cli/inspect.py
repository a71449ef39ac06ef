"""``meshkit plan``: a job before it runs: its axes, its grid on nodes, its groups and batch.

``meshkit explain``: the coordinate, peers, samples and seeds of one rank, or of all ranks.

``meshkit move``: the steps, groups and bytes of a redistribution, and of its gradient.

``meshkit search``: the layouts that fit a model and a world, ranked by predicted step time.
"""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ..core.axes import axis_colors
from ..core.batch import BatchPlan
from ..core.call import divisors, either
from ..core.cost.memory import ModelShape
from ..core.cost.search import DISCLAIMER, format_search, search
from ..core.cost.step_time import MACHINES, TrainingJob, check_job
from ..core.errors import CoordinateError, SpecError
from ..core.group_plan import GroupPlan
from ..core.layout import Layout
from ..core.page import draw_page
from ..core.redistribute.report import RedistributionPlan, plan_redistribution
from ..core.report import JobReport, format_rank, format_rank_table, headline, rank_reports
from ..core.sequence import SequencePlan, plan_sequence, sequence_axes
from ..core.text import Ints, count_noun
from ..core.topology import Topology, placed
from ..launch.progress import Progress, show_progress
from .main import Command, Result
from .options import (
    DEFAULT_MACHINE,
    INTEGER,
    SIZES_HELP,
    add_batch,
    add_grid,
    add_groups,
    add_nodes,
    add_world_size,
    read_axis_sizes,
    read_batch,
    read_count,
    read_data_axes,
    read_gigabytes,
    read_integer,
    read_layout,
    read_machine,
    read_option_file,
    read_topology,
    split_sizes,
)


def run(args: Namespace) -> Result:
    """Report the job that the options describe. Pure: no torch, no processes."""
    report = _report(args)
    if args.html is not None:
        write_page(args.html, report.layout, report.nodes)
    return Result(report.as_dict, report.draw)


def _report(args: Namespace) -> JobReport:
    layout = read_layout(args.words, args)
    topology = read_topology(layout, args)
    before = layout
    if args.place:
        layout = _place(layout, topology)
    plan = GroupPlan.of(layout, args.groups or ())
    (data,) = read_data_axes(args, layout)
    batch = read_batch(layout, args, data)
    return JobReport.of(plan, topology, batch, data=data, before=before if args.place else None)


def _place(layout: Layout, topology: Topology | None) -> Layout:
    """Return the layout with ranks placed on their nodes."""
    if topology is None:
        nodes = next((n for n in divisors(layout.num_ranks) if n > 1), 1)
        fix = f"for example --nodes {nodes}, or --hosts FILE."
        raise SpecError("the nodes of the ranks are unknown.", fix=fix)
    return placed(layout, topology)


def write_page(path: str, layout: Layout, nodes: Ints | None) -> None:
    """Draw a layout into a file, which is replaced."""
    text = draw_page(layout.sizes_text, axis_colors(layout.axes), layout.grid, nodes)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        summary = f"the page cannot be written: {reason}."
        raise SpecError(summary, fix="a file in an existing folder with write access.") from error


def _add_options(parser: ArgumentParser) -> None:
    help = f"{SIZES_HELP}; one size can be -1"
    parser.add_argument("words", nargs="+", metavar="AXIS=SIZE", help=help)
    add_grid(parser)
    add_nodes(parser)
    add_batch(parser)
    add_groups(parser)
    help = "place the ranks so that axes that communicate most stay inside nodes"
    parser.add_argument("--place", action="store_true", help=help)
    help = "also draw the grid into this page, which shows the groups of the rank under the pointer"
    parser.add_argument("--html", metavar="FILE", help=help)


PLAN = Command(
    "plan",
    "report a job before it runs: axes, nodes, groups, batch",
    _add_options,
    run,
    (
        "dp=4 sp=2 --nodes 2",
        "dp=4 --global-batch 64 --micro-batch 4",
    ),
)


MAX_ROWS = 2**18  # ranks in one list, which takes some seconds
MAX_NUMBERS = 10**7  # numbers in JSON, which takes some seconds


def run_explain(args: Namespace) -> Result:
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


def _add_options_explain(parser: ArgumentParser) -> None:
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
    _add_options_explain,
    run_explain,
    ("5 dp=4 sp=2 --nodes 2 --seed 1", "--all dp=4 sp=2 --nodes 2"),
)


def run_move(args: Namespace) -> Result:
    """Plan a redistribution. Pure: no torch, no processes."""
    plan = _read_plan(args)
    return Result(plan.as_dict, plan.draw)


def _read_plan(args: Namespace) -> RedistributionPlan:
    mesh, pattern, dims = _split_words(args.words)
    to = None if args.to is None else " ".join(split_sizes([args.to]))
    return plan_redistribution(mesh, pattern, to=to, sizes=read_axis_sizes(dims))


def _split_words(words: Sequence[str]) -> tuple[str, str, list[str]]:
    """Return the sizes of the mesh, the pattern and the sizes of the dims."""
    index = next((i for i, word in enumerate(words) if "->" in word), None)
    if index is None:
        fix = "for example meshkit move dp=4 tp=2 'o/dp i -> o i *dp' o=4096 i=4096."
        raise SpecError("there is no pattern: the tensor before, ->, and after.", fix=fix)
    return " ".join(split_sizes(words[:index])), words[index], split_sizes(words[index + 1 :])


def _add_options_move(parser: ArgumentParser) -> None:
    help = (
        "the size of each axis, dp=4 tp=2; then the tensor before and after in one word, "
        '"o/dp i -> o i *dp"; then each dim with its global size, o=4096'
    )
    parser.add_argument("words", nargs="+", metavar="WORD", help=help)
    help = "the sizes of another view of the mesh, which the right side of the pattern names"
    parser.add_argument("--to", metavar="AXES", help=help)


MOVE = Command(
    "move",
    "plan how a tensor moves over axes: steps, bytes",
    _add_options_move,
    run_move,
    (
        "dp=4 tp=2 'o/dp i -> o i *dp' o=4096 i=4096",
        "tp=2 'o/tp i -> o i/tp' o=64 i=64",
    ),
)


TOP = 10  # layouts that are shown by default


def run_search(args: Namespace) -> Result:
    """Rank the layouts that fit. Local, without torch; at most a second for 16,384 ranks."""
    model = ModelShape.of(read_option_file("model", args.model, "the config.json of a model."))
    machine, assumed = read_machine(args)
    numbers = args.world_size, args.nodes, args.global_batch, args.seq
    check_job(*numbers)
    job = TrainingJob(*numbers, machine)
    with show_progress(Progress("meshkit search", sys.stderr)) as progress:
        progress.state = f"the layouts of {job.world_size} ranks are ranked"
        result = search(model, job, args.top or TOP)
    ok = bool(result.best)
    title = f"{Path(args.model).name}: {model.parameters / 1e9:.2f} billion weights"
    request = {"model": asdict(model), "parameters": model.parameters, "job": asdict(job)}
    return Result(
        lambda: {"ok": ok, **request, **asdict(result), "note": DISCLAIMER},
        partial(format_search, result, job, title, unmeasured=assumed),
        ok,
    )


def _add_options_search(parser: ArgumentParser) -> None:
    required = {
        "nodes": "the number of equal nodes, with consecutive ranks on each",
        "global-batch": "samples of one optimizer step",
        "seq": "tokens of one sample",
    }
    add_world_size(parser, "the number of ranks", required=True)
    for name, help in required.items():
        parser.add_argument(f"--{name}", type=read_count, required=True, metavar="N", help=help)
    help = "the config.json of the model, in the format of the Hugging Face Hub"
    parser.add_argument("--model", required=True, metavar="FILE", help=help)
    help = (
        f"{', '.join(MACHINES)}, or a JSON file of measured figures, for example the output of "
        f"meshkit bench --json (default {DEFAULT_MACHINE})"
    )
    parser.add_argument("--links", metavar="NAME", help=help)
    help = "GB (1e9 bytes) of one device that a job may fill (default: all of the device)"
    parser.add_argument("--memory", type=read_gigabytes, metavar="GB", help=help)
    help = f"the number of layouts to show (default {TOP})"
    parser.add_argument("--top", type=read_count, metavar="N", help=help)


MODEL = "--model examples/llama-3-8b.json"
SEARCH = Command(
    "search",
    "rank the layouts that fit a model",
    _add_options_search,
    run_search,
    (
        f"{MODEL} \\\n    --world-size 64 --nodes 8 --global-batch 512 --seq 8192",
        f"{MODEL} --top 3 \\\n    --world-size 8 --nodes 1 --global-batch 64 --seq 4096",
    ),
)
