"""Assignments of axes to levels: all there are, by ascending cost, and the boxes that they mean."""

from __future__ import annotations

import itertools
import math
import time

import einops
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.core.grid.strides import permuted_positions
from meshkit.core.topology.axis_assignment import assignments, factorizations
from meshkit.core.topology.crossing import count_leaving

law = settings(deadline=None, max_examples=60, database=None)
ROOMS = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3).map(tuple)


@st.composite
def grounds(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
    """Sizes of axes, domains of up to two levels that divide them, and what is sent."""
    sizes = draw(ROOMS)
    left, fanouts = math.prod(sizes), []
    for _ in range(draw(st.integers(1, 2))):
        fanouts.append(draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0])))
        left //= fanouts[-1]
    return sizes, tuple(fanouts), [draw(st.integers(0, 100)) for _ in sizes]


@law
@given(st.integers(1, 24), ROOMS)
def test_splits_are_all_that_multiply_to_the_number(number: int, room: tuple[int, ...]) -> None:
    ranges = [[n for n in range(1, size + 1) if size % n == 0] for size in room]
    wanted = [found for found in itertools.product(*ranges) if math.prod(found) == number]
    assert [*factorizations(number, room)] == wanted


@law
@given(grounds())
def test_all_assignments_each_once_by_ascending_cost(
    ground: tuple[tuple[int, ...], tuple[int, ...], list[int]],
) -> None:
    sizes, fanouts, sent = ground
    found = [*assignments(sizes, fanouts, sent)]
    assert [way.cost for way in found] == sorted(way.cost for way in found)
    assert len({way.rows for way in found}) == len(found)
    divisors = [[n for n in range(1, size + 1) if size % n == 0] for size in sizes]
    rows = [*itertools.product(*divisors)]
    wanted = set()
    for chosen in itertools.product(rows, repeat=len(fanouts)):
        columns = [math.prod(row[axis] for row in chosen) for axis in range(len(sizes))]
        last = tuple(size // column for size, column in zip(sizes, columns, strict=True))
        whole = all(a * b == size for a, b, size in zip(last, columns, sizes, strict=True))
        if whole and [math.prod(row) for row in chosen] == [*fanouts]:
            wanted.add((*chosen, last))
    assert {way.rows for way in found} == wanted


@law
@given(grounds())
def test_the_cost_is_what_leaves_a_domain_counted_on_the_grid(
    ground: tuple[tuple[int, ...], tuple[int, ...], list[int]],
) -> None:
    sizes, fanouts, sent = ground
    numbers = [*itertools.accumulate(fanouts, lambda a, b: a * b)]
    for way in itertools.islice(assignments(sizes, fanouts, sent), 8):
        positions = permuted_positions(sizes, way.chain)
        for cost, held, count in zip(way.cost, way.held, numbers, strict=True):
            each = math.prod(sizes) // count
            domains = np.empty(math.prod(sizes), dtype=np.int64)
            domains[positions] = np.arange(math.prod(sizes)) // each
            out = count_leaving(domains.reshape(sizes), count) @ np.array(sent)
            assert set(out.tolist()) == {cost}
            first = np.argwhere(domains.reshape(sizes) == 0)
            assert tuple(first.max(axis=0) - first.min(axis=0) + 1) == held
            assert len(first) == math.prod(held) == each


def test_positions_along_a_chain_are_those_of_einops() -> None:
    chain = ((0, 2), (1, 3), (0, 2), (1, 1), (1, 2))
    grid = np.arange(24).reshape(4, 6)
    wanted = einops.rearrange(grid, "(a c) (b d e) -> (a b c d e)", a=2, c=2, b=3, d=1, e=2)
    assert permuted_positions((4, 6), chain).tolist() == wanted.tolist()
    assert permuted_positions((4, 6), ((0, 4), (1, 6))).tolist() == [*range(24)]
    assert permuted_positions((1,), ((0, 1),)).tolist() == [0]


def test_the_first_of_very_many_comes_at_once() -> None:
    begun = time.process_time()
    found = next(assignments((2,) * 16, (2**5, 2**8), [2.0**place for place in range(16)]))
    assert time.process_time() - begun < 2
    assert found.held[1] == (1,) * 13 + (2,) * 3


def test_axes_beyond_the_dims_of_numpy() -> None:
    sizes = (1,) * 30 + (4, 2)
    best = next(assignments(sizes, (2, 2), [1.0] * 32))
    assert sorted(permuted_positions(sizes, best.chain).tolist()) == [*range(8)]
