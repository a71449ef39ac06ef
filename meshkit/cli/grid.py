"""What commands about a job are asked: its sizes, its nodes, its batch, in the words of a shell."""

from __future__ import annotations

import math
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.axes import infer
from ..core.batch import BatchPlan
from ..core.call import Call, given
from ..core.errors import BatchError, SpecError, told
from ..core.factor import nested_sizes
from ..core.layout import Layout
from ..core.rankfile import rankfile
from ..core.solve import solved
from ..core.topology import Topology
from ..core.words import count
from .typed import Typed, flagged

MOST = 2**24  # ranks: beyond that an answer takes seconds
SHOWN = 8  # nodes whose sizes are written out
INTEGER = re.compile(r"-?[0-9]{1,18}")
BATCH = ("global_batch", "micro_batch", "accumulation_steps")


def add_grid(parser: ArgumentParser) -> None:
    """Give a parser the options of a grid and its nodes."""
    world = "how many ranks there are, where a size is -1 or dp is left out"
    parser.add_argument("--world", type=number, metavar="N", help=world)
    order = 'axes from the outside in (default: "pp dp ep cp sp tp", those given)'
    parser.add_argument("--order", metavar="AXES", help=order)
    nodes = "how many nodes of one size, or the ranks of each: 2, or 7,8"
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--nodes", type=numbers, metavar="N", help=nodes)
    hosts = "a file with a line for each rank: its host, then its rack where that is known"
    where.add_argument("--hosts", metavar="FILE", help=hosts)


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
    if INTEGER.fullmatch(text) and int(text) >= 1:
        return int(text)
    raise ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")


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
            raise SpecError(told(f"{line}{word!r} is no size of an axis.", fix=fix))
        if axis in sizes:
            raise SpecError(told(f"{line}{axis} has two sizes.", fix=f"give {axis} once."))
        if not INTEGER.fullmatch(size) or not (int(size) >= 1 or int(size) == -1):
            fix = f"{axis}=4, say: 1 or more; or -1 for the one to be inferred."
            raise SpecError(told(f"{line}the size of {axis} is {size!r}.", fix=fix))
        sizes[axis] = int(size)
    return sizes


def typed(asked: Namespace, sizes: Mapping[str, int], *before: object) -> Typed:
    """The command as it was typed.

    Args:
        asked: its options.
        sizes: its sizes.
        *before: what stands before the sizes.
    """
    names = ("world", "order", "nodes", "hosts", *BATCH, "groups", "seq", "seed", "all", "place")
    said = given(**{name: getattr(asked, name, None) for name in names})
    if isinstance(said.get("nodes"), tuple):
        said["nodes"] = ",".join(map(str, asked.nodes))
    if not said.get("place"):
        said.pop("place", None)
    return Typed(f"meshkit {asked.command.name}", (*before, dict(sizes)), said)


def layout_of(
    call: Call, sizes: Mapping[str, int], order: str | None = None, world: int | None = None
) -> Layout:
    """The grid of sizes and a number of ranks; without that, of the sizes alone.

    Raises:
        SpecError: as :func:`meshkit.factor_world`; for a size to be inferred from nothing; for more
            ranks than can be looked at.
    """
    nested = nested_sizes(call, sizes, order)
    known = math.prod(size for size in nested.values() if size != -1)
    if world is None and -1 in [*sizes.values()] + [-1] * (not sizes):
        axis = next(name for name, size in nested.items() if size == -1)
        fix = f"{call.but(world=8 * known)}, say."
        raise SpecError(told(f"{call}: there is nothing to infer {axis} from.", fix=fix))
    ranks = known if world is None else world
    if ranks > MOST:
        text = told(f"{call}: {ranks} ranks are too many to look at.", fix=f"{MOST} or fewer.")
        raise SpecError(text)
    return Layout(ranks=None, **infer(call, nested, ranks, f"--world {ranks}"))


def topology_of(call: Call, layout: Layout, asked: Namespace) -> Topology | None:
    """The nodes that were asked for; None where none were.

    Args:
        call: the command, for errors.
        layout: the grid.
        asked: ``nodes``, how many nodes of consecutive ranks there are, alone, or the ranks of
            each; or ``hosts``, a file as :func:`meshkit.core.rankfile.rankfile` reads it.

    Raises:
        SpecError: where they do not hold the ranks of the grid, neither more nor fewer; for a file
            that cannot be read.
    """
    ranks, sizes = layout.num_ranks, asked.nodes
    if asked.hosts is not None:
        return _from_file(call, asked.hosts, ranks)
    if sizes is None:
        return None
    if len(sizes) == 1:
        if ranks % sizes[0]:
            raise _indivisible(call, ranks, sizes[0])
        return Topology.even(ranks, nodes=sizes[0])
    if sum(sizes) != ranks:
        line = f"{call}: the nodes hold {sum(sizes)} ranks, the grid has {ranks}."
        raise SpecError(told(line, fix=f"nodes whose sizes add up to {ranks}, or --nodes 1."))
    return Topology.of_sizes(sizes)


def _from_file(call: Call, path: str, ranks: int) -> Topology:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: no text
        reason = getattr(error, "strerror", None) or "it is no text"
        line = f"{call}: {path} cannot be read: {reason}."
        raise SpecError(told(line, fix="a text file with a line for each rank.")) from error
    topology = rankfile(text)
    if topology.world_size != ranks:
        line = f"{call}: {path} has {topology}, the grid has {ranks}."
        raise SpecError(told(line, fix=f"{count(ranks, 'line')}, one a rank."))
    return topology


def _indivisible(call: Call, ranks: int, nodes: int) -> SpecError:
    """Nodes that would differ in size, with the fewer that do not and the sizes they would have."""
    each, more = divmod(ranks, nodes)
    uneven = [each + 1] * more + [each] * (nodes - more)
    near = max(n for n in range(1, min(nodes, ranks) + 1) if ranks % n == 0)
    ways = [f"{call.but(nodes=near)}"]
    ways += [f"{call.but(nodes=','.join(map(str, uneven)))}"] if each and nodes <= SHOWN else []
    line = f"{call}: {count(ranks, 'rank')} do not divide over {nodes} nodes."
    return SpecError(told(line, fix=f"{', or '.join(ways)}."))


def batch_of(call: Call, layout: Layout, asked: Namespace) -> BatchPlan | None:
    """The plan of the batch that was asked for over dp, or None where none was.

    Raises:
        BatchError: where it does not divide, or there is no dp.
    """
    said = given(**{name: getattr(asked, name) for name in BATCH})
    if not said:
        return None
    if "dp" not in layout.axes:
        fix = f"{call.but(dp=1, order=' '.join(['dp', *layout.axes]))}."
        raise BatchError(told(f"{call}: there is no axis dp that divides the samples.", fix=fix))
    try:
        return BatchPlan.of(solved(call, {"dp": layout.sizes["dp"], **said}))
    except BatchError as error:
        raise BatchError(flagged(str(error)), **vars(error)) from None
