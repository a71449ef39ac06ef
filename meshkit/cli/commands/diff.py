"""``meshkit diff``: what another grid changes for each rank: groups, samples, weights."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import replace

from ...core.errors import SpecError
from ...core.grid.axis_names import STANDARD
from ...core.grid.layout import Layout
from ...core.report.diff import Difference, format_diff
from .. import terminal
from ..command import Command, Result
from ..options.command_line import CommandLine, command_line
from ..options.grid import add_batch, batch_of, layout_of, number, sizes_of


def run(asked: Namespace) -> Result:
    """Compare the two grids that were asked for. Pure: no torch, no processes.

    Args:
        asked: ``before`` and ``after``, sizes in one word each; ``world``, for a grid in which a
            size is -1; the options of a batch.

    Raises:
        SpecError: as :func:`meshkit.cli.commands.plan.run`, for either of the grids.
        BatchError: for a batch that does not divide over dp of the first.
    """
    before, after = (_layout(asked, which) for which in ("before", "after"))
    batch = batch_of(before, asked)
    found = Difference.of(before, after, batch)
    if asked.json:
        return Result(json.dumps(found.as_dict()))
    return Result(format_diff(found, width=terminal.width(), ascii=not terminal.lines()))


def _layout(asked: Namespace, which: str) -> Layout:
    """One of the grids: in the standard order, or as written where an axis has no place in it."""
    words = getattr(asked, which).split()
    if not words:
        fix = 'meshkit diff "dp=4 sp=2" "dp=2 sp=2 tp=2", say.'
        raise SpecError("one of the two grids has no sizes.", fix=fix)
    sizes = sizes_of(words, "meshkit diff")
    order = None if set(sizes) <= {*STANDARD} else " ".join(sizes)
    asked.line = _call(asked, which, sizes)
    return layout_of(sizes, order, asked.world if -1 in sizes.values() else None)


def _call(asked: Namespace, which: str, sizes: Mapping[str, int]) -> CommandLine:
    """The command as it was typed, with the sizes of one grid to be changed in a fix."""
    if which == "before":
        call = command_line(asked, sizes, quoted=True)
        return replace(call, args=(*call.args, f'"{asked.after}"'))
    return command_line(asked, sizes, f'"{asked.before}"', quoted=True)


def _add(parser: ArgumentParser) -> None:
    for name, text in (("before", '"dp=4 sp=2"'), ("after", '"dp=2 sp=2 tp=2"')):
        help = f"sizes in one word: {text}; nested as written where an axis has no standard place"
        parser.add_argument(name, metavar=name.upper(), help=help)
    world = "how many ranks there are, for a grid in which a size is -1"
    parser.add_argument("--world", type=number, metavar="N", help=world)
    add_batch(parser)


DIFF = Command("diff", "what another grid changes: groups, samples, weights", _add, run)
