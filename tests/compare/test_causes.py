"""Causes of wrong tensors: each is planted over random axes of random meshes, and found again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit.compare.causes import Array, Copies, Fit, find_fits, residual

few = settings(max_examples=40, deadline=None, database=None)
AXES = "pp", "dp", "sp", "tp"


def best(fits: list[Fit]) -> Fit:
    return min(fits, key=lambda fit: (fit.priority, len(fit.axes)))


def make_copies(
    sizes: dict[str, int],
    cell: Callable[[dict[str, int]], Array],
    cuts: tuple[tuple[str, ...], ...] = (),
) -> Copies:
    """Return copies along all axes that cut no dim."""
    axes = tuple(axis for axis in sizes if axis not in itertools.chain(*cuts))
    keys = itertools.product(*(range(sizes[axis]) for axis in axes))
    cells = {key: cell(dict(zip(axes, key, strict=True))) for key in keys}
    ndim = next(iter(cells.values())).ndim
    return Copies(sizes, axes, cells, cuts or ((),) * ndim)


@st.composite
def planted(draw: st.DrawFn) -> tuple[dict[str, int], tuple[str, ...], np.random.Generator]:
    """Return sizes that are pairwise coprime, so that axes can be told apart, and some axes."""
    names = draw(st.lists(st.sampled_from(AXES), min_size=1, max_size=3, unique=True))
    numbers = draw(st.permutations([2, 3, 5]))
    sizes = dict(zip(names, numbers, strict=False))
    axes = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return sizes, tuple(axis for axis in names if axis in axes), rng


def count(sizes: dict[str, int], axes: tuple[str, ...]) -> int:
    return math.prod(sizes[axis] for axis in axes)


@few
@given(planted(), st.booleans())
def test_a_scale_is_found_with_its_axes_and_factor(plan: tuple, is_inverse: bool) -> None:
    sizes, axes, rng = plan
    one = rng.normal(size=(4, 3))
    factor = 1 / count(sizes, axes) if is_inverse else float(count(sizes, axes))
    noise = 1 + 1e-14 * rng.normal(size=one.shape)
    fit = best(find_fits(make_copies(sizes, lambda at: one * factor * noise), one, 0))
    assert (fit.cause, fit.axes) == ("scaled", axes)
    assert fit.factor == pytest.approx(factor)
    assert fit.error < 1e-12
    root, norm = count(sizes, axes) ** 0.5, np.asarray(rng.uniform(1, 2))
    fit = best(find_fits(make_copies(sizes, lambda at: norm * root), norm, 0))
    assert (fit.cause, fit.axes, "root" in fit.detail) == ("scaled", axes, True)


@few
@given(planted(), st.booleans())
def test_missing_sums_and_means_are_told_apart(plan: tuple, is_mean: bool) -> None:
    sizes, axes, rng = plan
    shape = [sizes[axis] for axis in axes]
    parts = rng.normal(size=(*shape, 4, 3))
    total = parts.reshape(-1, 4, 3).sum(0)
    one = total / count(sizes, axes) if is_mean else total
    copies = make_copies(sizes, lambda at: parts[tuple(at[axis] for axis in axes)])
    fit = best(find_fits(copies, one, 0))
    assert (fit.cause, fit.axes) == ("missing mean" if is_mean else "missing sum", axes)
    assert fit.factor is None


@few
@given(planted())
def test_a_sum_over_a_wrong_axis_has_the_missing_axis_and_a_factor(plan: tuple) -> None:
    sizes, axes, rng = plan
    others = [axis for axis in sizes if axis not in axes]
    if not others:
        return
    shape = [sizes[axis] for axis in axes]
    parts = rng.normal(size=(*shape, 4))
    one = parts.reshape(-1, 4).sum(0)
    factor = sizes[others[0]]
    copies = make_copies(sizes, lambda at: factor * parts[tuple(at[axis] for axis in axes)])
    fit = best(find_fits(copies, one, 0))
    assert (fit.cause, fit.axes) == ("missing sum", axes)
    assert fit.factor == pytest.approx(factor)


@few
@given(planted())
def test_ranks_that_hold_their_own_block(plan: tuple) -> None:
    sizes, axes, rng = plan
    number = count(sizes, axes)
    one = rng.normal(size=(2 * number, 3))
    blocks = np.split(one, number)

    def cell(at: dict[str, int]) -> Array:
        index = np.ravel_multi_index([at[axis] for axis in axes], [sizes[axis] for axis in axes])
        return blocks[int(index)]

    fit = best(find_fits(make_copies(sizes, cell), one, 0))
    assert (fit.cause, fit.axes) == ("one part", axes)
    assert f"{' and '.join(axes)} holds its own block of dim 0" in fit.detail


@few
@given(planted(), st.data())
def test_the_only_coordinate_that_holds_the_tensor(plan: tuple, data: st.DataObject) -> None:
    sizes, axes, rng = plan
    chosen = {axis: data.draw(st.integers(0, sizes[axis] - 1)) for axis in axes}
    one, noise = rng.normal(size=(5,)), rng.normal(size=(30, 5))
    junk = iter(np.repeat(noise, 1, 0))
    copies = make_copies(
        sizes, lambda at: one if all(at[a] == chosen[a] for a in axes) else next(junk)
    )
    fit = best(find_fits(copies, one, 0))
    assert (fit.cause, fit.axes) == ("one part", axes)
    assert " ".join(f"{axis}={index}" for axis, index in chosen.items()) in fit.detail


@few
@given(planted(), st.data())
def test_one_block_in_place_of_all(plan: tuple, data: st.DataObject) -> None:
    sizes, axes, rng = plan
    number = count(sizes, axes)
    index = data.draw(st.integers(0, number - 1))
    one = rng.normal(size=(3, 2 * number))
    block = np.split(one, number, 1)[index]
    fit = best(find_fits(make_copies(sizes, lambda at: block), one, 0))
    assert (fit.cause, fit.axes) == ("one part", axes)
    assert f"block {index} of {number} of dim 1" in fit.detail
    tiled = np.concatenate([block] * number, 1)
    fit = best(find_fits(make_copies(sizes, lambda at: tiled, ((), axes)), one, 0))
    assert (fit.cause, fit.axes) == ("one part", axes)


def keeps_blocks(order: list[int], size: int) -> bool:
    """Return whether an order moves whole blocks of a size: then no axis need have cut them."""
    starts = order[::size]
    return len(order) % size == 0 and order == [n + i for n in starts for i in range(size)]


@few
@given(planted(), st.data())
def test_blocks_in_another_order(plan: tuple, data: st.DataObject) -> None:
    sizes, axes, rng = plan
    number = 2 * count(sizes, axes)  # as a zigzag has
    order = data.draw(st.permutations(range(number)).filter(lambda p: p != [*range(number)]))
    one = rng.normal(size=(3, number * 2))
    mixed = np.concatenate([np.split(one, number, 1)[i] for i in order], 1)
    fits = find_fits(make_copies(sizes, lambda at: mixed, ((), axes)), one, 0)
    assert {fit.cause for fit in fits} == {"order"}
    is_coarser = any(keeps_blocks(order, number // parts) for parts in range(2, number // 2))
    assert is_coarser or axes in [fit.axes for fit in fits]


def test_an_order_over_two_dims_and_of_each_copy() -> None:
    one = np.random.default_rng(0).normal(size=(3, 4, 2))
    fused = one.reshape(12, 2)
    mixed = np.concatenate([fused[:6].reshape(3, 2, 2), fused[6:].reshape(3, 2, 2)], 1)
    fit = best(find_fits(make_copies({"tp": 2}, lambda at: mixed, ((), ("tp",), ())), one, 0))
    assert (fit.cause, fit.axes) == ("order", ("tp",))
    assert "first 2 dims" in fit.detail
    row = one[0]
    own_first = make_copies({"cp": 4}, lambda at: np.roll(row, -at["cp"], 0))
    fit = best(find_fits(own_first, row, 0))
    assert (fit.cause, fit.axes) == ("order", ("cp",))


def test_equal_rows_have_an_order_too() -> None:
    one = np.array([[0.0, 0], [1, 2], [0, 0], [3, 4]])
    mixed = one[[1, 0, 3, 2]]
    fits = find_fits(make_copies({"tp": 2}, lambda at: mixed, (("tp",), ())), one, 0)
    assert {fit.cause for fit in fits} == {"order"}


@pytest.mark.parametrize("fill", [0.0, 7.0])
def test_padding_at_the_end_of_a_dim(fill: float) -> None:
    one = np.random.default_rng(0).normal(size=(10, 3))
    longer = np.concatenate([one, np.full((2, 3), fill)])
    shorter = one[:9]
    ended = np.where(np.arange(10)[:, None] < 8, one, fill)
    for cell in (longer, shorter, ended):
        fit = best(find_fits(make_copies({"tp": 4}, lambda at, c=cell: c, (("tp",), ())), one, 0))
        assert (fit.cause, fit.axes) == ("padding", ("tp",))


def test_random_numbers_and_nan_have_no_cause() -> None:
    rng = np.random.default_rng(0)
    one = rng.normal(size=(8, 4))
    assert (
        find_fits(make_copies({"dp": 2, "tp": 2}, lambda at: rng.normal(size=(8, 4))), one, 0) == []
    )
    assert find_fits(make_copies({"tp": 2}, lambda at: one * np.nan), one, 0) == []
    assert find_fits(make_copies({"tp": 2}, lambda at: 1.5 * one), one, 0) == []
    assert find_fits(make_copies({"tp": 2}, lambda at: np.ones((3, at["tp"] + 1))), one, 0) == []
    assert find_fits(make_copies({"tp": 2}, lambda at: np.asarray(0.3)), np.asarray(1.0), 0) == []


def test_residuals_are_relative_to_the_largest_value_or_to_the_floor() -> None:
    assert residual(np.array([1e-18]), np.array([2e-18]), floor=1e-6) == pytest.approx(1e-12)
    assert residual(np.array([0.0]), np.array([0.0])) == 0
    assert residual(np.array([np.inf, np.nan, 1]), np.array([np.inf, np.nan, 1])) == 0
    assert residual(np.array([np.nan]), np.array([1.0])) == math.inf
    assert residual(np.array([1.0, np.nan]), np.array([1.0, 2.0])) == math.inf
    assert residual(np.array([1.0]), np.array([np.nan])) == math.inf
    assert residual(np.array([np.nan + 1j]), np.array([1 + 1j])) == math.inf
    assert residual(np.ones(2), np.ones(3)) == math.inf
