"""Placement: which rank takes which position, so that the axes that talk most have the near wires.

The launcher deals ranks to nodes, the layout deals positions to ranks; the second can make good
what the first did::

    dp=2 tp=4, ranks dealt to nodes in turn       as it was           placed
                                                  dp=0  0 1 2 3       dp=0  0 2 4 6    node a
    node a: 0 2 4 6    node b: 1 3 5 7            dp=1  4 5 6 7       dp=1  1 3 5 7    node b
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .call import Call
from .seats import Ints
from .topology.axis_assignment import Assignment, Chain, Sizes, assignments
from .topology.crossing import traffic_per_axis
from .topology.placement_cost import Cost, PlacementProblem
from .topology.topology import Topology

if TYPE_CHECKING:  # Layout has a method of this file
    from .layout import Layout

SAME = 1e-9  # costs that differ by less, relatively, are equal: sums of floats
SORTED = 5  # axes of which all orders are looked at, 120
LEAST_ORDERS, MOST_PLACED = 24, 2**22  # orders that are always looked at; positions in all of them
LOOKED = 1000  # assignments looked through for one that costs more than the best


@dataclass(frozen=True, eq=False)
class Placement:
    """A layout whose ranks were placed, and why so.

    Attributes:
        layout: the same axes, with ``ranks`` chosen.
        cost: level to what leaves its busiest domain in a step, the outermost first: bytes, or
            multiples of what the outermost axis sends, where no traffic was given.
        before: the same of the layout as it was.
        reason: what was chosen, in words, and what it saves.
        runner_up: the next best, in words, and what it costs; "" where there is none.
    """

    layout: Layout
    cost: Mapping[str, float]
    before: Mapping[str, float]
    reason: str
    runner_up: str

    def __str__(self) -> str:
        return f"{self.reason}\n  next best: {self.runner_up or 'none'}"


@dataclass(frozen=True)
class Candidate:
    """One arrangement: its cost, its words, and in which order positions take ranks."""

    cost: Cost
    words: str
    chain: Chain


def placed(
    layout: Layout, topology: Topology, traffic: Mapping[str, float] | None = None
) -> Placement:
    """The rank at each position chosen so that least is sent over the farthest wires. Pure.

    The cost is :func:`~meshkit.core.topology.crossing.link_bytes` of the busiest domain, level by level: of
    two arrangements that is better which sends less over the outermost wires; where that is equal,
    the next level decides. Looked at are, where all domains of a level hold equally many ranks,
    all assignments of axes to levels (:func:`~meshkit.core.topology.axis_assignment.assignments`); and orders of
    the axes in which the ranks, node by node, fill the grid: all of them for up to five axes longer
    than 1, else one axis moved at a time. On even nodes of one level and up
    to 8 ranks, no permutation of ranks costs less. Where nodes differ in size, few do: in 24 of 464
    such cases of up to 8 ranks, and never half.

    What is no worse as it is, is left as it is. Equal arguments give equal placements, so that all
    ranks choose alike. Milliseconds for 16,384 ranks; where nodes differ in size up to a second.

    Args:
        layout: the axes, and the ranks that are to be placed, in whatever order.
        topology: where they sit.
        traffic: the bytes that a rank sends to its next along the ring of each axis in a step, as
            in :func:`~meshkit.core.topology.crossing.link_bytes`; None means each axis 64 times what the
            axis outside it sends.

    Raises:
        CoordinateError: where a rank of the layout is not in the topology.
        SpecError: where ``traffic`` is negative or no number.
        UnknownAxisError: for traffic along an axis that the layout does not have.

    Example:
        >>> from meshkit import Layout
        >>> found = placed(Layout(dp=2, tp=4), Topology.of_hosts(["a", "b"] * 4))
        >>> found.layout.groups("tp").tolist()
        [[0, 2, 4, 6], [1, 3, 5, 7]]
        >>> print(found)
        a node holds tp=4; a step sends 4 x dp out of the busiest node, 256 x dp as it was
          next best: a node holds dp=2 tp=2; a step sends 128 x dp out of the busiest node
    """
    sent = traffic_per_axis(Call("placed"), layout, traffic)
    problem = PlacementProblem.of(layout, topology, sent)
    unit = "bytes" if traffic is not None else f"x {layout.axes[0]}"
    before = problem.cost(problem.given(layout))
    best, following = _two_best(problem)
    moved = _less(best.cost, before)
    ranks: range | Ints = problem.seated(best.chain) if moved else layout.ranks
    cost = best.cost if moved else before
    reason = _reason(topology.levels, best.words if moved else "", cost, before, unit)
    return Placement(
        type(layout)(ranks=ranks, **layout.sizes),
        dict(zip(topology.levels, cost, strict=True)),
        dict(zip(topology.levels, before, strict=True)),
        reason,
        f"{following.words}; {_sends(topology.levels, following.cost, unit)}" if following else "",
    )


def placed_layout(
    layout: Layout, topology: Topology, traffic: Mapping[str, float] | None = None
) -> Layout:
    """The same axes with the ranks on the nearest wires; :func:`meshkit.placed` says why, too.

    Args:
        layout: the axes, and the ranks that are to be placed.
        topology: where the ranks sit.
        traffic: bytes that a rank sends along each axis in a step; None means each axis 64 times
            what the axis outside it does.

    Raises:
        CoordinateError, SpecError, UnknownAxisError: as :func:`meshkit.placed`.

    Example:
        >>> from meshkit import Layout
        >>> Layout(dp=2, tp=4).placed(Topology.of_hosts(["a", "b"] * 4)).groups("tp").tolist()
        [[0, 2, 4, 6], [1, 3, 5, 7]]
    """
    return placed(layout, topology, traffic).layout


def _two_best(problem: PlacementProblem) -> tuple[Candidate, Candidate | None]:
    """The arrangement that costs least, and the next one that costs more."""
    found = [*_boxes(problem), *_orders(problem)]
    best = found[0]
    for other in found[1:]:
        best = other if _less(other.cost, best.cost) else best
    rest = [other for other in found if _less(best.cost, other.cost)]
    return best, min(rest, key=lambda other: other.cost, default=None)


def _boxes(problem: PlacementProblem) -> Iterator[Candidate]:
    """The assignment that costs least, and the next one that costs more."""
    if problem.fanouts is None:
        return
    best: Assignment | None = None
    ways = assignments(problem.shape, problem.fanouts, problem.sent.tolist())
    for found in itertools.islice(ways, LOOKED):
        if best is None or _less(best.cost, found.cost):
            yield Candidate(found.cost, _box_words(problem, found), found.chain)
            if best is not None:
                return
            best = found


def _orders(problem: PlacementProblem) -> Iterator[Candidate]:
    """The orders of axes in which domains hold no box, so that no assignment stands for them.

    Those that stay closest to the axes sorted by what they send come first, and where there are
    many axes or ranks the rest is not looked at.
    """
    wide = [place for place, size in enumerate(problem.shape) if size > 1] or [0]
    wide.sort(key=lambda place: problem.sent[place])
    most = max(LEAST_ORDERS, MOST_PLACED // len(problem.ranks))
    for order in itertools.islice(_turned(wide), most):
        chain = tuple((place, problem.shape[place]) for place in order)
        if problem.fanouts is None or not _are_boxes(chain, problem.fanouts):
            words = f"ranks fill {' '.join(problem.axes[place] for place in order)} node by node"
            yield Candidate(problem.cost(problem.seats(chain)), words, chain)


def _turned(order: list[int]) -> Iterator[tuple[int, ...]]:
    """All orders, those with the fewest pairs turned round first."""
    if len(order) <= SORTED:
        places = itertools.permutations(range(len(order)))
        ranked = sorted(places, key=lambda p: sum(a > b for a, b in itertools.combinations(p, 2)))
        yield from (tuple(order[place] for place in one) for one in ranked)
        return
    yield tuple(order)  # of more, only those with one axis moved
    for place, to in itertools.permutations(range(len(order)), 2):
        moved = [*order[:place], *order[place + 1 :]]
        yield (*moved[:to], order[place], *moved[to:])


def _are_boxes(chain: Chain, fanouts: Sizes) -> bool:
    """Whether each domain of even levels holds a box, where ranks fill the grid along a chain."""
    edges = [*itertools.accumulate((size for _, size in chain), operator.mul, initial=1)]
    whole = itertools.accumulate(fanouts, operator.mul)
    return all(_is_box(count, edges) for count in whole)


def _is_box(count: int, edges: list[int]) -> bool:
    """Whether ``count`` equal domains cut one axis into equal parts, between two of its edges."""
    outer = max(edge for edge in edges if edge <= count)
    inner = min(edge for edge in edges if edge >= count)
    return count % outer == 0 and inner % count == 0


def _less(left: Cost, right: Cost) -> bool:
    for one, other in zip(left, right, strict=True):
        if not math.isclose(one, other, rel_tol=SAME):
            return one < other
    return False


def _box_words(problem: PlacementProblem, found: Assignment) -> str:
    """``a node holds sp=2 tp=4``."""
    said = []
    for level, held in zip(problem.levels, found.held, strict=True):
        sizes = [f"{axis}={n}" for axis, n in zip(problem.axes, held, strict=True) if n > 1]
        said.append(f"a {level} holds {' '.join(sizes) or 'one rank'}")
    return ", ".join(said)


def _reason(levels: tuple[str, ...], words: str, cost: Cost, before: Cost, unit: str) -> str:
    if not words:
        return f"as it was; {_sends(levels, cost, unit)}, and no less otherwise"
    was = ", ".join(_amount(number, unit) for number in before)
    return f"{words}; {_sends(levels, cost, unit)}, {was} as it was"


def _sends(levels: tuple[str, ...], cost: Cost, unit: str) -> str:
    pairs = zip(levels, cost, strict=True)
    said = [f"{_amount(number, unit)} out of the busiest {level}" for level, number in pairs]
    return f"a step sends {', '.join(said)}"


def _amount(number: float, unit: str) -> str:
    if not number:
        return "nothing"
    return f"{number:,.0f} bytes" if unit == "bytes" else f"{number:,.6g} {unit}"
