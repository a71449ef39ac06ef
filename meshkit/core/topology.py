"""Topology: which node each rank sits on, and what the nodes sit in.

Levels nest, the outermost first; a level is cut into domains, and each rank is in one of each::

    rack      |      rack 0       |      rack 1       |      far
    node      | node 0  | node 1  | node 2  | node 3  |       .
    device    | 0  1  2 | 3  4  5 | 6  7  8 | 9 10 11 |      near

Nodes are numbered as ranks first meet them, so node 0 is where the lowest rank is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from .call import Call, given
from .errors import CoordinateError, SpecError, told
from .indices import check_integers
from .integers import integer
from .seats import MAX_RANK, Ints
from .topology.level import Level, check_divides, check_nested, name_domains, number_labels
from .words import article, count_noun

NODE = "node"


@dataclass(frozen=True, eq=False, repr=False)
class Topology:
    """Where ranks 0 to ``world_size - 1`` sit. Make it with :meth:`even`, or another of its like.

    O(nodes) in memory where each node holds consecutive ranks; else one array of ranks. Equal
    where all ranks sit alike and all names are the same.

    Attributes:
        sizes: read-only int64 (num_nodes,), how many ranks each node holds.
        names: the name of each node.
        outer: the levels outside nodes, the outermost first.

    Example:
        >>> topology = Topology.of_hosts(["a", "b", "a", "b"])
        >>> topology.node_of([0, 1, 2, 3]).tolist(), topology.names
        ([0, 1, 0, 1], ('a', 'b'))
    """

    sizes: Ints
    names: tuple[str, ...]
    outer: tuple[Level, ...] = ()
    _by_rank: Ints | None = None  # None: consecutive ranks a node

    def __post_init__(self) -> None:
        for array in (self.sizes, self._by_rank, *(level.of_node for level in self.outer)):
            if array is not None:
                array.flags.writeable = False

    @classmethod
    def even(cls, world_size: int, *, nodes: int, racks: int | None = None) -> Topology:
        """Nodes of one size, with consecutive ranks. O(nodes).

        Args:
            world_size: how many ranks there are.
            nodes: how many nodes they divide over.
            racks: how many racks the nodes divide over; None means that racks do not matter.

        Raises:
            SpecError: where a number is no int of 1 or more, or one does not divide.

        Example:
            >>> print(Topology.even(64, nodes=8), Topology.even(64, nodes=8, racks=2), sep="; ")
            64 ranks on 8 nodes of 8; 64 ranks on 8 nodes of 8, in 2 racks
        """
        more = given(racks=racks)
        call = Call("Topology.even", (world_size,), {"nodes": nodes, **more})
        said = {"world_size": world_size, "nodes": nodes, **more}
        ranks, num_nodes, *rest = (_positive(call, name, value) for name, value in said.items())
        check_divides(call, ranks, num_nodes)
        topology = cls.of_sizes(np.full(num_nodes, ranks // num_nodes))
        for num_racks in rest:
            if num_nodes % num_racks:
                line = (
                    f"{call}: {num_nodes} nodes do not divide over {count_noun(num_racks, 'rack')}."
                )
                fix = (
                    f"{call.but(racks=None)}, and its .inside('rack', [...]), a rack for each node."
                )
                raise SpecError(told(line, fix=fix), world_size=ranks)
            topology = topology.inside("rack", np.arange(num_nodes) // (num_nodes // num_racks))
        return topology

    @classmethod
    def of_sizes(cls, sizes: Sequence[int] | Ints) -> Topology:
        """Nodes of sizes that may differ, with consecutive ranks. O(nodes).

        Args:
            sizes: how many ranks each node holds.

        Raises:
            SpecError: where there are none, or one is no int of 1 or more.

        Example:
            >>> print(Topology.of_sizes([7, 8]))
            15 ranks on 2 nodes of 7 and 8
        """
        call = Call("Topology.of_sizes", (sizes,))
        if isinstance(sizes, str) or not len(sizes):
            fix = "Topology.of_sizes([7, 8]), say: how many ranks each node holds."
            raise SpecError(told(f"{call} gives no sizes of nodes.", fix=fix))
        held = [_positive(call, f"the size of node {i}", size) for i, size in enumerate(sizes)]
        if sum(held) > MAX_RANK:
            raise SpecError(
                told(f"{call} has more ranks than int64 can number.", fix="smaller sizes.")
            )
        return cls(np.array(held, dtype=np.int64), name_domains(NODE, range(len(held))))

    @classmethod
    def of_hosts(cls, hosts: Iterable[Hashable]) -> Topology:
        """The nodes of ranks by the names of their hosts. O(ranks), and O(nodes) to keep.

        Args:
            hosts: the host of each rank, in the order of ranks; hosts may come in any order, as
                ``cyclic`` deals them. Whatever is equal is one node.

        Raises:
            SpecError: where there are none.

        Example:
            >>> print(Topology.of_hosts(["node1", "node10", "node1", "node10"]))
            4 ranks on 2 nodes of 2, not in blocks: node 0 has ranks 0, 2
        """
        by_rank, names = number_labels(NODE, () if isinstance(hosts, str) else hosts)
        if not names:
            fix = "Topology.of_hosts(['a', 'a', 'b', 'b']), say: the host of each rank."
            raise SpecError(told(f"Topology.of_hosts({hosts!r}) is no list of hosts.", fix=fix))
        consecutive = bool((np.diff(by_rank) >= 0).all())
        return cls(np.bincount(by_rank), names, (), None if consecutive else by_rank)

    def inside(self, name: str, domains: Sequence[Hashable] | Ints) -> Topology:
        """The same nodes with one more level, outside all others. O(nodes).

        Args:
            name: what a domain is called, ``"rack"``.
            domains: the domain of each node, in the order of ``names``. Whatever is equal is one.

        Raises:
            SpecError: where there is not one for each node, the name is taken, or a domain of the
                level inside would be torn apart.

        Example:
            >>> print(Topology.even(8, nodes=4).inside("rack", ["r1", "r1", "r2", "r2"]))
            8 ranks on 4 nodes of 2, in 2 racks
        """
        call = Call("topology.inside", (name, domains))
        if name in (*self.levels, "device"):
            fix = "another name."
            raise SpecError(told(f"{call}: there is a level {name!r} already.", fix=fix))
        of_node, names = number_labels(name, domains)
        if len(of_node) != self.num_nodes:
            line = f"{call} has {count_noun(len(of_node), 'domain')} for {count_noun(self.num_nodes, 'node')}."
            raise SpecError(told(line, fix="a domain for each node."))
        level = Level(name, of_node, names)
        check_nested(call, level, self.outer[:1])
        return Topology(self.sizes, self.names, (level, *self.outer), self._by_rank)

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return int(self._ends[-1])

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return len(self.sizes)

    @property
    def levels(self) -> tuple[str, ...]:
        """The names of the levels, the outermost first; ``"node"`` is the last."""
        return (*(level.name for level in self.outer), NODE)

    def node_of(self, ranks: ArrayLike) -> Ints:
        """The node of each rank: int64 in the shape of ``ranks``. O(ranks), log of nodes each.

        Raises:
            CoordinateError: where one is no integer, or not a rank of this topology.
        """
        array = check_integers("topology.node_of", "ranks", ranks)
        outside = (array < 0) | (array >= self.world_size)
        if outside.any():
            rank, last = int(array[outside].flat[0]), self.world_size - 1
            line = f"topology.node_of: rank {rank} is not in the topology, which has {self}."
            raise CoordinateError(told(line, fix=f"ranks from 0 to {last}."), index=rank)
        if self._by_rank is not None:
            return np.asarray(self._by_rank[array])
        return np.searchsorted(self._ends, array, side="right").astype(np.int64)

    def domain_of(self, level: str, ranks: ArrayLike) -> Ints:
        """The domain of each rank at a level, as :meth:`node_of` for nodes.

        Raises:
            CoordinateError: as :meth:`node_of`.
            SpecError: for a level that there is not.

        Example:
            >>> Topology.even(8, nodes=4, racks=2).domain_of("rack", [0, 3, 4]).tolist()
            [0, 0, 1]
        """
        nodes = self.node_of(ranks)
        return nodes if level == NODE else np.asarray(self._level(level).of_node[nodes])

    def domain_names(self, level: str) -> tuple[str, ...]:
        """The name of each domain of a level.

        Raises:
            SpecError: for a level that there is not.
        """
        return self.names if level == NODE else self._level(level).names

    def ranks_of(self, node: int) -> Ints:
        """The ranks on a node, ascending: int64 (sizes[node],). O(ranks) where dealt in any order.

        The place of a rank among them is its slot: its ``local_rank`` under torchrun and Slurm.

        Raises:
            CoordinateError: where there is no such node.
        """
        number = integer(node)
        if number is None or not 0 <= number < self.num_nodes:
            fix = f"a node from 0 to {self.num_nodes - 1}."
            line = f"topology.ranks_of({node!r}): there is no such node."
            raise CoordinateError(told(line, fix=fix), index=node, size=self.num_nodes)
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
        raise SpecError(told(f"topology: there is no level {name!r}.", fix=fix))

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
        found = sorted(set(self.sizes.tolist()))
        sizes = " and ".join(map(str, found)) if len(found) < 3 else f"{found[0]} to {found[-1]}"
        nodes = f"{count_noun(self.num_nodes, 'node')} of {sizes}"
        outer = [count_noun(len(level.names), level.name) for level in reversed(self.outer)]
        text = ", in ".join((f"{count_noun(self.world_size, 'rank')} on {nodes}", *outer))
        if self._by_rank is None:
            return text
        first = self.ranks_of(0).tolist()
        shown = ", ".join(map(str, first[:4])) + (", ..." if len(first) > 4 else "")
        return f"{text}, not in blocks: node 0 has ranks {shown}"


def _positive(call: Call, what: str, value: object) -> int:
    """A count of ranks, nodes or racks as a plain int.

    Raises:
        SpecError: where it is no int of 1 or more.
    """
    number = integer(value)
    if number is not None and 1 <= number <= MAX_RANK:
        return number
    said = str(number) if number is not None else f"{value!r}, {article(type(value).__name__)}"
    raise SpecError(told(f"{call}: {what} is {said}.", fix=f"an int of 1 or more for {what}."))
