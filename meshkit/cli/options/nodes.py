"""The nodes of a job: their number, the ranks of each, or a file with the host of each rank."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace

from ...core.errors import SpecError
from ...core.grid.layout import Layout
from ...core.text import count_noun
from ...core.topology.hostfile import parse_hostfile
from ...core.topology.topology import Topology
from ...core.validate import check_divides
from .files import read_text
from .numbers import read_counts


def add_nodes(parser: ArgumentParser) -> None:
    """Add the options ``--nodes`` and ``--hosts``, of which one can be given."""
    either = parser.add_mutually_exclusive_group()
    help = "the number of equal nodes, or the number of ranks on each: 2, or 7,8"
    either.add_argument("--nodes", type=read_counts, metavar="N", help=help)
    help = "a file with one line for each rank: its host, then its rack if known"
    either.add_argument("--hosts", metavar="FILE", help=help)


def read_topology(layout: Layout, args: Namespace) -> Topology | None:
    """Return the nodes of a layout, or None if neither option was given."""
    if args.hosts is not None:
        return _read_hosts(args.hosts, layout.num_ranks)
    if args.nodes is None:
        return None
    ranks, nodes = layout.num_ranks, args.nodes
    if len(nodes) == 1:
        check_divides(ranks, nodes[0])
        return Topology.even(ranks, nodes=nodes[0])
    if sum(nodes) != ranks:
        summary = f"the nodes hold {sum(nodes)} ranks, the grid has {ranks}."
        raise SpecError(summary, fix=f"nodes whose ranks add up to {ranks}, or --nodes 1.")
    return Topology.of_sizes(nodes)


def _read_hosts(path: str, ranks: int) -> Topology:
    try:
        text = read_text(path)
    except ValueError as error:
        summary = f"{shlex.quote(path)} cannot be read: {error}."
        raise SpecError(summary, fix="a text file with one line for each rank.") from error
    topology = parse_hostfile(text)
    if topology.world_size != ranks:
        summary = f"{path} has {topology}, the grid has {ranks}."
        raise SpecError(summary, fix=f"{count_noun(ranks, 'line')}, one for each rank.")
    return topology
