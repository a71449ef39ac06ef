"""What is to be placed: the axes of a grid, its ranks, and the domains these sit in."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .seats import Floats, Ints
from .topology.axis_assignment import Chain, Sizes, permuted_positions
from .topology.crossing import count_leaving
from .topology.topology import Topology

if TYPE_CHECKING:  # Layout has a method of placement, which needs this file
    from .layout import Layout

Cost = tuple[float, ...]  # what leaves the busiest domain of each level, the outermost first


@dataclass(frozen=True, eq=False)
class Problem:
    """What is placed where.

    Attributes:
        axes: of the layout, and so ``shape``.
        levels: of the topology, the outermost first.
        ranks: int64 (num_ranks,), ascending.
        domains: int64 (num_levels, num_ranks), the domain of each of them at each level.
        sent: what a rank sends along each axis.
    """

    axes: tuple[str, ...]
    shape: Sizes
    levels: tuple[str, ...]
    ranks: Ints
    domains: Ints
    sent: Floats

    @classmethod
    def of(cls, layout: Layout, topology: Topology, sent: Floats) -> Problem:
        """Of a layout and a topology, which may hold more ranks."""
        ranks = np.sort(layout.grid, axis=None)
        found = [topology.domain_of(level, ranks) for level in topology.levels]
        domains = np.stack([np.unique(level, return_inverse=True)[1] for level in found])
        return cls(layout.axes, layout.shape, topology.levels, ranks, domains, sent)

    @cached_property
    def counts(self) -> list[Ints]:
        """How many ranks each domain of each level holds."""
        return [np.bincount(level) for level in self.domains]

    @cached_property
    def fanouts(self) -> Sizes | None:
        """How many domains one of the level outside holds; None where domains differ in size."""
        if any(len(set(count.tolist())) > 1 for count in self.counts):
            return None
        numbers = [1, *(len(count) for count in self.counts)]
        return tuple(inner // outer for outer, inner in itertools.pairwise(numbers))

    def given(self, layout: Layout) -> Ints:
        """Which of the ranks sits at each position of a layout."""
        return np.searchsorted(self.ranks, layout.grid.ravel())

    def seats(self, chain: Chain) -> Ints:
        """Which of the ranks sits at each position, where they fill a chain domain by domain.

        Domains that hold whole groups of the innermost factor come first, so that fewer are torn.
        """
        whole = [count % chain[-1][1] != 0 for count in self.counts]
        keys = [(part[level], level) for part, level in zip(whole, self.domains, strict=True)]
        order = np.lexsort([key for pair in reversed(keys) for key in reversed(pair)])
        seats = np.empty_like(order)
        seats[permuted_positions(self.shape, chain)] = order
        return seats

    def seated(self, chain: Chain) -> Ints:
        """The rank at each position."""
        return self.ranks[self.seats(chain)]

    def cost(self, seats: Ints) -> Cost:
        """What leaves the busiest domain of each level."""
        levels = zip(self.domains, self.counts, strict=True)
        grids = ((level[seats].reshape(self.shape), len(count)) for level, count in levels)
        return tuple(float((count_leaving(grid, count) @ self.sent).max()) for grid, count in grids)
