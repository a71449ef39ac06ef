"""How many of each axis sit inside each level of hardware: the ways there are, the best first.

A row is a level, a column an axis; a row multiplies to what one domain holds of the next level, a
column to the size of its axis::

    dp=4 sp=2 tp=8 on 2 racks of 4 nodes of 8

                  dp  sp  tp
        racks      2   1   1      2 racks
        nodes      2   2   1      4 nodes a rack      a rack holds dp=2 sp=2 tp=8
        devices    1   1   8      8 devices a node    a node holds tp=8

Along each axis a domain holds consecutive coordinates, so a ring enters and leaves it once.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .integers import divisors
from .seats import Ints

Sizes = tuple[int, ...]  # one number an axis
Chain = tuple[tuple[int, int], ...]  # place of an axis and a factor of it; the outermost first


@dataclass(frozen=True)
class Assignment:
    """One way.

    Attributes:
        cost: what leaves a domain of each level, the outermost first.
        rows: by level, the outermost first, and then for devices: the factor of each axis.
    """

    cost: tuple[float, ...]
    rows: tuple[Sizes, ...]

    @property
    def chain(self) -> Chain:
        """The factors from the outside in."""
        return tuple(pair for row in self.rows for pair in enumerate(row))

    @property
    def held(self) -> tuple[Sizes, ...]:
        """What one domain of each level holds of each axis, the outermost level first."""
        below = itertools.accumulate(reversed(self.rows), _product)
        return tuple(reversed([*below][:-1]))


def assignments(
    sizes: Sizes, fanouts: Sequence[int], sent: Sequence[float]
) -> Iterator[Assignment]:
    """All assignments, by ascending cost. Lazily.

    The cost of a level is what leaves one of its domains, which holds ``held`` of the axes::

        sum over axes cut there: sent[axis] * product of held / held[axis]

    Args:
        sizes: of each axis.
        fanouts: how many domains of each level one of the level outside it holds, the outermost
            first. Their product divides that of the sizes.
        sent: what a rank sends to its next along each axis.

    Example:
        >>> best = next(assignments((4, 2, 8), (2, 4), (1, 10, 100)))
        >>> best.rows, best.held, best.cost
        (((2, 1, 1), (2, 2, 1), (1, 1, 8)), ((2, 2, 8), (1, 1, 8)), (16.0, 88.0))
    """
    return _below(sizes, sizes, tuple(fanouts), sent)


def _below(
    sizes: Sizes, room: Sizes, fanouts: Sizes, sent: Sequence[float]
) -> Iterator[Assignment]:
    """The assignments of the levels that are left to what one domain of the last one holds."""
    if not fanouts:
        yield Assignment((), (room,))
        return
    ways = [(_cost(sizes, _quotient(room, row), sent), row) for row in splits(fanouts[0], room)]
    for cost, alike in itertools.groupby(sorted(ways), key=lambda way: way[0]):
        inner = [
            _with(cost, row, _below(sizes, _quotient(room, row), fanouts[1:], sent))
            for _, row in alike
        ]
        yield from heapq.merge(*inner, key=lambda found: found.cost)


def _with(cost: float, row: Sizes, inner: Iterator[Assignment]) -> Iterator[Assignment]:
    for found in inner:
        yield Assignment((cost, *found.cost), (row, *found.rows))


def _cost(sizes: Sizes, held: Sizes, sent: Sequence[float]) -> float:
    volume = math.prod(held)
    cut = zip(sizes, held, sent, strict=True)
    return math.fsum(volume // inside * amount for size, inside, amount in cut if inside < size)


def splits(number: int, room: Sizes) -> Iterator[Sizes]:
    """The ways to write a number as one factor an axis, each a divisor of the room there.

    Example:
        >>> [*splits(4, (2, 8))]
        [(1, 4), (2, 2)]
    """
    if not room:
        if number == 1:
            yield ()
        return
    if math.prod(room) % number:
        return
    for factor in divisors(math.gcd(number, room[0])):
        yield from ((factor, *rest) for rest in splits(number // factor, room[1:]))


def dealt(shape: Sizes, chain: Chain) -> Ints:
    """The positions of a grid in the order of a chain of factors, the last factor fastest.

    Args:
        shape: of the grid.
        chain: the factors of each axis, which multiply to its size.

    Returns:
        int64 (positions,), each position once.

    Example:
        >>> dealt((2, 4), ((1, 2), (0, 2), (1, 2))).tolist()
        [0, 1, 4, 5, 2, 3, 6, 7]
    """
    steps = [pair for pair in chain if pair[1] > 1]  # numpy has room for few dims
    by_axis = sorted(range(len(steps)), key=lambda i: steps[i][0])  # stable: outermost first
    split = np.arange(math.prod(shape), dtype=np.int64).reshape([steps[i][1] for i in by_axis])
    return np.asarray(split.transpose(np.argsort(by_axis)).ravel())


def _quotient(room: Sizes, row: Sizes) -> Sizes:
    return tuple(whole // factor for whole, factor in zip(room, row, strict=True))


def _product(left: Sizes, right: Sizes) -> Sizes:
    return tuple(a * b for a, b in zip(left, right, strict=True))
