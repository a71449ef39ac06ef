"""``meshkit plan``: a job before it runs: its axes, its grid on nodes, its groups and batch."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

from ...core.arrays import Ints
from ...core.call import drop_none
from ...core.draw.svg import MAX_RANKS, draw_svg
from ...core.errors import SpecError
from ...core.grid.group_plan import GroupPlan
from ...core.grid.layout import Layout
from ...core.report.job import JobReport, format_job
from ...core.text import count_noun
from ...core.topology.placement import Placement, placed
from ...core.topology.topology import Topology
from ...core.validate import divisors
from .. import terminal
from ..command import Command, Result
from ..options.batch import add_batch, read_batch, read_data_axes
from ..options.grid import SIZES_HELP, add_grid, add_groups, read_layout
from ..options.nodes import add_nodes, read_topology


def run(args: Namespace) -> Result:
    """Report the job that the options describe. Pure: no torch, no processes."""
    report = _report(args)
    written = draw_into(args.svg, report.layout, report.nodes)
    if args.json:
        return Result(json.dumps({**report.as_dict(), **drop_none(svg=args.svg)}))
    ascii = not terminal.get_line_characters()
    text = format_job(report, width=terminal.get_width(), ascii=ascii)
    return Result("\n\n".join([text, *written]), axes=report.layout.axes)


def _report(args: Namespace) -> JobReport:
    layout = read_layout(args.words, args)
    topology = read_topology(layout, args)
    placement = _place(layout, topology) if args.place else None
    layout = layout if placement is None else placement.layout
    plan = GroupPlan.of(layout, args.groups or ())
    (data,) = read_data_axes(args, layout)
    batch = read_batch(layout, args, data)
    return JobReport.of(plan, topology, batch, data=data, placement=placement)


def _place(layout: Layout, topology: Topology | None) -> Placement:
    """Return the layout with ranks placed on their nodes."""
    if topology is None:
        nodes = next((n for n in divisors(layout.num_ranks) if n > 1), 1)
        fix = f"for example --nodes {nodes}, or --hosts FILE."
        raise SpecError("the nodes of the ranks are unknown.", fix=fix)
    return placed(layout, topology)


def add_svg(parser: ArgumentParser) -> None:
    """Add the option ``--svg``."""
    help = "also draw the grid into this SVG file: colors are axes, boxes are nodes"
    parser.add_argument("--svg", metavar="FILE", help=help)


def draw_into(path: str | None, layout: Layout, nodes: Ints | None) -> list[str]:
    """Draw a layout into a file, which is replaced, and return a line that says so."""
    if path is None:
        return []
    if layout.num_ranks > MAX_RANKS:
        summary = f"{layout.num_ranks} ranks are too many for a picture."
        limit = f"A picture has at most {MAX_RANKS} ranks."
        raise SpecError(summary, limit, fix="leave out --svg.")
    if path in ("", "-"):
        raise SpecError("the picture needs the name of a file.", fix="for example --svg grid.svg.")
    text = draw_svg(layout.axes, layout.grid, nodes)
    try:
        Path(path).write_text(text, encoding="ascii")
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        summary = f"the picture cannot be written: {reason}."
        raise SpecError(summary, fix="a file in an existing folder with write access.") from error
    return [f"wrote {path}: {count_noun(layout.num_ranks, 'rank')}, {len(text) / 1000:.0f} kB"]


def _add_options(parser: ArgumentParser) -> None:
    help = f"{SIZES_HELP}; one size can be -1"
    parser.add_argument("words", nargs="+", metavar="AXIS=SIZE", help=help)
    add_grid(parser)
    add_nodes(parser)
    add_batch(parser)
    add_groups(parser)
    help = "place the ranks so that axes that communicate most stay inside nodes"
    parser.add_argument("--place", action="store_true", help=help)
    add_svg(parser)


PLAN = Command(
    "plan",
    "report a job before it runs: axes, nodes, groups, batch",
    _add_options,
    run,
    (
        "dp=4 sp=2 --nodes 2",
        "--dp 4 --global-batch 64 --micro-batch 4",
    ),
)
