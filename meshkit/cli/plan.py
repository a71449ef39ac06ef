"""``meshkit plan``: a job before it runs: its axes, its grid by node, its groups and batches."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from ..core.call import Call
from ..core.errors import SpecError, told
from ..core.integers import divisors
from ..core.layout import Layout
from ..core.overview import Overview
from ..core.plan import GroupPlan
from ..core.sheet import sheet
from ..core.topology.placement import Placement, placed
from ..core.topology.topology import Topology
from . import Answer, Command, terminal
from .grid import add_batch, add_grid, add_groups, batch_of, layout_of, sizes_of, topology_of
from .picture import add_svg, draw_into
from .typed import Typed, typed


def run(asked: Namespace) -> Answer:
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
    call = typed(asked, sizes)
    overview = overview_of(call, sizes, asked)
    draw_into(asked.svg, overview.layout, overview.nodes, call)
    if asked.json:
        return Answer(json.dumps(overview.as_dict()))
    return Answer(sheet(overview, width=terminal.width(), ascii=not terminal.lines()))


def overview_of(call: Typed, sizes: Mapping[str, int], asked: Namespace) -> Overview:
    """The overview of what was typed. Raises as :func:`run`."""
    layout = layout_of(call, sizes, asked.order, asked.world)
    topology = topology_of(call, layout, asked)
    placement = _placed(call, layout, topology) if asked.place else None
    layout = layout if placement is None else placement.layout
    plan = GroupPlan.of(layout, asked.groups or (), call=call)
    batch = batch_of(call, layout, asked)
    return Overview.of(plan, topology, batch, placement=placement, call=call)


def _placed(call: Call, layout: Layout, topology: Topology | None) -> Placement:
    if topology is None:
        line = f"{call}: nothing says where ranks sit."
        nodes = next((n for n in divisors(layout.num_ranks) if n > 1), 1)
        raise SpecError(told(line, fix=f"{call.but(nodes=nodes)}, say, or --hosts FILE."))
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
