"""``meshkit plan``: a job before it runs: its axes, its grid on nodes, its groups and batch."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from ...core.arrays import Ints
from ...core.axes import axis_colors
from ...core.draw.page import draw_page
from ...core.errors import SpecError
from ...core.grid.group_plan import GroupPlan
from ...core.grid.layout import Layout
from ...core.report.job import JobReport
from ...core.topology.crossing import placed
from ...core.topology.topology import Topology
from ...core.validate import divisors
from ..command import Command, Result
from ..options.batch import add_batch, read_batch, read_data_axes
from ..options.grid import SIZES_HELP, add_grid, add_groups, read_layout
from ..options.nodes import add_nodes, read_topology


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
