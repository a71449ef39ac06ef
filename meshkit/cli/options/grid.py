"""The grid of a job: the sizes of its axes, their order, and the number of ranks."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

from ...core.call import either
from ...core.errors import SpecError
from ...core.grid.layout import Layout
from ...core.grid.nested_experts import divide_data_axis, leave_out_experts, use_divided
from ...core.grid.sizes import check_num_planned, infer_sizes, ordered_sizes
from .numbers import INTEGER, read_count

SIZES_HELP = 'the size of each axis: dp=4 tp=2, dp=4,tp=2 or "dp=4 tp=2"'


def add_grid(parser: ArgumentParser) -> None:
    """Add the options ``--world-size`` and ``--order``."""
    help = "the number of ranks, if a size is -1 or dp is left out"
    add_world_size(parser, help)
    add_order(parser)


def add_world_size(parser: ArgumentParser, help: str, *, required: bool = False) -> None:
    """Add the option ``--world-size``, which ``--world`` abbreviates."""
    flags = "--world-size", "--world"
    parser.add_argument(*flags, type=read_count, required=required, metavar="N", help=help)


def add_order(parser: ArgumentParser) -> None:
    """Add the option ``--order``."""
    help = (
        "the axes from the outermost to the innermost (default pp,dp,ep,cp,sp,tp); "
        "with hyphens as in Megatron, from the innermost: tp-dp"
    )
    parser.add_argument("--order", metavar="AXES", help=help)


def add_groups(parser: ArgumentParser) -> None:
    """Add the option ``--groups``."""
    help = 'the axes of one more group, for example "dp tp"; can be given several times'
    parser.add_argument("--groups", action="append", metavar="AXES", help=help)


def split_sizes(words: Sequence[str]) -> list[str]:
    """Return one word for each axis.

    Example:
        >>> split_sizes(["dp=4,sp=2", "tp=2 pp=1"])
        ['dp=4', 'sp=2', 'tp=2', 'pp=1']
    """
    return [size for word in words for size in word.replace(",", " ").split() or [word]]


def read_axis_sizes(words: Sequence[str]) -> dict[str, int]:
    """Read sizes such as ``dp=4``; a word may hold several, between commas or blanks."""
    sizes: dict[str, int] = {}
    for word in split_sizes(words):
        axis, equals, size = word.partition("=")
        if not equals:
            fix = "an axis, = and its size, for example dp=4."
            raise SpecError(f"{word!r} is not the size of an axis.", fix=fix)
        if axis in sizes:
            raise SpecError(f"{axis} has two sizes.", fix=f"give {axis} once.")
        if not INTEGER.fullmatch(size) or not (int(size) >= 1 or int(size) == -1):
            fix = f"a size of 1 or more, for example {axis}=4; or {axis}=-1, which infers it."
            raise SpecError(f"the size of {axis} is {size!r}.", fix=fix)
        sizes[axis] = int(size)
    return sizes


def read_layout(words: Sequence[str], args: Namespace) -> Layout:
    """Return the layout of sizes; ``args`` has ``order`` and ``world_size``, either may be None."""
    sizes = read_axis_sizes(words)
    nested = ordered_sizes(sizes, args.order, args.world_size)
    known = math.prod(size for size in nested.values() if size != -1)
    unknown = [axis for axis, size in nested.items() if size == -1]
    if args.world_size is None and unknown and (not sizes or -1 in sizes.values()):
        fix = f"for example --world-size {8 * known}."
        raise SpecError(f"there is nothing to infer {unknown[0]} from.", fix=fix)
    ranks = known if args.world_size is None else args.world_size
    check_num_planned(ranks)
    try:
        return Layout(ranks=None, **infer_sizes(nested, ranks, f"--world-size {ranks}"))
    except SpecError as error:
        if divided := divide_data_axis(nested, ranks):  # a command has no views
            dense = f"{leave_out_experts(nested)}, for the dense layers alone"
            error.fix = either(use_divided(nested, divided), dense, f"start {known} ranks")
        raise
