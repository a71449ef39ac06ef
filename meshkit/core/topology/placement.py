"""Placement: choose the rank at each position so that the axes with most traffic stay on a node.

The launcher assigns ranks to nodes, the layout assigns positions to ranks. Placement changes the
second so that it suits the first::

    dp=2 tp=4, ranks on nodes a and b in turn     before              placed
                                                  dp=0  0 1 2 3       dp=0  0 2 4 6    node a
    node a: 0 2 4 6    node b: 1 3 5 7            dp=1  4 5 6 7       dp=1  1 3 5 7    node b
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from ..arrays import Floats, Ints
from ..call import quotes_call
from ..grid.layout import Layout
from ..grid.strides import permuted_positions
from ..text import format_sizes
from .axis_assignment import Assignment, Chain, Sizes, assignments
from .crossing import count_leaving, traffic_per_axis
from .topology import Topology

TOLERANCE = 1e-9  # relative difference of equal costs, which are sums of floats
MAX_PERMUTED = 5  # axes of which all orders are tried, 120
MIN_ORDERS, MAX_POSITIONS = 24, 2**22  # orders tried at least; positions in all orders together
MAX_SEARCHED = 8  # ranks on uneven nodes of which all permutations are tried
MAX_ASSIGNMENTS = 1000  # assignments searched for one that costs more than the best

Cost = tuple[float, ...]  # traffic out of the busiest domain of each level, the outermost first


@dataclass(frozen=True, eq=False)
class Placement:
    """A placed layout, its cost, and the reason for the choice.

    Attributes:
        layout: the same axes, with the ranks at their new positions.
        cost: level to the traffic out of its busiest domain in a step, the outermost level first:
            bytes, or multiples of the outermost axis' traffic if no traffic was given.
        before: the same of the layout before placement.
        reason: the choice and its saving, as text.
        runner_up: the next best choice and its cost, as text; "" if there is none.
    """

    layout: Layout
    cost: Mapping[str, float]
    before: Mapping[str, float]
    reason: str
    runner_up: str

    def __str__(self) -> str:
        return f"{self.reason}\n  next best: {self.runner_up or 'none'}"


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """The ranks to assign to the positions of a grid."""

    axes: tuple[str, ...]
    shape: Sizes
    levels: tuple[str, ...]  # outermost first
    ranks: Ints  # int64 (num_ranks,), ascending
    domains: Ints  # int64 (num_levels, num_ranks), the domain of each rank at each level
    traffic: Floats  # float64 (num_axes,), what a rank sends along each axis

    @classmethod
    def of(cls, layout: Layout, topology: Topology, traffic: Floats) -> PlacementProblem:
        """Return the problem of a layout on a topology, which may hold more ranks."""
        ranks = np.sort(layout.grid, axis=None)
        by_level = [topology.domain_of(level, ranks) for level in topology.levels]
        domains = np.stack([np.unique(level, return_inverse=True)[1] for level in by_level])
        return cls(layout.axes, layout.shape, topology.levels, ranks, domains, traffic)

    @cached_property
    def counts(self) -> list[Ints]:
        """The number of ranks in each domain of each level."""
        return [np.bincount(level) for level in self.domains]

    @cached_property
    def fanouts(self) -> Sizes | None:
        """The number of domains in one of the next outer level; None if domains differ in size."""
        if any(len(set(count.tolist())) > 1 for count in self.counts):
            return None
        numbers = [1, *(len(count) for count in self.counts)]
        return tuple(inner // outer for outer, inner in itertools.pairwise(numbers))

    def current(self, layout: Layout) -> Ints:
        """Return the index in ``ranks`` of the rank at each position of a layout."""
        return np.searchsorted(self.ranks, layout.grid.ravel())

    def assign(self, chain: Chain) -> Ints:
        """Return the index in ``ranks`` for each position if ranks fill a chain of factors.

        Ranks go domain by domain. Domains that hold whole groups of the innermost factor come
        first, so that fewer groups are split.
        """
        partial = [count % chain[-1][1] != 0 for count in self.counts]
        keys = [(part[level], level) for part, level in zip(partial, self.domains, strict=True)]
        order = np.lexsort([key for pair in reversed(keys) for key in reversed(pair)])
        indices = np.empty_like(order)
        indices[permuted_positions(self.shape, chain)] = order
        return indices

    def cost(self, indices: Ints) -> Cost:
        """Return the traffic out of the busiest domain of each level, with ``ranks[indices]``."""
        levels = zip(self.domains, self.counts, strict=True)
        grids = ((level[indices].reshape(self.shape), len(count)) for level, count in levels)
        return tuple(float((count_leaving(grid, n) @ self.traffic).max()) for grid, n in grids)


@dataclass(frozen=True)
class Candidate:
    """One placement: its cost, its description, and the order in which positions take ranks."""

    cost: Cost
    description: str
    indices: Callable[[], Ints]


@quotes_call("placed")
def placed(
    layout: Layout, topology: Topology, traffic: Mapping[str, float] | None = None
) -> Placement:
    """Return the layout with ranks at the positions that send least traffic over the slowest links.

    The cost is :func:`~meshkit.core.topology.crossing.link_bytes` of the busiest domain, level by
    level: less traffic at the outermost level is better; on a tie the next level decides. Three
    kinds of candidates are tried:

    - If all domains of each level have the same size, every assignment of axes to levels
      (:func:`~meshkit.core.topology.axis_assignment.assignments`).
    - On uneven nodes, all permutations of up to 8 ranks.
    - Orders of the axes in which the ranks, node by node, fill the grid. All orders are tried for
      up to five axes longer than 1, else those with one axis moved.

    On equal nodes of one level and up to 8 ranks, and on uneven nodes of any levels and up to 8
    ranks, the result is optimal among all permutations.

    The layout is unchanged unless placement reduces the cost. Equal arguments give equal
    placements, so all ranks choose the same.

    Args:
        layout: the axes, and the ranks to place, in any order.
        topology: the node of each rank.
        traffic: the bytes that a rank sends to the next one along the ring of each axis in a step,
            as in :func:`~meshkit.core.topology.crossing.link_bytes`. With None each axis sends 64
            times what the next outer axis sends.

    Raises:
        CoordinateError: if a rank of the layout is not in the topology.
        SpecError: if ``traffic`` is negative or not a number.
        UnknownAxisError: if ``traffic`` names an axis that the layout does not have.

    Cost: milliseconds for 16,384 ranks; with uneven nodes up to a second.

    Example:
        >>> from meshkit import Layout
        >>> placement = placed(Layout(dp=2, tp=4), Topology.of_hosts(["a", "b"] * 4))
        >>> placement.layout.groups("tp").tolist()
        [[0, 2, 4, 6], [1, 3, 5, 7]]
        >>> print(placement)
        a node holds tp=4; a step sends 4 x dp out of the busiest node, 256 x dp before
          next best: a node holds dp=2 tp=2; a step sends 128 x dp out of the busiest node
    """
    problem = PlacementProblem.of(layout, topology, traffic_per_axis(layout, traffic))
    unit = "bytes" if traffic is not None else f"x {layout.axes[0]}"
    before = problem.cost(problem.current(layout))
    best, second = _two_best(problem)
    moves = _less(best.cost, before)
    ranks: range | Ints = problem.ranks[best.indices()] if moves else layout.ranks
    cost = best.cost if moves else before
    levels = topology.levels
    return Placement(
        Layout(ranks=ranks, **layout.sizes),
        dict(zip(levels, cost, strict=True)),
        dict(zip(levels, before, strict=True)),
        _reason(levels, best.description if moves else "", cost, before, unit),
        f"{second.description}; {_sends(levels, second.cost, unit)}" if second else "",
    )


def _two_best(problem: PlacementProblem) -> tuple[Candidate, Candidate | None]:
    """Return the candidate of least cost, and the next one that costs more."""
    candidates = [*_even_candidates(problem), *_order_candidates(problem), *_searched(problem)]
    best = candidates[0]
    for other in candidates[1:]:
        best = other if _less(other.cost, best.cost) else best
    worse = [other for other in candidates if _less(best.cost, other.cost)]
    return best, min(worse, key=lambda other: other.cost, default=None)


def _even_candidates(problem: PlacementProblem) -> Iterator[Candidate]:
    """Yield the assignment of least cost, and the next one that costs more."""
    if problem.fanouts is None:
        return
    best: Assignment | None = None
    ascending = assignments(problem.shape, problem.fanouts, problem.traffic.tolist())
    for assignment in itertools.islice(ascending, MAX_ASSIGNMENTS):
        if best is None or _less(best.cost, assignment.cost):
            indices = partial(problem.assign, assignment.chain)
            yield Candidate(assignment.cost, _describe(problem, assignment), indices)
            if best is not None:
                return
            best = assignment


def _order_candidates(problem: PlacementProblem) -> Iterator[Candidate]:
    """Yield the orders of axes that no assignment represents, because domains are no boxes.

    Orders closest to the axes sorted by traffic come first. With many axes or ranks, the number of
    orders is limited.
    """
    long_axes = [axis for axis, size in enumerate(problem.shape) if size > 1] or [0]
    long_axes.sort(key=lambda axis: problem.traffic[axis])
    limit = max(MIN_ORDERS, MAX_POSITIONS // len(problem.ranks))
    for order in itertools.islice(_orders(long_axes), limit):
        chain = tuple((axis, problem.shape[axis]) for axis in order)
        if problem.fanouts is None or not _are_boxes(chain, problem.fanouts):
            names = " ".join(problem.axes[axis] for axis in order)
            cost = problem.cost(problem.assign(chain))
            indices = partial(problem.assign, chain)
            yield Candidate(cost, f"ranks fill {names} node by node", indices)


def _searched(problem: PlacementProblem) -> Iterator[Candidate]:
    """Yield the best of all permutations, of up to 8 ranks on uneven nodes.

    Ranks of one node are alike, so only the nodes of the positions are permuted.
    """
    rows = np.stack([*problem.domains], axis=1).tolist()
    if problem.fanouts is not None or len(rows) > MAX_SEARCHED:
        return
    ranks_of: dict[int, list[int]] = {}
    for rank, row in enumerate(rows):
        ranks_of.setdefault(row[-1], []).append(rank)
    # the levels above a node and its size: nodes in which both are equal are alike
    kinds = {row[-1]: (*row[:-1], len(ranks_of[row[-1]])) for row in rows}

    def indices(way: Sequence[int]) -> Ints:
        left = {node: iter(ranks) for node, ranks in ranks_of.items()}
        return np.array([next(left[node]) for node in way])

    ways = _ways({node: len(ranks) for node, ranks in ranks_of.items()}, kinds, frozenset())
    cost, way = min((problem.cost(indices(way)), way) for way in ways)
    yield Candidate(cost, "the best of all permutations", partial(indices, way))


def _ways(
    left: Mapping[int, int], kinds: Mapping[int, object], used: frozenset[int]
) -> Iterator[tuple[int, ...]]:
    """Yield the node of each position, in all ways that differ by more than nodes that are alike.

    The first of the nodes of one kind that are still whole stands for all of them.
    """
    if not any(left.values()):
        yield ()
    fresh: set[object] = set()
    for node in (node for node, ranks in left.items() if ranks):
        if node not in used and kinds[node] in fresh:
            continue
        fresh.update([kinds[node]] if node not in used else [])
        rest = _ways({**left, node: left[node] - 1}, kinds, used | {node})
        yield from ((node, *tail) for tail in rest)


def _orders(order: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield all orders, those with the fewest inversions first."""
    if len(order) <= MAX_PERMUTED:
        every = itertools.permutations(range(len(order)))
        ranked = sorted(every, key=lambda p: sum(a > b for a, b in itertools.combinations(p, 2)))
        yield from (tuple(order[index] for index in permutation) for permutation in ranked)
        return
    yield tuple(order)  # with more axes, only orders with one axis moved
    for source, target in itertools.permutations(range(len(order)), 2):
        rest = [*order[:source], *order[source + 1 :]]
        yield (*rest[:target], order[source], *rest[target:])


def _are_boxes(chain: Chain, fanouts: Sizes) -> bool:
    """Return whether each domain of even levels is a box if ranks fill the grid along a chain."""
    edges = [*itertools.accumulate((size for _, size in chain), operator.mul, initial=1)]
    num_domains = itertools.accumulate(fanouts, operator.mul)
    return all(_is_box(number, edges) for number in num_domains)


def _is_box(number: int, edges: list[int]) -> bool:
    """Return whether equal domains cut one axis into equal parts, between two of its edges."""
    outer = max(edge for edge in edges if edge <= number)
    inner = min(edge for edge in edges if edge >= number)
    return number % outer == 0 and inner % number == 0


def _less(left: Cost, right: Cost) -> bool:
    for a, b in zip(left, right, strict=True):
        if not math.isclose(a, b, rel_tol=TOLERANCE):
            return a < b
    return False


def _describe(problem: PlacementProblem, assignment: Assignment) -> str:
    """Return for example ``a node holds sp=2 tp=4``."""
    texts = []
    for level, held in zip(problem.levels, assignment.held, strict=True):
        sizes = {axis: n for axis, n in zip(problem.axes, held, strict=True) if n > 1}
        texts.append(f"a {level} holds {format_sizes(sizes) or 'one rank'}")
    return ", ".join(texts)


def _reason(levels: tuple[str, ...], description: str, cost: Cost, before: Cost, unit: str) -> str:
    if not description:
        return f"unchanged; {_sends(levels, cost, unit)}, and no less otherwise"
    old = ", ".join(_amount(number, unit) for number in before)
    return f"{description}; {_sends(levels, cost, unit)}, {old} before"


def _sends(levels: tuple[str, ...], cost: Cost, unit: str) -> str:
    by_level = zip(levels, cost, strict=True)
    amounts = [f"{_amount(number, unit)} out of the busiest {level}" for level, number in by_level]
    return f"a step sends {', '.join(amounts)}"


def _amount(number: float, unit: str) -> str:
    if not number:
        return "nothing"
    return f"{number:,.0f} bytes" if unit == "bytes" else f"{number:,.6g} {unit}"
