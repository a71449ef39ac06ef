"""What commands about a job are asked: its sizes, its nodes, its batch, in the words of a shell."""

from __future__ import annotations

import math
import re
import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence

from ...core.call import drop_none
from ...core.data.batch import BatchPlan
from ...core.data.batch_solver import solve_batch
from ...core.errors import BatchError, Change, SpecError
from ...core.grid.sizes import infer_sizes
from ...core.grid.factor import ordered_sizes
from ...core.grid.layout import Layout
from ...core.text import count_noun
from ...core.topology.hostfile import parse_hostfile
from ...core.topology.topology import Topology
from ...core.validate import check_divides
from .command_line import BATCH, flagged
from .files import text_of

MOST = 2**21  # ranks: beyond that an answer takes more than some seconds
DIGITS = 18  # so that int64 can hold it
INTEGER = re.compile(rf"-?[0-9]{{1,{DIGITS}}}")


def add_grid(parser: ArgumentParser) -> None:
    """Give a parser the options of a grid and its nodes."""
    world = "how many ranks there are, where a size is -1 or dp is left out"
    parser.add_argument("--world", type=number, metavar="N", help=world)
    add_order(parser)
    nodes = "how many nodes of one size, or the ranks of each: 2, or 7,8"
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--nodes", type=numbers, metavar="N", help=nodes)
    hosts = "a file with a line for each rank: its host, then its rack where that is known"
    where.add_argument("--hosts", metavar="FILE", help=hosts)


def add_order(parser: ArgumentParser) -> None:
    """Give a parser the option ``--order``."""
    order = 'axes from the outside in (default: "pp dp ep cp sp tp", those given)'
    parser.add_argument("--order", metavar="AXES", help=order)


def add_groups(parser: ArgumentParser) -> None:
    """Give a parser the option ``--groups``."""
    more = 'axes of one more group, as "dp tp"; may be given several times'
    parser.add_argument("--groups", action="append", metavar="AXES", help=more)


def add_batch(parser: ArgumentParser) -> None:
    """Give a parser the options of a batch."""
    parser.add_argument("--global-batch", type=number, metavar="N", help="samples of a step")
    micro = "samples of one forward and backward of a rank"
    parser.add_argument("--micro-batch", type=number, metavar="N", help=micro)
    steps = "micro batches before one optimizer step; two of the three give the third"
    parser.add_argument("--accumulation-steps", type=number, metavar="N", help=steps)


def number(text: str) -> int:
    """A number of ranks, nodes, samples or the like as typed, 1 or more.

    Raises:
        ArgumentTypeError: where it is none.

    Example:
        >>> number("8")
        8
    """
    return integer(text, least=1)


def integer(text: str, least: int | None = None) -> int:
    """A whole number as typed.

    Args:
        text: up to 18 digits.
        least: the smallest that there may be; None means that any may.

    Raises:
        ArgumentTypeError: where it is none.

    Example:
        >>> integer("-3")
        -3
    """
    if INTEGER.fullmatch(text) and (least is None or int(text) >= least):
        return int(text)
    if re.fullmatch("[0-9]+", text) and len(text) > DIGITS:
        raise ArgumentTypeError(f"{text!r} has more than {DIGITS} digits")
    more = "" if least is None else f" of {least} or more"
    raise ArgumentTypeError(f"{text!r} is not a whole number{more}")


def numbers(text: str) -> tuple[int, ...]:
    """Numbers as typed, with commas between them.

    Raises:
        ArgumentTypeError: where one of them is none.

    Example:
        >>> numbers("7,8")
        (7, 8)
    """
    return tuple(number(part) for part in text.split(","))


def sizes_of(words: Sequence[str], command: str) -> dict[str, int]:
    """The sizes of words such as ``dp=4``.

    Args:
        words: as typed.
        command: what is typed before them, for the fix.

    Raises:
        SpecError: for a word that is no size, and for an axis that is given twice.

    Example:
        >>> sizes_of(["dp=4", "tp=-1"], "meshkit plan")
        {'dp': 4, 'tp': -1}
    """
    sizes: dict[str, int] = {}
    for word in words:
        axis, equals, size = word.partition("=")
        line = f"{command} {' '.join(words)}: "
        if not equals:
            fix = f"{command} dp=4 sp=2, say: an axis, = and its size."
            raise SpecError(f"{line}{word!r} is no size of an axis.", fix=fix)
        if axis in sizes:
            raise SpecError(f"{line}{axis} has two sizes.", fix=f"give {axis} once.")
        if not INTEGER.fullmatch(size) or not (int(size) >= 1 or int(size) == -1):
            fix = f"{axis}=4, say: 1 or more; or -1 for the one to be inferred."
            raise SpecError(f"{line}the size of {axis} is {size!r}.", fix=fix)
        sizes[axis] = int(size)
    return sizes


def layout_of(
    sizes: Mapping[str, int], order: str | None = None, world: int | None = None
) -> Layout:
    """The grid of sizes and a number of ranks; without that, of the sizes alone.

    Raises:
        SpecError: as :func:`meshkit.factor_world`; for a size to be inferred from nothing; for more
            ranks than can be looked at.
    """
    nested = ordered_sizes(sizes, order)
    known = math.prod(size for size in nested.values() if size != -1)
    if world is None and -1 in [*sizes.values()] + [-1] * (not sizes):
        axis = next(name for name, size in nested.items() if size == -1)
        fix = (Change(world=8 * known), ", say.")
        raise SpecError(f"there is nothing to infer {axis} from.", fix=fix)
    ranks = known if world is None else world
    if ranks > MOST:
        raise SpecError(f"{ranks} ranks are too many to look at.", fix=f"{MOST} or fewer.")
    return Layout(ranks=None, **infer_sizes(nested, ranks, f"--world {ranks}"))


def topology_of(layout: Layout, asked: Namespace) -> Topology | None:
    """The nodes that were asked for; None where none were.

    Args:
        layout: the grid.
        asked: ``nodes``, how many nodes of consecutive ranks there are, alone, or the ranks of
            each; or ``hosts``, a file for
            :func:`meshkit.core.topology.hostfile.parse_hostfile`.

    Raises:
        SpecError: where they do not hold the ranks of the grid, neither more nor fewer; for a file
            that cannot be read.
    """
    ranks, sizes = layout.num_ranks, asked.nodes
    if asked.hosts is not None:
        return _from_file(asked.hosts, ranks)
    if sizes is None:
        return None
    if len(sizes) == 1:
        check_divides(ranks, sizes[0])
        return Topology.even(ranks, nodes=sizes[0])
    if sum(sizes) != ranks:
        line = f"the nodes hold {sum(sizes)} ranks, the grid has {ranks}."
        raise SpecError(line, fix=f"nodes whose sizes add up to {ranks}, or --nodes 1.")
    return Topology.of_sizes(sizes)


def _from_file(path: str, ranks: int) -> Topology:
    try:
        text = text_of(path)
    except ValueError as error:
        line = f"{shlex.quote(path)} cannot be read: {error}."
        raise SpecError(line, fix="a text file with a line for each rank.") from error
    topology = parse_hostfile(text)
    if topology.world_size != ranks:
        line = f"{path} has {topology}, the grid has {ranks}."
        raise SpecError(line, fix=f"{count_noun(ranks, 'line')}, one a rank.")
    return topology


def batch_of(layout: Layout, asked: Namespace) -> BatchPlan | None:
    """The plan of the batch that was asked for over dp, or None where none was.

    Raises:
        BatchError: where it does not divide, or there is no dp.
    """
    said = drop_none(**{name: getattr(asked, name) for name in BATCH})
    if not said:
        return None
    if "dp" not in layout.axes:
        sizes = {"dp": 1, **layout.sizes}
        fix = (Change(**sizes, order=" ".join(sizes)), ".")
        raise BatchError("there is no axis dp that divides the samples.", fix=fix)
    try:
        return BatchPlan.of(solve_batch({"dp": layout.sizes["dp"], **said}))
    except BatchError as error:
        raise BatchError(flagged(str(error)), **vars(error)) from None
