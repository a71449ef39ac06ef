"""Topology: the node of each rank, and the levels of racks outside nodes.

Levels nest, the outermost first. Each rank is in one domain of each level::

    rack      |      rack 0       |      rack 1       |      far
    node      | node 0  | node 1  | node 2  | node 3  |       .
    device    | 0  1  2 | 3  4  5 | 6  7  8 | 9 10 11 |      near

Nodes are numbered in the order of their lowest ranks, so rank 0 is on node 0. crossings.py has the
axes that cross nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..call import check_divides, check_ranks, drop_none, parse_integer, quotes_call
from ..errors import CALL, CoordinateError, SpecError
from ..text import Ints, article, count_noun, plural
from .sizes import MAX_RANKS

NODE = "node"
LEVELS = ("host", "rack", "row", "hall")  # the columns of a host file


class Level(NamedTuple):
    """Domains of nodes, for example racks, NVLink domains or switches."""

    name: str  # noun for one domain, for example ``"rack"``
    of_node: Ints  # int64 (num_nodes,), domains are numbered in order of appearance
    names: tuple[str, ...]  # of the domains


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """The node of each rank from 0 to ``world_size - 1``, and the levels outside nodes.

    Create it with :meth:`even`, :meth:`of_sizes` or :meth:`of_hosts`. Topologies are equal if all
    ranks are in the same domains and all names are the same.

    Attributes:
        sizes: read-only int64 (num_nodes,), the number of ranks on each node.
        names: the name of each node.
        outer: the levels outside nodes, the outermost first.

    Raises:
        CoordinateError: by every method, for a rank or a node that is not in the topology.
        SpecError: by every method, for an unknown level, or arguments that describe no topology.

    Cost: O(nodes) in memory if each node holds consecutive ranks; otherwise an array of ranks.

    Example:
        >>> topology = Topology.of_hosts(["a", "b", "a", "b"])
        >>> topology.node_of([0, 1, 2, 3]).tolist(), topology.names
        ([0, 1, 0, 1], ('a', 'b'))
    """

    sizes: Ints
    names: tuple[str, ...]
    outer: tuple[Level, ...] = ()
    _by_rank: Ints | None = None  # None: consecutive ranks on each node

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, np.ndarray):
            fix = "for example Topology.even(8, nodes=2), or Topology.of_sizes([7, 8])."
            raise SpecError("Topology is the class of a topology, not its constructor.", fix=fix)
        sizes, by_rank = self.sizes.copy(), self._by_rank  # the caller's array stays writable
        for array in (sizes, by_rank, *(level.of_node for level in self.outer)):
            if array is not None:
                array.flags.writeable = False
        object.__setattr__(self, "sizes", sizes)

    @classmethod
    @quotes_call("Topology.even")
    def even(cls, world_size: int, *, nodes: int, racks: int | None = None) -> Topology:
        """Return nodes of one size, with consecutive ranks. O(nodes).

        Args:
            world_size: the number of ranks.
            nodes: the number of nodes that the ranks divide over.
            racks: the number of racks that the nodes divide over; None omits the level.

        Example:
            >>> print(Topology.even(64, nodes=8), Topology.even(64, nodes=8, racks=2), sep="; ")
            64 ranks on 8 nodes of 8; 64 ranks on 8 nodes of 8, in 2 racks
        """
        numbers = {"world_size": world_size, "nodes": nodes, **drop_none(racks=racks)}
        num_ranks, num_nodes, *rest = (_positive(*item) for item in numbers.items())
        check_divides(num_ranks, num_nodes)
        topology = cls.of_sizes(np.full(num_nodes, num_ranks // num_nodes))
        for num_racks in rest:
            if num_nodes % num_racks:
                line = f"{num_nodes} nodes do not divide over {count_noun(num_racks, 'rack')}."
                fix = "leave out racks; then .with_level('rack', [...]) takes a rack for each node."
                raise SpecError(line, fix=fix, world_size=num_ranks)
            topology = topology.with_level("rack", np.arange(num_nodes) // (num_nodes // num_racks))
        return topology

    @classmethod
    @quotes_call("Topology.of_sizes")
    def of_sizes(cls, sizes: Sequence[int] | Ints) -> Topology:
        """Return nodes of sizes that may differ, with consecutive ranks. O(nodes).

        Example:
            >>> print(Topology.of_sizes([7, 8]))
            15 ranks on 2 nodes of 7 and 8
        """
        if isinstance(sizes, str) or not len(sizes):
            fix = "for example Topology.of_sizes([7, 8]), the number of ranks on each node."
            raise SpecError(f"{CALL} has no node sizes.", fix=fix)
        counts: Ints
        is_array = isinstance(sizes, np.ndarray) and sizes.dtype == np.int64
        if is_array and np.min(sizes) >= 1 and np.max(sizes) <= MAX_RANKS:
            counts = np.asarray(sizes)  # one by one, two million of them take a second
        else:
            numbers = [_positive(f"the size of node {i}", size) for i, size in enumerate(sizes)]
            counts = np.array(numbers, dtype=np.int64)
        return cls(counts, tuple(f"{NODE} {i}" for i in range(len(counts))))

    @classmethod
    @quotes_call("Topology.of_hosts")
    def of_hosts(cls, hosts: Iterable[Hashable]) -> Topology:
        """Return the topology in which ranks with the same host share a node. O(ranks).

        Args:
            hosts: the host of each rank, in the order of ranks. Equal hosts are one node. Ranks of
                different hosts may alternate, as with Slurm's ``--distribution=cyclic``.

        Example:
            >>> print(Topology.of_hosts(["node1", "node10", "node1", "node10"]))
            4 ranks on 2 nodes of 2, not in blocks: node 0 has ranks 0, 2
        """
        by_rank, names = number_labels(NODE, () if isinstance(hosts, str) else hosts)
        if not names:
            fix = "for example Topology.of_hosts(['a', 'a', 'b', 'b']), the host of each rank."
            is_str = isinstance(hosts, str)
            reason = "hosts is not a list of hosts" if is_str else "there are no hosts"
            raise SpecError(f"{reason}.", fix=fix)
        consecutive = bool((np.diff(by_rank) >= 0).all())
        return cls(np.bincount(by_rank), names, (), None if consecutive else by_rank)

    @quotes_call("topology.with_level")
    def with_level(self, name: str, domains: Sequence[Hashable] | Ints) -> Topology:
        """Return the same nodes with one more level, outside all others. O(nodes).

        Args:
            name: the noun for one domain, for example ``"rack"``.
            domains: the domain of each node, in the order of ``names``. Equal values are one
                domain, which may not split a domain of the level inside.

        Example:
            >>> print(Topology.even(8, nodes=4).with_level("rack", ["r1", "r1", "r2", "r2"]))
            8 ranks on 4 nodes of 2, in 2 racks
        """
        if name in (*self.levels, "device"):
            raise SpecError(f"there is already a level {name!r}.", fix="another name.")
        of_node, names = number_labels(name, domains)
        if len(of_node) != self.num_nodes:
            nodes = count_noun(len(of_node), "node")
            line = f"{CALL} lists a domain for {nodes}; the topology has {self.num_nodes}."
            raise SpecError(line, fix="one domain for each node.")
        for inner in self.outer[:1]:
            parts = np.unique(np.stack([inner.of_node, of_node]), axis=1)[0]
            split = np.flatnonzero(np.bincount(parts) > 1)
            if len(split):
                part = inner.names[split[0]]
                line = f"the level {name!r} would split {part} into several {plural(name)}."
                fix = f"one domain for all nodes of {part}; add levels from the inside out."
                raise SpecError(line, fix=fix)
        outer = (Level(name, of_node, names), *self.outer)
        return Topology(self.sizes, self.names, outer, self._by_rank)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return int(self._ends[-1])

    @property
    def num_nodes(self) -> int:
        """The number of nodes."""
        return len(self.sizes)

    @property
    def levels(self) -> tuple[str, ...]:
        """The names of the levels, the outermost first; ``"node"`` is the last."""
        return (*(level.name for level in self.outer), NODE)

    @quotes_call("topology.node_of")
    def node_of(self, ranks: ArrayLike) -> Ints:
        """Return the node of each rank: int64 in the shape of ``ranks``. O(ranks * log(nodes))."""
        array = check_ranks(ranks)
        outside = (array < 0) | (array >= self.world_size)
        if outside.any():
            rank, last = int(array[outside].flat[0]), self.world_size - 1
            line = f"rank {rank} is not in the topology, which has {self}."
            raise CoordinateError(line, fix=f"ranks from 0 to {last}.", index=rank)
        if self._by_rank is not None:
            return np.asarray(self._by_rank[array])
        return np.searchsorted(self._ends, array, side="right").astype(np.int64)

    @quotes_call("topology.domain_of")
    def domain_of(self, level: str, ranks: ArrayLike) -> Ints:
        """Return the domain of each rank at a level: int64 in the shape of ``ranks``."""
        nodes = self.node_of(ranks)
        return nodes if level == NODE else np.asarray(self._level(level).of_node[nodes])

    @quotes_call("topology.domain_names")
    def domain_names(self, level: str) -> tuple[str, ...]:
        """Return the name of each domain of a level."""
        return self.names if level == NODE else self._level(level).names

    @quotes_call("topology.ranks_of")
    def ranks_of(self, node: int) -> Ints:
        """Return the ranks on a node, ascending: int64 (sizes[node],).

        The index of a rank among them is its ``local_rank`` under torchrun and Slurm.

        Cost: O(sizes[node]) if nodes hold consecutive ranks, otherwise O(ranks).

        Example:
            >>> Topology.of_hosts(["a", "b", "a", "b"]).ranks_of(1).tolist()
            [1, 3]
        """
        number = parse_integer(node)
        if number is None or not 0 <= number < self.num_nodes:
            fix = f"a node from 0 to {self.num_nodes - 1}."
            line, size = "the node does not exist.", len(self.sizes)
            raise CoordinateError(line, fix=fix, index=node, size=size)
        if self._by_rank is not None:
            return np.flatnonzero(self._by_rank == number).astype(np.int64)
        end = int(self._ends[number])
        return np.arange(end - int(self.sizes[number]), end, dtype=np.int64)

    @cached_property
    def _ends(self) -> Ints:
        return np.cumsum(self.sizes)

    def _level(self, name: str) -> Level:
        for level in self.outer:
            if level.name == name:
                return level
        raise SpecError(f"there is no level {name!r}.", fix=f"use one of {', '.join(self.levels)}.")

    def _key(self) -> tuple[object, ...]:
        by_rank = None if self._by_rank is None else self._by_rank.tobytes()
        outer = tuple((level.name, level.of_node.tobytes(), level.names) for level in self.outer)
        return self.sizes.tobytes(), self.names, outer, by_rank

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Topology) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Topology({self})"

    def __str__(self) -> str:
        sizes = sorted(set(self.sizes.tolist()))
        span = " and ".join(map(str, sizes)) if len(sizes) < 3 else f"{sizes[0]} to {sizes[-1]}"
        nodes = f"{count_noun(self.num_nodes, 'node')} of {span}"
        outer = [count_noun(len(level.names), level.name) for level in reversed(self.outer)]
        text = ", in ".join((f"{count_noun(self.world_size, 'rank')} on {nodes}", *outer))
        if self._by_rank is None:
            return text
        first = self.ranks_of(0).tolist()
        shown = ", ".join(map(str, first[:4])) + (", ..." if len(first) > 4 else "")
        return f"{text}, not in blocks: node 0 has ranks {shown}"


def _positive(name: str, value: object) -> int:
    """Return a number of ranks, nodes or racks as a plain int."""
    number = parse_integer(value)
    if number is not None and 1 <= number <= MAX_RANKS:
        return number
    text = str(number) if number is not None else f"{value!r}, {article(type(value).__name__)}"
    raise SpecError(f"{name} is {text}.", fix=f"an int from 1 to {MAX_RANKS} for {name}.")


def number_labels(level: str, labels: Iterable[Hashable]) -> tuple[Ints, tuple[str, ...]]:
    """Assign numbers to the labels in order of first appearance; return them and their names."""
    numbers: dict[Hashable, int] = {}
    numbered = [numbers.setdefault(label, len(numbers)) for label in labels]
    are_integers = all(parse_integer(label) is not None for label in numbers)
    names = tuple(f"{level} {label}" if are_integers else str(label) for label in numbers)
    return np.array(numbered, dtype=np.int64), names


def parse_hostfile(text: str) -> Topology:
    """Return the topology of a text that has a line for each rank, in the order of ranks."""
    lines = enumerate(text.splitlines(), 1)
    rows = [(number, words) for number, line in lines if (words := line.partition("#")[0].split())]
    if not rows:
        fix = "a line for each rank: its host, and its rack if it is known."
        raise SpecError("the file names no host.", fix=fix)
    paths: dict[str, tuple[str, ...]] = {}  # host to its rack, row and hall
    for number, (host, *outer) in rows:
        line = f"line {number}, {' '.join([host, *outer])!r},"
        if any("=" in word for word in (host, *outer)):
            why = "An MPI hostfile has a line for each host; this file needs one for each rank."
            fix = f"for each rank on {host}, a line with the name {host}."
            raise SpecError(f"{line} has a word that is no host and no rack.", why, fix=fix)
        if len(outer) >= len(LEVELS) or len(outer) != len(rows[0][1]) - 1:
            fix = f"a host in each line, then as many of {', '.join(LEVELS[1:])} as in the others."
            raise SpecError(f"{line} has {count_noun(len(outer) + 1, 'word')}.", fix=fix)
        if paths.setdefault(host, tuple(outer)) != tuple(outer):
            other = " ".join(paths[host])
            line += f" contradicts a line above, which has {host} in {other}."
            raise SpecError(line, fix=f"one place for {host}.")
    topology = Topology.of_hosts(words[0] for _, words in rows)
    for column in range(len(rows[0][1]) - 1):
        tails = [paths[str(host)][column:] for host in topology.names]
        uses = Counter(tail[0] for tail in {*tails})
        domains = [tail[0] if uses[tail[0]] == 1 else ".".join(tail[::-1]) for tail in tails]
        topology = topology.with_level(LEVELS[column + 1], domains)
    return topology
