"""The placement problem: axes, ranks and their domains; and the cost of a solution."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..arrays import Floats, Ints
from ..grid.layout import Layout
from ..grid.strides import permuted_positions
from .axis_assignment import Chain, Sizes
from .crossing import count_leaving
from .topology import Topology

Cost = tuple[float, ...]  # traffic out of the busiest domain of each level, the outermost first


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

    def ranks_for(self, chain: Chain) -> Ints:
        """Return the rank at each position if ranks fill a chain of factors."""
        return self.ranks[self.assign(chain)]

    def cost(self, indices: Ints) -> Cost:
        """Return the traffic out of the busiest domain of each level.

        Args:
            indices: int64 (num_ranks,), the index in ``ranks`` of the rank at each position.
        """
        levels = zip(self.domains, self.counts, strict=True)
        grids = ((level[indices].reshape(self.shape), len(count)) for level, count in levels)
        return tuple(float((count_leaving(grid, n) @ self.traffic).max()) for grid, n in grids)
