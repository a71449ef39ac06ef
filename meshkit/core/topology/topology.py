"""Topology: the node of each rank, and the racks and other levels outside nodes.

Levels nest, the outermost first. Each rank is in one domain of each level::

    rack      |      rack 0       |      rack 1       |      far
    node      | node 0  | node 1  | node 2  | node 3  |       .
    device    | 0  1  2 | 3  4  5 | 6  7  8 | 9 10 11 |      near

Nodes are numbered in the order of their lowest ranks, so rank 0 is on node 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ..arrays import Ints
from ..call import drop_none, quotes_call
from ..errors import CALL, CoordinateError, SpecError
from ..grid.rank_positions import MAX_RANK
from ..text import article, count_noun, plural
from ..validate import check_divides, check_integers, parse_integer

NODE = "node"


@dataclass(frozen=True, eq=False)
class Level:
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
        sizes, by_rank = self.sizes.copy(), self._by_rank
        for array in (sizes, by_rank, *(level.of_node for level in self.outer)):
            if array is not None:
                array.flags.writeable = False
        object.__setattr__(self, "sizes", sizes)  # the caller's array stays writable

    @classmethod
    @quotes_call("Topology.even")
    def even(cls, world_size: int, *, nodes: int, racks: int | None = None) -> Topology:
        """Return nodes of one size, with consecutive ranks.

        Args:
            world_size: the number of ranks.
            nodes: the number of nodes that the ranks divide over.
            racks: the number of racks that the nodes divide over; None omits the level.

        Raises:
            SpecError: if a number is not an int of 1 or more, or does not divide.

        Cost: O(nodes).

        Example:
            >>> print(Topology.even(64, nodes=8), Topology.even(64, nodes=8, racks=2), sep="; ")
            64 ranks on 8 nodes of 8; 64 ranks on 8 nodes of 8, in 2 racks
        """
        options = {"nodes": nodes, **drop_none(racks=racks)}
        numbers = {"world_size": world_size, **options}
        num_ranks, num_nodes, *rest = (_positive(*item) for item in numbers.items())
        check_divides(num_ranks, num_nodes)
        topology = cls.of_sizes(np.full(num_nodes, num_ranks // num_nodes))
        for num_racks in rest:
            if num_nodes % num_racks:
                racks_text = count_noun(num_racks, "rack")
                line = f"{num_nodes} nodes do not divide over {racks_text}."
                fix = "leave out racks; then .with_level('rack', [...]) takes a rack for each node."
                raise SpecError(line, fix=fix, world_size=num_ranks)
            topology = topology.with_level("rack", np.arange(num_nodes) // (num_nodes // num_racks))
        return topology

    @classmethod
    @quotes_call("Topology.of_sizes")
    def of_sizes(cls, sizes: Sequence[int] | Ints) -> Topology:
        """Return nodes of sizes that may differ, with consecutive ranks.

        Args:
            sizes: the number of ranks on each node.

        Raises:
            SpecError: if there are no sizes, one is not an int of 1 or more, or int64 cannot
                number the ranks.

        Cost: O(nodes).

        Example:
            >>> print(Topology.of_sizes([7, 8]))
            15 ranks on 2 nodes of 7 and 8
        """
        if isinstance(sizes, str) or not len(sizes):
            fix = "for example Topology.of_sizes([7, 8]), the number of ranks on each node."
            raise SpecError(f"{CALL} has no node sizes.", fix=fix)
        counts = [_positive(f"the size of node {i}", size) for i, size in enumerate(sizes)]
        if sum(counts) > MAX_RANK:
            line = f"{CALL} has more ranks than int64 can number."
            raise SpecError(line, fix="smaller sizes.")
        return cls(np.array(counts, dtype=np.int64), name_domains(NODE, range(len(counts))))

    @classmethod
    def of_hosts(cls, hosts: Iterable[Hashable]) -> Topology:
        """Return the topology in which ranks with the same host share a node.

        Args:
            hosts: the host of each rank, in the order of ranks. Equal hosts are one node. Ranks of
                different hosts may alternate, as with Slurm's ``--distribution=cyclic``.

        Raises:
            SpecError: if there are no hosts, or ``hosts`` is a str.

        Cost: O(ranks); O(nodes) in memory if each node holds consecutive ranks, else O(ranks).

        Example:
            >>> print(Topology.of_hosts(["node1", "node10", "node1", "node10"]))
            4 ranks on 2 nodes of 2, not in blocks: node 0 has ranks 0, 2
        """
        by_rank, names = number_labels(NODE, () if isinstance(hosts, str) else hosts)
        if not names:
            fix = "for example Topology.of_hosts(['a', 'a', 'b', 'b']), the host of each rank."
            is_str = isinstance(hosts, str)
            reason = "hosts is not a list of hosts" if is_str else "there are no hosts"
            raise SpecError(f"Topology.of_hosts({hosts!r}): {reason}.", fix=fix)
        consecutive = bool((np.diff(by_rank) >= 0).all())
        return cls(np.bincount(by_rank), names, (), None if consecutive else by_rank)

    @quotes_call("topology.with_level")
    def with_level(self, name: str, domains: Sequence[Hashable] | Ints) -> Topology:
        """Return the same nodes with one more level, outside all others.

        Args:
            name: the noun for one domain, for example ``"rack"``.
            domains: the domain of each node, in the order of ``names``. Equal values are one
                domain.

        Raises:
            SpecError: if there is not one domain for each node, the name is already used, or the
                new level would split a domain of the level inside it.

        Cost: O(nodes).

        Example:
            >>> print(Topology.even(8, nodes=4).with_level("rack", ["r1", "r1", "r2", "r2"]))
            8 ranks on 4 nodes of 2, in 2 racks
        """
        if name in (*self.levels, "device"):
            line = f"there is already a level {name!r}."
            raise SpecError(line, fix="another name.")
        of_node, names = number_labels(name, domains)
        if len(of_node) != self.num_nodes:
            nodes = count_noun(len(of_node), "node")
            line = f"{CALL} lists a domain for {nodes}; the topology has {self.num_nodes}."
            raise SpecError(line, fix="one domain for each node.")
        level = Level(name, of_node, names)
        check_nested(level, self.outer[:1])
        return Topology(self.sizes, self.names, (level, *self.outer), self._by_rank)

    @property
    def world_size(self) -> int:
        """The number of ranks.

        Example:
            >>> topology = Topology.of_hosts(["a", "b", "a", "b"])
            >>> topology.world_size
            4
        """
        return int(self._ends[-1])

    @property
    def num_nodes(self) -> int:
        """The number of nodes.

        Example:
            >>> topology = Topology.of_hosts(["a", "b", "a", "b"])
            >>> topology.num_nodes
            2
        """
        return len(self.sizes)

    @property
    def levels(self) -> tuple[str, ...]:
        """The names of the levels, the outermost first; ``"node"`` is the last.

        Example:
            >>> Topology.even(8, nodes=4, racks=2).levels
            ('rack', 'node')
        """
        return (*(level.name for level in self.outer), NODE)

    @quotes_call("topology.node_of")
    def node_of(self, ranks: ArrayLike) -> Ints:
        """Return the node of each rank: int64 in the shape of ``ranks``.

        Raises:
            CoordinateError: if a rank is not an integer, or not in this topology.

        Cost: O(ranks * log(nodes)).

        Example:
            >>> topology = Topology.of_hosts(["a", "b", "a", "b"])
            >>> topology.node_of([0, 1, 2]).tolist()
            [0, 1, 0]
        """
        array = check_integers("ranks", ranks)
        outside = (array < 0) | (array >= self.world_size)
        if outside.any():
            rank, last = int(array[outside].flat[0]), self.world_size - 1
            line = f"rank {rank} is not in the topology, which has {self}."
            raise CoordinateError(line, fix=f"ranks from 0 to {last}.", index=rank)
        if self._by_rank is not None:
            return np.asarray(self._by_rank[array])
        return np.searchsorted(self._ends, array, side="right").astype(np.int64)

    def domain_of(self, level: str, ranks: ArrayLike) -> Ints:
        """Return the domain of each rank at a level: int64 in the shape of ``ranks``.

        Raises:
            CoordinateError: if a rank is not an integer, or not in this topology.
            SpecError: if the level is unknown.

        Example:
            >>> Topology.even(8, nodes=4, racks=2).domain_of("rack", [0, 3, 4]).tolist()
            [0, 0, 1]
        """
        nodes = self.node_of(ranks)
        return nodes if level == NODE else np.asarray(self._level(level).of_node[nodes])

    def domain_names(self, level: str) -> tuple[str, ...]:
        """Return the name of each domain of a level.

        Raises:
            SpecError: if the level is unknown.

        Example:
            >>> topology = Topology.of_hosts(["a", "b", "a", "b"])
            >>> topology.domain_names("node")
            ('a', 'b')
        """
        return self.names if level == NODE else self._level(level).names

    def ranks_of(self, node: int) -> Ints:
        """Return the ranks on a node, ascending: int64 (sizes[node],).

        The index of a rank among them is its ``local_rank`` under torchrun and Slurm.

        Raises:
            CoordinateError: if the node does not exist.

        Cost: O(sizes[node]) if nodes hold consecutive ranks, otherwise O(ranks).

        Example:
            >>> topology = Topology.of_hosts(["a", "b", "a", "b"])
            >>> topology.ranks_of(1).tolist()
            [1, 3]
        """
        number = parse_integer(node)
        if number is None or not 0 <= number < self.num_nodes:
            fix = f"a node from 0 to {self.num_nodes - 1}."
            line = f"topology.ranks_of({node!r}): the node does not exist."
            raise CoordinateError(line, fix=fix, index=node, size=self.num_nodes)
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
        fix = f"use one of {', '.join(self.levels)}."
        raise SpecError(f"topology: there is no level {name!r}.", fix=fix)

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
    if number is not None and 1 <= number <= MAX_RANK:
        return number
    text = str(number) if number is not None else f"{value!r}, {article(type(value).__name__)}"
    is_large = number is not None and number > MAX_RANK
    limits = "from 1 to 2**63 - 2" if is_large else "of 1 or more"
    raise SpecError(f"{name} is {text}.", fix=f"an int {limits} for {name}.")


def number_labels(level: str, labels: Iterable[Hashable]) -> tuple[Ints, tuple[str, ...]]:
    """Assign numbers to the labels in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    numbered = [numbers.setdefault(label, len(numbers)) for label in labels]
    are_integers = all(parse_integer(label) is not None for label in numbers)
    return np.array(numbered, dtype=np.int64), name_domains(level if are_integers else "", numbers)


def name_domains(level: str, labels: Iterable[object]) -> tuple[str, ...]:
    """Return the names of domains: the level, if any, and the label."""
    return tuple(f"{level} {label}".lstrip() for label in labels)


def check_nested(level: Level, inner_levels: tuple[Level, ...]) -> None:
    """Check that a level splits no domain of the levels inside it."""
    for inner in inner_levels:
        parts = np.unique(np.stack([inner.of_node, level.of_node]), axis=1)[0]
        split = np.flatnonzero(np.bincount(parts) > 1)
        if len(split):
            name = inner.names[split[0]]
            line = f"the level {level.name!r} would split {name} into several {plural(level.name)}."
            fix = f"one domain for all nodes of {name}; add levels from the inside out."
            raise SpecError(line, fix=fix)
