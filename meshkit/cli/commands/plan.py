"""``meshkit plan``: a job before it runs: its axes, its grid by node, its groups and batches."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path

from ...core.arrays import Ints
from ...core.draw.svg import MAX_RANKS, draw_svg
from ...core.errors import Change, SpecError
from ...core.grid.group_plan import GroupPlan
from ...core.grid.layout import Layout
from ...core.report.job import JobReport, format_job
from ...core.topology.placement import Placement, placed
from ...core.topology.topology import Topology
from ...core.validate import divisors
from .. import terminal
from ..command import Command, Result
from ..options.command_line import command_line
from ..options.grid import (
    add_batch,
    add_grid,
    add_groups,
    batch_of,
    layout_of,
    sizes_of,
    topology_of,
)


def run(asked: Namespace) -> Result:
    """Lay out the job that was asked for. Pure: no torch, no processes.

    Args:
        asked: ``sizes``, words such as ``dp=4``; the options of a grid and of a batch; ``groups``,
            ``place`` and ``svg``.

    Raises:
        SpecError: where names, sizes, order, world and nodes do not fit together.
        UnknownAxisError: for an axis in ``groups`` that there is not.
        BatchError: for a batch that does not divide.
    """
    sizes = sizes_of(asked.sizes, "meshkit plan")
    asked.line = command_line(asked, sizes)
    overview = overview_of(sizes, asked)
    draw_into(asked.svg, overview.layout, overview.nodes)
    if asked.json:
        return Result(json.dumps(overview.as_dict()))
    return Result(format_job(overview, width=terminal.width(), ascii=not terminal.lines()))


def overview_of(sizes: Mapping[str, int], asked: Namespace) -> JobReport:
    """The overview of what was typed. Raises as :func:`run`."""
    layout = layout_of(sizes, asked.order, asked.world)
    topology = topology_of(layout, asked)
    placement = _placed(layout, topology) if asked.place else None
    layout = layout if placement is None else placement.layout
    plan = GroupPlan.of(layout, asked.groups or ())
    batch = batch_of(layout, asked)
    return JobReport.of(plan, topology, batch, placement=placement)


def _placed(layout: Layout, topology: Topology | None) -> Placement:
    if topology is None:
        line = "nothing says where ranks sit."
        nodes = next((n for n in divisors(layout.num_ranks) if n > 1), 1)
        raise SpecError(line, fix=(Change(nodes=nodes), ", say, or --hosts FILE."))
    return placed(layout, topology)


def _add(parser: ArgumentParser) -> None:
    text = "the size of each axis: dp=4; one may be -1"
    parser.add_argument("sizes", nargs="+", metavar="AXIS=SIZE", help=text)
    add_grid(parser)
    add_batch(parser)
    add_groups(parser)
    near = "put ranks on the nearest wires, as build_mesh(place=True) does"
    parser.add_argument("--place", action="store_true", help=near)
    add_svg(parser)


PLAN = Command("plan", "lay out a job before it runs: axes, nodes, groups, batches", _add, run)


def add_svg(parser: ArgumentParser) -> None:
    """Give a parser the option ``--svg``."""
    text = "also draw the grid into this file, for a browser: axes are colors, nodes are boxes"
    parser.add_argument("--svg", metavar="FILE", help=text)


def draw_into(
    path: str | None,
    layout: Layout,
    nodes: Ints | None,
) -> None:
    """Draw the grid into a file, which is replaced; nothing where there is no path.

    Args:
        path: as typed, or None.
        layout: the grid.
        nodes: as for :func:`meshkit.core.draw.svg.draw_svg`.

    Raises:
        SpecError: for a file that cannot be written; for more ranks than a picture has, before a
            file is touched.
    """
    if path is None:
        return
    if layout.num_ranks > MAX_RANKS:
        line = f"{layout.num_ranks} ranks are too many for a picture."
        raise SpecError(line, f"Up to {MAX_RANKS} are drawn.", fix=(Change(svg=None), "."))
    if path in ("", "-"):
        line = "the picture goes into a file, and there is no name of one."
        raise SpecError(line, fix=(Change(svg="grid.svg"), ", say."))
    text = draw_svg(layout.axes, layout.grid, nodes)
    try:
        Path(path).write_text(text, encoding="ascii")
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        reason = getattr(error, "strerror", None) or str(error)
        line = f"the picture cannot be written: {reason}."
        raise SpecError(line, fix="a file in a folder that exists and may be written.") from error
