"""``meshkit diff``: the changes of each rank between two grids: groups, samples, weights."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from ...core.errors import SpecError
from ...core.grid.axis_names import STANDARD
from ...core.grid.layout import Layout
from ...core.report.diff import Difference, format_diff
from .. import terminal
from ..command import Command, Result
from ..options.batch import add_batch, read_batch, read_data_axes
from ..options.grid import add_world_size, read_axis_sizes, read_layout, split_sizes

EXAMPLE = 'for example meshkit diff "dp=4 sp=2" "dp=2 sp=2 tp=2".'
Texts = tuple[str, str]  # the sizes before and after, as typed


def run(args: Namespace) -> Result:
    """Compare two grids. Pure: no torch, no processes."""
    texts = split_grids(args.words)
    before, after = (_read_grid(text, args) for text in texts)
    data_before, data_after = read_data_axes(args, before, after)
    batch = read_batch(before, args, data_before)
    difference = Difference.of(before, after, batch, data=(data_before, data_after))
    if args.json:
        return Result(json.dumps(difference.as_dict()))
    ascii = not terminal.get_line_characters()
    text = format_diff(difference, width=terminal.get_width(), ascii=ascii)
    return Result(text, axes=(*difference.groups,))


def split_grids(words: Sequence[str]) -> Texts:
    """Return the sizes of the two grids. Two words are one grid each.

    If there are more words, the second grid begins where no grid has an axis twice.

    Example:
        >>> split_grids(["dp=4", "sp=2", "dp=2", "sp=2", "tp=2"])
        ('dp=4 sp=2', 'dp=2 sp=2 tp=2')
    """
    if len(words) == 2:
        return words[0], words[1]
    sizes = split_sizes(words)
    splits = [(sizes[:i], sizes[i:]) for i in range(1, len(sizes))]
    valid = [" ".join(a) + "|" + " ".join(b) for a, b in splits if _is_grid(a) and _is_grid(b)]
    if len(valid) == 1:
        before, _, after = valid[0].partition("|")
        return before, after
    if not valid:
        raise SpecError("these are not the sizes of two grids.", fix=EXAMPLE)
    ways = ['meshkit diff "{}" "{}"'.format(*way.split("|")) for way in valid]
    summary = "the first size of the second grid is unclear."
    raise SpecError(summary, fix=f"{', or '.join(ways)}.")


def _is_grid(sizes: Sequence[str]) -> bool:
    """Return whether no axis has two sizes."""
    return len({size.partition("=")[0] for size in sizes}) == len(sizes)


def _read_grid(text: str, args: Namespace) -> Layout:
    """Return a grid, nested in the standard order, or as written if an axis is not standard."""
    words = split_sizes([text])
    if not text.strip():
        raise SpecError("one of the two grids has no sizes.", fix=EXAMPLE)
    sizes = read_axis_sizes(words)
    order = None if set(sizes) <= {*STANDARD} else " ".join(sizes)
    world = args.world_size if -1 in sizes.values() else None
    return read_layout(words, Namespace(order=order, world_size=world))


def _add_options(parser: ArgumentParser) -> None:
    help = (
        'the sizes before, then after: "dp=4 sp=2" "dp=2 sp=2 tp=2", or dp=4,sp=2 dp=2,sp=2,tp=2; '
        "axes that are not standard nest as written"
    )
    parser.add_argument("words", nargs="+", metavar="SIZES", help=help)
    help = "the number of ranks, for a grid with a size of -1"
    add_world_size(parser, help)
    add_batch(parser)


DIFF = Command(
    "diff",
    "compare two grids: groups, samples, weights",
    _add_options,
    run,
    ('"dp=4 sp=2" "dp=2 sp=2 tp=2"', "dp=8,tp=2 dp=4,tp=4 --json"),
)
