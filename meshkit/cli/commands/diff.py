"""``meshkit diff``: the changes of each rank between two grids: groups, samples, weights."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ...core.errors import MeshkitError, SpecError
from ...core.grid.axis_names import STANDARD
from ...core.grid.layout import Layout
from ...core.report.diff import Difference, format_diff
from .. import terminal
from ..command import Command, Result
from ..options.batch import add_batch, read_batch, read_data_axes
from ..options.command_line import CommandLine, Word, command_line
from ..options.grid import add_world_size, read_axis_sizes, read_layout


def run(args: Namespace) -> Result:
    """Compare two grids. Pure: no torch, no processes."""
    with _quoting(args, "before"):
        before = _read_grid(args.before, args)
    with _quoting(args, "after"):
        after = _read_grid(args.after, args)
    with _quoting(args, "before"):
        data_before, data_after = read_data_axes(args, before, after)
        batch = read_batch(before, args, data_before)
    difference = Difference.of(before, after, batch, data=(data_before, data_after))
    if args.json:
        return Result(json.dumps(difference.as_dict()))
    ascii = not terminal.get_line_characters()
    return Result(format_diff(difference, width=terminal.get_width(), ascii=ascii))


def _read_grid(text: str, args: Namespace) -> Layout:
    """Return a grid, nested in the standard order, or as written if an axis is not standard."""
    words = text.split()
    if not words:
        fix = 'for example meshkit diff "dp=4 sp=2" "dp=2 sp=2 tp=2".'
        raise SpecError("one of the two grids has no sizes.", fix=fix)
    sizes = read_axis_sizes(words)
    order = None if set(sizes) <= {*STANDARD} else " ".join(sizes)
    world = args.world_size if -1 in sizes.values() else None
    return read_layout(words, Namespace(order=order, world_size=world))


@contextmanager
def _quoting(args: Namespace, grid: str) -> Iterator[None]:
    """Quote the command in an error, such that a fix changes the sizes of one of the grids."""
    try:
        yield
    except MeshkitError as error:
        raise error.quote(_command_line(args, grid)) from None


def _command_line(args: Namespace, grid: str) -> CommandLine:
    words: dict[str, Word] = {name: f'"{vars(args)[name]}"' for name in ("before", "after")}
    with suppress(SpecError):  # invalid sizes stay as typed
        words[grid] = read_axis_sizes(vars(args)[grid].split()) or words[grid]
    return command_line(args, *words.values(), one_word=True)


def _add_options(parser: ArgumentParser) -> None:
    for name, example in (("before", '"dp=4 sp=2"'), ("after", '"dp=2 sp=2 tp=2"')):
        help = f"the sizes in one word: {example}; axes that are not standard nest as written"
        parser.add_argument(name, metavar=name.upper(), help=help)
    help = "the number of ranks, for a grid with a size of -1"
    add_world_size(parser, help)
    add_batch(parser)


DIFF = Command("diff", "compare two grids: groups, samples, weights", _add_options, run)
