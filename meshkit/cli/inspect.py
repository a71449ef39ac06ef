"""Commands without torch and without processes: ``plan``, ``explain``, ``move``, ``search``."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from functools import partial
from pathlib import Path

from ..core.batch import BatchPlan
from ..core.call import divisors, either
from ..core.cost.memory import ModelShape
from ..core.cost.search import DISCLAIMER, format_search, search
from ..core.cost.step_time import MACHINES, TrainingJob, check_job
from ..core.errors import CoordinateError, SpecError
from ..core.group_plan import GroupPlan
from ..core.layout import Layout
from ..core.redistribute.report import plan_redistribution
from ..core.report import JobReport, format_rank, format_rank_table, headline, rank_reports
from ..core.sequence import SequencePlan, plan_sequence, sequence_axes
from ..core.text import count_noun
from ..core.topology import placed
from ..launch.log import Progress, show_progress
from . import options
from .main import Command, Result

MAX_NUMBERS = 10**7  # in one list of ranks, which takes some seconds
TOP = 10  # layouts that search shows by default
MODEL = "--model examples/llama-3-8b.json"  # of the examples of search


def run_plan(args: Namespace) -> Result:
    """Report the job that the options describe."""
    layout = before = options.read_layout(args.words, args)
    topology = options.read_topology(layout, args)
    if args.place:
        if topology is None:
            nodes = next((n for n in divisors(layout.num_ranks) if n > 1), 1)
            fix = f"for example --nodes {nodes}, or --hosts FILE."
            raise SpecError("the nodes of the ranks are unknown.", fix=fix)
        layout = placed(layout, topology)
    plan = GroupPlan.of(layout, args.groups or ())
    data = options.read_data_axes(layout, args)
    batch = options.read_batch(layout, args, data)
    placed_before = before if args.place else None
    report = JobReport.of(plan, topology, batch, data=data, before=placed_before)
    if args.html is not None:
        write_page(args.html, report)
    return Result(report.as_dict, report.draw)


def write_page(path: str, report: JobReport) -> None:
    """Draw the page of a report into a file, which is replaced."""
    text = report.draw_page()
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        summary = f"the page cannot be written: {error.strerror}."
        raise SpecError(summary, fix="a file in an existing folder with write access.") from error


def _add_plan(parser: ArgumentParser) -> None:
    help = f"{options.SIZES_HELP}; one size can be -1"
    parser.add_argument("words", nargs="+", metavar="AXIS=SIZE", help=help)
    options.add_grid(parser)
    options.add_nodes(parser)
    options.add_batch(parser)
    options.add_groups(parser)
    help = "place the ranks so that axes that communicate most stay inside nodes"
    parser.add_argument("--place", action="store_true", help=help)
    help = "also write a page that shows the groups and links of the rank under the pointer"
    parser.add_argument("--html", metavar="FILE", help=help)


def run_explain(args: Namespace) -> Result:
    """Report the requested rank, or all."""
    rank, words = _split_rank(args)
    layout = options.read_layout(words, args)
    num_ranks = layout.num_ranks
    if rank is not None and rank >= num_ranks:
        raise CoordinateError(
            f"there is no rank {rank}.",
            f"The grid has {count_noun(num_ranks, 'rank')}, counted from 0.",
            fix=f"a rank from 0 to {num_ranks - 1}." if num_ranks > 1 else "rank 0.",
            index=rank,
            size=num_ranks,
        )
    topology = options.read_topology(layout, args)
    data = options.read_data_axes(layout, args)
    batch, sequence = options.read_batch(layout, args, data), _read_sequence(layout, args.seq)
    ranks = layout.ranks if rank is None else [rank]
    _check_length(layout, len(ranks), batch, as_json=args.json)
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
    first, *rest = sorted(
        args.words, key=lambda word: not options.INTEGER.fullmatch(word)
    )  # rank first
    is_number = bool(options.INTEGER.fullmatch(first))
    has_rank = is_number and first[0] != "-"
    if args.all and has_rank:
        raise SpecError("a rank and --all exclude each other.", fix="leave out --all.")
    if args.all:
        return None, args.words
    if not has_rank:
        sizes = " ".join(rest if is_number else args.words) or "dp=4 sp=2"
        fix = f"for example meshkit explain 0 {sizes}, or meshkit explain {sizes} --all."
        raise SpecError("no rank is given.", fix=fix)
    if not rest:
        raise SpecError("no size is given.", fix="for example dp=4 sp=2.")
    return int(first), rest


def _check_length(layout: Layout, ranks: int, batch: BatchPlan | None, *, as_json: bool) -> None:
    """Refuse a list of too many numbers; JSON has all peers and samples of each rank."""
    samples = 0 if batch is None else batch.global_batch // batch.dp
    numbers = ranks * (sum(layout.shape) + samples if as_json else 1)
    if numbers > MAX_NUMBERS:
        summary = f"{count_noun(ranks, 'rank')} with {numbers} numbers in all are too many."
        limit = f"A list has at most {MAX_NUMBERS} of them."
        raise SpecError(summary, limit, fix="leave out --json." if as_json else "a single rank.")


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


def _add_explain(parser: ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="+", metavar="WORD", help=f"a rank, and {options.SIZES_HELP}"
    )
    parser.add_argument("--all", action="store_true", help="all ranks instead of one")
    options.add_grid(parser)
    options.add_nodes(parser)
    options.add_batch(parser)
    help = "tokens of a sequence; axes such as cp, sp and seq cut it"
    parser.add_argument("--seq", type=options.read_count, metavar="N", help=help)
    parser.add_argument(
        "--seed", type=options.read_integer, metavar="N", help="the seed of the job"
    )


def run_move(args: Namespace) -> Result:
    """Plan a redistribution."""
    words = args.words
    index = next((i for i, word in enumerate(words) if "->" in word), None)
    if index is None:
        fix = "for example meshkit move dp=4 tp=2 'o/dp i -> o i *dp' o=4096 i=4096."
        raise SpecError("there is no pattern: the tensor before, ->, and after.", fix=fix)
    to = None if args.to is None else " ".join(options.split_sizes([args.to]))
    dims = options.read_axis_sizes(words[index + 1 :])
    mesh = " ".join(options.split_sizes(words[:index]))
    plan = plan_redistribution(mesh, words[index], to=to, dtype=args.dtype, sizes=dims)
    return Result(plan.as_dict, plan.draw)


def _add_move(parser: ArgumentParser) -> None:
    help = (
        "the size of each axis, dp=4 tp=2; then the tensor before and after in one word, "
        '"o/dp i -> o i *dp"; then each dim with its global size, o=4096'
    )
    parser.add_argument("words", nargs="+", metavar="WORD", help=help)
    help = "the mesh that the right side names, on other ranks, such as dp=8 tp=4"
    parser.add_argument("--to", metavar="AXES", help=help)
    help = "the dtype of the tensor, such as bf16; float32 by default"
    parser.add_argument("--dtype", default="float32", help=help)


def run_search(args: Namespace) -> Result:
    """Rank the layouts that fit, in at most a second for 16,384 ranks."""
    model = ModelShape.of(
        options.read_json_file("model", args.model, "the config.json of a model.")
    )
    machine = options.read_machine(args)
    numbers = args.world_size, args.nodes, args.global_batch, args.seq
    check_job(*numbers)
    job = TrainingJob(*numbers, machine)
    with show_progress(Progress("meshkit search", sys.stderr)) as progress:
        progress.state = f"the layouts of {job.world_size} ranks are ranked"
        result = search(model, job, args.top)
    ok = bool(result.best)
    title = f"{Path(args.model).name}: {model.parameters / 1e9:.2f} billion weights"
    request = {"model": asdict(model), "parameters": model.parameters, "job": asdict(job)}
    return Result(
        lambda: {"ok": ok, **request, **asdict(result), "note": DISCLAIMER},
        partial(format_search, result, job, title),
        ok,
    )


def _add_search(parser: ArgumentParser) -> None:
    required = {
        "nodes": "the number of equal nodes, with consecutive ranks on each",
        "global-batch": "samples of one optimizer step",
        "seq": "tokens of one sample",
    }
    options.add_world_size(parser, "the number of ranks", required=True)
    for name, help in required.items():
        parser.add_argument(
            f"--{name}", type=options.read_count, required=True, metavar="N", help=help
        )
    help = "the config.json of the model, in the format of the Hugging Face Hub"
    parser.add_argument("--model", required=True, metavar="FILE", help=help)
    names = f"{', '.join(MACHINES)} (default {options.DEFAULT_MACHINE})"
    help = f"{names}, or a JSON file of measured figures"
    parser.add_argument("--links", metavar="NAME", help=help)
    help = "GB (1e9 bytes) of one device that a job may fill (default: all of the device)"
    parser.add_argument("--memory", type=options.read_gigabytes, metavar="GB", help=help)
    help = f"the number of layouts to show (default {TOP})"
    parser.add_argument("--top", type=options.read_count, default=TOP, metavar="N", help=help)


PLAN = Command(
    "plan",
    "report a job before it runs: axes, nodes, groups, batch",
    _add_plan,
    run_plan,
    ("dp=4 sp=2 --nodes 2", "dp=4 --global-batch 64 --micro-batch 4"),
)
EXPLAIN = Command(
    "explain",
    "report one rank: coordinate, peers, samples, seeds",
    _add_explain,
    run_explain,
    ("5 dp=4 sp=2 --nodes 2 --seed 1", "--all dp=4 sp=2 --nodes 2"),
)
MOVE = Command(
    "move",
    "plan how a tensor moves over axes: steps, bytes",
    _add_move,
    run_move,
    ("dp=4 tp=2 'o/dp i -> o i *dp' o=4096 i=4096", "tp=2 'o/tp i -> o i/tp' o=64 i=64"),
)
SEARCH = Command(
    "search",
    "rank the layouts that fit a model",
    _add_search,
    run_search,
    (
        f"{MODEL} \\\n    --world-size 64 --nodes 8 --global-batch 512 --seq 8192",
        f"{MODEL} --top 3 \\\n    --world-size 8 --nodes 1 --global-batch 64 --seq 4096",
    ),
)
