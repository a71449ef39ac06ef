"""Commands without torch and without processes: ``plan``, ``explain``, ``move``, ``search``."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import zip_longest

from ..call import divisors, drop_none
from ..data.batch import BatchPlan, resolve_data_axes
from ..errors import BatchError, CoordinateError, SpecError
from ..launch.log import Progress, show_progress
from ..layout.crossings import placed
from ..layout.group_plan import GroupPlan
from ..layout.layout import Layout
from ..layout.sequence import SequencePlan, plan_sequence, sequence_axes
from ..layout.sizes import parse_sizes
from ..layout.topology import Topology
from ..plan.job_report import JobReport, PlanReport, headline
from ..plan.layout_cost import RACK, CostTable, LayoutCost, axes_by_standard
from ..plan.memory import RECOMPUTE, SHARDS, ModelShape
from ..plan.rank_report import format_rank, format_rank_table, rank_reports
from ..plan.search import fastest_cost, format_search, nearest_layouts, search
from ..plan.step_time import TrainingJob
from ..redistribute.report import plan_redistribution
from ..text import DTYPE_BYTES, INTEGER, count_noun, dtype_name
from . import options
from .main import Command, Result

MAX_NUMBERS = 10**7  # in one list of ranks, which takes some seconds
TOP = 5  # kinds of layouts that search shows by default
MODEL = "--model llama3-8b"  # of the examples


def run_plan(args: Namespace) -> Result:
    """Report the job in one layout, or in several side by side and what moves between them."""
    numbered = [options.read_layout(words, args) for words in options.split_layouts(args.words)]
    if len({layout.num_ranks for layout in numbered}) > 1:
        ranks = ", ".join(str(layout.num_ranks) for layout in numbered)
        raise SpecError(f"the layouts have {ranks} ranks.", fix="layouts of equally many ranks.")
    topology = options.read_topology(numbered[0], args)
    if args.place and topology is None:
        nodes = next((n for n in divisors(numbered[0].num_ranks) if n > 1), 1)
        fix = f"for example --nodes {nodes}, or --hosts FILE."
        raise SpecError("the nodes of the ranks are unknown.", fix=fix)
    layouts, before = numbered, []
    if args.place and topology is not None:
        layouts, before = [placed(layout, topology) for layout in numbered], numbered
    costs = read_costs([*layouts, *before], topology, args)
    batches = [
        options.read_batch(layout, args, options.read_data_axes(layout, args), micro_batch)
        for layout, micro_batch in zip_longest(
            layouts, [cost.micro_batch for cost in costs.costs[: len(layouts)]] if costs else []
        )
    ]
    reports = [
        JobReport.of(
            GroupPlan.of(layout, args.groups or ()),
            topology,
            batch,
            data=options.read_data_axes(layout, args),
            before=unplaced,
        )
        for layout, batch, unplaced in zip_longest(layouts, batches, before)
    ]
    report = PlanReport(tuple(reports), costs)
    if args.html is not None:
        options.write_file("page", args.html, report.draw_page())
    fits = costs is None or all(cost.fits for cost in costs.costs[: len(layouts)])
    return Result(report.as_dict, report.draw, fits)


def read_costs(
    layouts: Sequence[Layout], topology: Topology | None, args: Namespace
) -> CostTable | None:
    """Return the figures of layouts of equal ranks for ``--model``, or None without a model.

    With ``--place``, the second half of the layouts are those of the first half as numbered.
    """
    if args.model is None:
        options.refuse_model_options(args)
        return None
    needed = {"--nodes": topology, "--global-batch": args.global_batch, "--seq": args.seq}
    missing = [option for option, value in needed.items() if value is None]
    if topology is None or missing:
        raise SpecError(f"--model needs {', '.join(needed)}.", fix=f"add {' N, '.join(missing)} N.")
    name, model = options.read_model(args)
    racks = 1 if RACK not in topology.levels else len(topology.domain_names(RACK))
    ranks = layouts[0].num_ranks, topology.num_nodes
    job = options.read_job(args, *ranks, racks)
    half = len(layouts) // 2
    choices = {
        "micro batch": args.micro_batch or args.accumulation_steps,
        "sharding": args.shard,
        "recomputation": args.recompute,
    }
    return CostTable(
        name,
        model,
        job,
        options.links_name(args),
        tuple(read_cost(model, job, layout, topology, args) for layout in layouts),
        (*["placed"] * half, *["as numbered"] * half) if args.place else (),
        tuple(choice for choice, value in choices.items() if value is None),
    )


def read_cost(
    model: ModelShape, job: TrainingJob, layout: Layout, topology: Topology, args: Namespace
) -> LayoutCost:
    """Return the figures of a layout, in the options that are given."""
    axes_by_standard(layout)  # raises if an axis has no cost
    data = options.read_data_axes(layout, args)
    shared = resolve_data_axes(None, layout.sizes)
    if data is not None and {*data} != {*shared}:
        line = f"--model counts samples over {' '.join(shared)}, and --data says otherwise."
        raise SpecError(line, fix="leave out --data, or --model.")
    batch = options.read_batch(layout, args, data, 1)
    is_given = args.micro_batch or args.accumulation_steps
    try:
        return fastest_cost(
            model,
            job,
            layout,
            topology,
            micro_batch=batch.micro_batch if is_given and batch else None,
            shard=args.shard,
            recompute=args.recompute,
        )
    except SpecError as error:
        if error.below or error.above:
            raise options.with_nearest(error, "--seq") from None
        for other in nearest_layouts(model, job, layout):
            with suppress(BatchError):  # its data axes do not divide the batch
                options.read_batch(other, args, data, 1)
                raise error.but(
                    fix=f"{other.sizes_text} in place of {layout.sizes_text}."
                ) from None
        raise


def _add_plan(parser: ArgumentParser) -> None:
    help = (
        f"{options.SIZES_HELP}; one size can be -1. Several layouts are compared, each a word with "
        'a blank or a comma: "dp=8 tp=8" "dp=64 tp=1"'
    )
    parser.add_argument("words", nargs="+", metavar="AXIS=SIZE", help=help)
    options.add_grid(parser)
    options.add_nodes(parser)
    options.add_batch(parser)
    options.add_groups(parser)
    options.add_model(parser)
    chosen = "(default: the fastest that fits)"
    help = f"how copies share weights, gradients and optimizer {chosen}"
    parser.add_argument("--shard", choices=SHARDS, help=help)
    help = f"what backward computes again: norms and activation functions, layers, nothing {chosen}"
    parser.add_argument("--recompute", choices=RECOMPUTE, help=help)
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
    words = [word.removeprefix("rank=") for word in args.words]  # no axis has this name
    first, *rest = sorted(words, key=lambda word: not INTEGER.fullmatch(word))  # rank first
    is_number = bool(INTEGER.fullmatch(first))
    has_rank = is_number and first[0] != "-"
    if args.all and has_rank:
        raise SpecError("a rank and --all exclude each other.", fix="leave out --all.")
    if args.all:
        return None, args.words
    if not has_rank:
        sizes = " ".join(rest if is_number else args.words) or "dp=4 sp=2"
        fix = f"for example meshkit explain 0 {sizes}, or meshkit explain {sizes} --all."
        raise SpecError("no rank is given.", fix=fix)
    if not rest and args.world_size is None:
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
        raise options.with_nearest(error, "--seq") from None


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
    if index == 0:
        fix = (
            "the size of each axis before it, for example dp=4 tp=2 'o/dp i -> o i' o=4096 i=4096."
        )
        raise SpecError("no axis stands before the pattern.", fix=fix)
    to = args.to
    dims = parse_sizes(words[index + 1 :])
    mesh = " ".join(words[:index])
    plan = plan_redistribution(mesh, words[index], to=to, dtype=args.dtype, sizes=dims)
    return Result(plan.as_dict, partial(plan.draw, speed=args.speed))


def _add_move(parser: ArgumentParser) -> None:
    help = (
        "the size of each axis, dp=4 tp=2; then the tensor before and after in one word, "
        '"o/dp i -> o i *dp"; then each dim with its global size, o=4096'
    )
    parser.add_argument("words", nargs="+", metavar="WORD", help=help)
    help = "the mesh that the right side names, on other ranks, such as dp=8 tp=4"
    parser.add_argument("--to", metavar="AXES", help=help)
    help = "the dtype of the tensor, such as bf16; float32 by default"
    dtype = parser.add_argument("--dtype", metavar="NAME", type=dtype_name, help=help)
    dtype.default, dtype.choices = "float32", sorted(DTYPE_BYTES)
    help = "the GB/s that a rank receives: show the milliseconds of the bytes, too"
    parser.add_argument("--speed", type=options.read_gigabytes, metavar="GB/S", help=help)


def run_search(args: Namespace) -> Result:
    """Rank the layouts that fit, in at most a second for 16,384 ranks."""
    name, model = options.read_model(args)
    options.check_nodes(args.world_size, args.nodes, args.racks)
    job = options.read_job(args, args.world_size, args.nodes, args.racks or 1)
    with show_progress(Progress("meshkit search", sys.stderr)) as progress:
        progress.state = f"the layouts of {job.world_size} ranks are ranked"
        result = search(model, job, args.top)
    table, ok = (
        CostTable(name, model, job, options.links_name(args), result.best),
        bool(result.best),
    )
    return Result(
        lambda: {
            "ok": ok,
            **table.as_dict(),
            "fits": result.fits,
            "excluded": [asdict(reason) for reason in result.excluded],
        },
        partial(format_search, result, table, same_job(args)),
        ok,
    )


def same_job(args: Namespace) -> str:
    """Return the options of ``meshkit plan`` for the job of a search."""
    names = ("model", "nodes", "racks", "global_batch", "seq", "links", "memory", "dtype")
    given = drop_none(**{name: getattr(args, name) for name in names})
    return shlex.join(
        word
        for name, value in given.items()
        for word in (
            f"--{name.replace('_', '-')}",
            f"{value:g}" if isinstance(value, float) else str(value),
        )
    )


def _add_search(parser: ArgumentParser) -> None:
    required = {
        "nodes": "the number of equal nodes, with consecutive ranks on each",
        "global-batch": "samples of one optimizer step",
    }
    options.add_world_size(parser, "the number of ranks", required=True)
    for name, help in required.items():
        parser.add_argument(
            f"--{name}", type=options.read_count, required=True, metavar="N", help=help
        )
    help = "the number of equal racks, which the nodes fill one after the other"
    parser.add_argument("--racks", type=options.read_count, metavar="N", help=help)
    options.add_model(parser, required=True)
    help = f"the number of kinds of layouts to show, which differ in their axes (default {TOP})"
    parser.add_argument("--top", type=options.read_count, default=TOP, metavar="N", help=help)


PLAN = Command(
    "plan",
    "report a job before it runs: axes, nodes, groups, batch, cost",
    _add_plan,
    run_plan,
    (
        "dp=4 sp=2 --nodes 2 \\\n    --global-batch 64 --micro-batch 4",
        f'"dp=8 tp=8" "dp=64" --nodes 8 \\\n    {MODEL} --global-batch 512 --seq 8192',
    ),
    complete=options.missing_batch_size,
)
EXPLAIN = Command(
    "explain",
    "report one rank: coordinate, peers, samples, seeds",
    _add_explain,
    run_explain,
    ("5 dp=4 sp=2 --nodes 2 --seed 1", "--all dp=4 sp=2 --nodes 2"),
    complete=options.missing_batch_size,
)
MOVE = Command(
    "move",
    "plan how a tensor moves over axes: steps, bytes",
    _add_move,
    run_move,
    ("dp=4 tp=2 'o/dp i -> o i *dp' o=4096 i=4096", "tp=2 'o/tp i -> o i/tp' o=64 i=64"),
    "The tensor before, ->, and after are one word, so a shell needs them in quotes.",
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
    "meshkit plan reports a layout that you choose, with the same options.",
)
