"""Assignments of axes to levels of hardware, in ascending order of cost.

A row is a level, a column an axis. The product of a row is the number of domains of that level in
one domain of the next outer level. The product of a column is the size of its axis::

    dp=4 sp=2 tp=8 on 2 racks of 4 nodes of 8

                  dp  sp  tp
        racks      2   1   1      2 racks
        nodes      2   2   1      4 nodes in a rack      a rack holds dp=2 sp=2 tp=8
        devices    1   1   8      8 devices in a node    a node holds tp=8

A domain holds consecutive coordinates of each axis, so a ring enters and leaves it once.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..validate import divisors

Sizes = tuple[int, ...]  # one number for each axis
Chain = tuple[tuple[int, int], ...]  # index of an axis and a factor of it; the outermost first


@dataclass(frozen=True)
class Assignment:
    """One assignment of axes to levels."""

    cost: tuple[float, ...]  # traffic that leaves a domain of each level, the outermost first
    rows: tuple[Sizes, ...]  # factor of each axis by level, the outermost first, then for devices

    @property
    def chain(self) -> Chain:
        """The factors from the outside in."""
        return tuple(pair for row in self.rows for pair in enumerate(row))

    @property
    def held(self) -> tuple[Sizes, ...]:
        """The sizes that one domain of each level holds, the outermost level first."""
        from_inside = itertools.accumulate(reversed(self.rows), _product)
        return tuple(reversed([*from_inside][:-1]))


def assignments(
    sizes: Sizes, fanouts: Sequence[int], traffic: Sequence[float]
) -> Iterator[Assignment]:
    """Yield all assignments by ascending cost. They are computed lazily.

    The cost of a level is the traffic that leaves one of its domains, which holds ``held`` of the
    axes::

        sum over axes cut there: traffic[axis] * product of held / held[axis]
    """
    return _assignments(sizes, sizes, tuple(fanouts), traffic)


def _assignments(
    sizes: Sizes, outer: Sizes, fanouts: Sizes, traffic: Sequence[float]
) -> Iterator[Assignment]:
    """Yield the assignments of the remaining levels to the sizes in one domain outside them."""
    if not fanouts:
        yield Assignment((), (outer,))
        return
    rows = factorizations(fanouts[0], outer)
    by_cost = sorted((_cost(sizes, _quotient(outer, row), traffic), row) for row in rows)
    for cost, equal in itertools.groupby(by_cost, key=lambda item: item[0]):
        inner = [
            _prepend(cost, row, _assignments(sizes, _quotient(outer, row), fanouts[1:], traffic))
            for _, row in equal
        ]
        yield from heapq.merge(*inner, key=lambda assignment: assignment.cost)


def _prepend(cost: float, row: Sizes, inner: Iterator[Assignment]) -> Iterator[Assignment]:
    for assignment in inner:
        yield Assignment((cost, *assignment.cost), (row, *assignment.rows))


def _cost(sizes: Sizes, held: Sizes, traffic: Sequence[float]) -> float:
    volume = math.prod(held)
    axes = zip(sizes, held, traffic, strict=True)
    return math.fsum(volume // inside * amount for size, inside, amount in axes if inside < size)


def factorizations(number: int, limits: Sizes) -> Iterator[Sizes]:
    """Yield the ways to write a number as a product of one divisor of each limit."""
    if not limits:
        if number == 1:
            yield ()
        return
    if math.prod(limits) % number:
        return
    for factor in divisors(math.gcd(number, limits[0])):
        yield from ((factor, *rest) for rest in factorizations(number // factor, limits[1:]))


def _quotient(sizes: Sizes, row: Sizes) -> Sizes:
    return tuple(size // factor for size, factor in zip(sizes, row, strict=True))


def _product(left: Sizes, right: Sizes) -> Sizes:
    return tuple(a * b for a, b in zip(left, right, strict=True))
