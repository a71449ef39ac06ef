"""``meshkit move``: the steps, groups and bytes of a redistribution, and of its gradient."""

from __future__ import annotations

import json
import shlex
from argparse import ArgumentParser, Namespace

from ...core.errors import MeshkitError
from ...core.redistribute.report import RedistributionPlan, plan_redistribution
from .. import terminal
from ..command import Command, Result
from ..options.command_line import Word, command_line
from ..options.grid import read_axis_sizes


def run(args: Namespace) -> Result:
    """Plan a redistribution. Pure: no torch, no processes."""
    plan = _read_plan(args)
    if args.json:
        return Result(json.dumps(plan.as_dict()))
    ascii = not terminal.get_line_characters()
    return Result(plan.draw(width=terminal.get_width(), ascii=ascii))


def _read_plan(args: Namespace) -> RedistributionPlan:
    words: list[Word] = [f'"{args.mesh}"', f'"{args.pattern}"']
    try:
        sizes = read_axis_sizes(args.dims)
        return plan_redistribution(args.mesh, args.pattern, to=args.to, **sizes)
    except MeshkitError as error:
        words += map(shlex.quote, args.dims)
        raise error.quote(command_line(args, *words)) from None


def _add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "mesh", metavar="AXES", help='the sizes of the axes in one word: "dp=4 tp=2"'
    )
    help = 'the tensor before and after: "o/dp i -> o i *dp"'
    parser.add_argument("pattern", metavar="PATTERN", help=help)
    help = "a dim and its global size, such as o=4096"
    parser.add_argument("dims", nargs="*", metavar="DIM=SIZE", help=help)
    help = "the sizes of another view of the mesh, which the right side of the pattern names"
    parser.add_argument("--to", metavar="AXES", help=help)


MOVE = Command("move", "plan how a tensor moves over axes: steps, bytes", _add_options, run)
