"""The laws of the pure part, as properties. Laws 10 and 11 need processes; they are in tests/live.

Each formula is derived again in at least two ways that share no code with meshkit: plain integers
(Horner's rule and divmod over strides) and numpy (reshape, transpose, roll) or einops.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import einops
import numpy as np
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st

from meshkit import BatchPlan, Layout, factor_world
from meshkit.core.draw.grid_text import draw_grid as picture
from meshkit.core.grid.axis_names import STANDARD
from meshkit.core.grid.group_plan import GroupPlan
from meshkit.testing import (
    axes_of,
    axis_names,
    batch_plans,
    coordinates,
    layouts,
    ranks,
    sizes,
)

law = settings(deadline=None, max_examples=60, database=None)


@st.composite
def factorizations(draw: st.DrawFn, number: int) -> dict[str, int]:
    """Sizes whose product is a number, the outermost first."""
    sizes = []
    while number > 1 and len(sizes) < 4:
        size = draw(st.sampled_from([n for n in range(1, number + 1) if number % n == 0]))
        sizes.append(size)
        number //= size
    return {f"v{place}": size for place, size in enumerate([*sizes, number])}


# ---------------------------------------------------------------- the same things, derived again


def places(layout: Layout) -> Iterator[tuple[int, ...]]:
    """Every index tuple, the last index fastest."""
    return itertools.product(*(range(size) for size in layout.sizes.values()))


def horner(indices: Sequence[int], shape: Sequence[int]) -> int:
    """The row-major position, from plain ints."""
    position = 0
    for index, size in zip(indices, shape, strict=True):
        position = position * size + index
    return position


def digits(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The other way, by divmod from the innermost axis outwards."""
    found = []
    for size in reversed(shape):
        position, index = divmod(position, size)
        found.append(index)
    return tuple(reversed(found))


def groups_by_strides(layout: Layout, axes: Sequence[str]) -> list[list[int]]:
    """Groups from plain ints: one dict of rows, keyed by the indices that stay fixed."""
    held, shape = [int(rank) for rank in layout.ranks], layout.shape
    rows: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}
    for position, rank in enumerate(held):
        where = dict(zip(layout.axes, digits(position, shape), strict=True))
        fixed = tuple(index for axis, index in where.items() if axis not in axes)
        rows.setdefault(fixed, {})[tuple(where[axis] for axis in axes)] = rank
    return [[row[key] for key in sorted(row)] for _, row in sorted(rows.items())]


def groups_by_numpy(layout: Layout, axes: Sequence[str]) -> np.ndarray:
    """Groups from a transpose and a reshape."""
    grid = np.array(layout.ranks).reshape(layout.shape)
    dims = [layout.axes.index(axis) for axis in axes]
    outer = [dim for dim in range(grid.ndim) if dim not in dims]
    width = math.prod(layout.shape[dim] for dim in dims)
    return grid.transpose(*outer, *dims).reshape(-1, width)


def members(rows: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(row) for row in rows.tolist()}


# ---------------------------------------------------------------- what the strategies reach


KINDS: dict[str, Callable[[Layout], bool]] = {
    "ranks in any order": lambda layout: not isinstance(layout.ranks, range),
    "a range that runs down": lambda layout: layout.ranks[0] > layout.ranks[-1],
    "a sub-world": lambda layout: min(layout.ranks) > 0,
    "the whole world in order": lambda layout: (
        isinstance(layout.ranks, range) and layout.ranks == range(layout.num_ranks)
    ),
    "a size of 1 among others": lambda layout: 1 in layout.shape and layout.num_ranks > 1,
    "a name that is not standard": lambda layout: not set(layout.axes) <= set(STANDARD),
    "standard axes out of order": lambda layout: (
        [axis for axis in STANDARD if axis in layout.axes] != list(layout.axes)
        and set(layout.axes) <= set(STANDARD)
    ),
    "three axes longer than 1": lambda layout: sum(size > 1 for size in layout.shape) > 2,
}


def test_the_strategies_reach_every_kind_of_layout() -> None:
    reached = Counter[str]()

    @seed(0)
    @settings(law, max_examples=250)
    @given(layouts(with_ranks=True))
    def look(layout: Layout) -> None:
        reached.update(kind for kind, holds in KINDS.items() if holds(layout))

    look()
    assert [kind for kind in KINDS if not reached[kind]] == []


@law
@given(st.data(), st.integers(1, 300), st.integers(1, 6))
def test_the_strategies_keep_their_limits(data: st.DataObject, most: int, axes: int) -> None:
    found = data.draw(sizes(max_ranks=most, max_axes=axes))
    assert math.prod(found.values()) <= most
    assert 1 <= len(found) <= axes
    layout = data.draw(layouts(max_ranks=most, max_axes=axes))
    assert layout.num_ranks <= most
    assert layout.ranks == range(layout.num_ranks)
    assert data.draw(ranks(layout)) in layout.ranks
    assert layout.rank(**data.draw(coordinates(layout))) in layout.ranks
    plan = data.draw(
        batch_plans(
            max_dp=2, max_micro_batch=3, max_accumulation_steps=5, uneven=data.draw(st.booleans())
        )
    )
    assert (plan.dp <= 2, plan.micro_batch <= 3, plan.accumulation_steps <= 5) == (True,) * 3


# ---------------------------------------------------------------- the laws


@law
@given(layouts(with_ranks=True))
def test_law_1_rank_to_coordinate_to_rank_is_the_identity(layout: Layout) -> None:
    held = [int(rank) for rank in layout.ranks]
    for position, rank in enumerate(held):
        coordinate = layout.coordinate(rank)
        assert tuple(coordinate) == layout.axes
        assert tuple(coordinate.values()) == digits(position, layout.shape)
        assert tuple(coordinate.values()) == np.unravel_index(position, layout.shape)
        assert layout.rank(**coordinate) == rank


@law
@given(layouts(with_ranks=True))
def test_law_1_coordinate_to_rank_to_coordinate_is_the_identity(layout: Layout) -> None:
    held = list(layout.ranks)
    for indices in places(layout):
        coordinate = dict(zip(layout.axes, indices, strict=True))
        rank = layout.rank(**coordinate)
        assert rank == held[horner(indices, layout.shape)]
        assert rank == held[np.ravel_multi_index(indices, layout.shape)]
        assert layout.coordinate(rank) == coordinate


@law
@given(layouts(with_ranks=True), st.data())
def test_law_1_many_ranks_at_once_are_the_same_as_one_by_one(
    layout: Layout, data: st.DataObject
) -> None:
    asked = np.array(data.draw(st.lists(ranks(layout), max_size=8)), dtype=np.int64)
    found = layout.coordinates(asked)
    assert found.dtype == np.int64
    assert found.shape == (*asked.shape, len(layout.axes))
    one_by_one = [list(layout.coordinate(int(rank)).values()) for rank in asked]
    assert found.tolist() == one_by_one
    whole = layout.coordinates(layout.grid)
    assert whole.shape == (*layout.shape, len(layout.axes))
    by_numpy = np.moveaxis(np.indices(layout.shape), 0, -1)
    np.testing.assert_array_equal(whole, by_numpy)


@law
@given(layouts(with_ranks=True), st.data())
def test_law_2_groups_partition_the_world_into_equal_parts(
    layout: Layout, data: st.DataObject
) -> None:
    axes = data.draw(axes_of(layout))
    groups = layout.groups(*axes)
    width = math.prod(layout.sizes[axis] for axis in axes or layout.axes)
    assert groups.shape == (layout.num_ranks // width, width)
    assert layout.size(*axes) == width
    assert sorted(groups.ravel().tolist()) == sorted(int(rank) for rank in layout.ranks)
    for row in groups.tolist():
        for rank in row:
            assert layout.peers(rank, *axes).tolist() == row


@law
@given(layouts(with_ranks=True).filter(lambda layout: len(layout.axes) > 1), st.data())
def test_law_3_groups_of_two_axes_share_at_most_one_rank(
    layout: Layout, data: st.DataObject
) -> None:
    a, b = data.draw(st.permutations(layout.axes))[:2]
    rows_a, rows_b = (layout.groups(axis).tolist() for axis in (a, b))
    assert all(len(set(x) & set(y)) <= 1 for x in rows_a for y in rows_b)
    for rank in layout.ranks:
        assert sum(rank in row for row in rows_a) == 1
        assert sum(rank in row for row in rows_b) == 1
        assert set(layout.peers(rank, a)) & set(layout.peers(rank, b)) == {rank}


@law
@given(layouts(with_ranks=True), st.data())
def test_law_4_ranks_of_one_group_differ_in_the_listed_axes_only(
    layout: Layout, data: st.DataObject
) -> None:
    axes = data.draw(axes_of(layout, min_size=1))
    for row in layout.groups(*axes).tolist():
        found = [layout.coordinate(rank) for rank in row]
        fixed = {tuple(c[axis] for axis in layout.axes if axis not in axes) for c in found}
        assert len(fixed) == 1
        # ... in every combination, in the order listed, the last fastest
        listed = [tuple(c[axis] for axis in axes) for c in found]
        assert listed == list(itertools.product(*(range(layout.sizes[axis]) for axis in axes)))


@law
@given(layouts(with_ranks=True), st.data())
def test_law_5_strides_einops_and_numpy_agree_on_groups(
    layout: Layout, data: st.DataObject
) -> None:
    axes = data.draw(axes_of(layout, min_size=1))
    outer = [axis for axis in layout.axes if axis not in axes]
    grid = np.array(layout.ranks).reshape(layout.shape)
    pattern = f"{' '.join(layout.axes)} -> ({' '.join(outer)}) ({' '.join(axes)})"
    groups = layout.groups(*axes)
    assert groups.dtype == np.int64
    assert groups.tolist() == groups_by_strides(layout, axes)
    np.testing.assert_array_equal(groups, groups_by_numpy(layout, axes))
    np.testing.assert_array_equal(groups, einops.rearrange(grid, pattern))
    np.testing.assert_array_equal(groups, layout.rearrange(pattern))


@law
@given(layouts(with_ranks=True))
def test_law_5_strides_and_numpy_agree_on_the_grid(layout: Layout) -> None:
    by_numpy = np.array(layout.ranks, dtype=np.int64).reshape(layout.shape)
    assert layout.grid.dtype == np.int64
    np.testing.assert_array_equal(layout.grid, by_numpy)
    for indices in places(layout):
        assert layout.grid[indices] == layout.ranks[horner(indices, layout.shape)]
    assert layout.groups().tolist() == [list(layout.ranks)]


@law
@given(layouts(with_ranks=True), st.data(), st.integers(-9, 9))
def test_law_5_strides_and_numpy_agree_on_neighbors(
    layout: Layout, data: st.DataObject, shift: int
) -> None:
    axis = data.draw(st.sampled_from(layout.axes))
    dim, size = layout.axes.index(axis), layout.sizes[axis]
    rolled = np.roll(layout.grid, -shift, axis=dim)
    for indices in places(layout):
        rank = int(layout.grid[indices])
        there = indices[dim] + shift
        target = [*indices[:dim], there % size, *indices[dim + 1 :]]
        assert layout.neighbor(rank, axis, shift) == rolled[indices]
        assert layout.neighbor(rank, axis, shift) == layout.grid[tuple(target)]
        inside = rolled[indices] if 0 <= there < size else None
        assert layout.neighbor(rank, axis, shift, wrap=False) == inside


@law
@given(layouts(with_ranks=True, max_axes=3), axis_names(), st.data())
def test_law_6_an_axis_of_size_1_changes_no_other_group(
    layout: Layout, extra: str, data: st.DataObject
) -> None:
    assume(extra not in layout.axes)
    place = data.draw(st.integers(0, len(layout.axes)))
    items = list(layout.sizes.items())
    more = Layout(ranks=layout.ranks, **dict([*items[:place], (extra, 1), *items[place:]]))
    np.testing.assert_array_equal(more.groups(), layout.groups())
    for count in range(1, len(layout.axes) + 1):
        for axes in itertools.permutations(layout.axes, count):
            np.testing.assert_array_equal(more.groups(*axes), layout.groups(*axes))
            np.testing.assert_array_equal(more.groups(*axes, extra), layout.groups(*axes))
    for rank in layout.ranks:
        assert more.coordinate(rank) == {**layout.coordinate(rank), extra: 0}
        assert more.peers(rank, extra).tolist() == [rank]
        assert more.neighbor(rank, extra) == rank


@law
@given(layouts(with_ranks=True), st.lists(axis_names(), min_size=1, max_size=4, unique=True))
def test_law_7_view_there_and_back_is_the_identity(layout: Layout, names: list[str]) -> None:
    other = {name: math.gcd(layout.num_ranks, place + 2) for place, name in enumerate(names)}
    rest = math.prod(list(other.values())[1:])
    assume(layout.num_ranks % rest == 0)
    view = layout.view(**{**other, names[0]: -1})
    assert view.sizes == {**other, names[0]: layout.num_ranks // rest}
    assert view.axes == tuple(names)
    np.testing.assert_array_equal(view.grid.ravel(), layout.grid.ravel())
    assert view.view(**layout.sizes) == layout
    assert hash(view.view(**layout.sizes)) == hash(layout)


@law
@given(layouts(with_ranks=True), st.data())
def test_law_7_equal_member_lists_are_one_group(layout: Layout, data: st.DataObject) -> None:
    plan = GroupPlan.of(layout, data.draw(st.lists(axes_of(layout, min_size=1), max_size=4)))
    made = [frozenset(members(step.members)) for step in plan.steps]
    assert len(made) == len(set(made))
    by_key = {plan.group_key(step.axes): step for step in plan.steps}
    for axes in plan.axis_sets:
        np.testing.assert_array_equal(by_key[plan.group_key(axes)].members, layout.groups(*axes))


@law
@given(layouts(with_ranks=True), st.data())
def test_law_7_keys_are_equal_exactly_where_groups_are(layout: Layout, data: st.DataObject) -> None:
    plan = GroupPlan.of(layout)
    a, b = data.draw(axes_of(layout)), data.draw(axes_of(layout))
    same_members = members(layout.groups(*a)) == members(layout.groups(*b))
    assert (plan.group_key(a) == plan.group_key(b)) == same_members


@law
@given(layouts(with_ranks=True), st.data())
def test_law_7_strides_are_equal_exactly_where_groups_are_across_views(
    layout: Layout, data: st.DataObject
) -> None:
    """Groups of two factorizations share all their members in order, or no group at all."""
    view = layout.view(**data.draw(factorizations(layout.num_ranks)))
    mine = data.draw(axes_of(layout, min_size=1))
    theirs = data.draw(axes_of(view, min_size=1))
    rows_a, rows_b = groups_by_strides(layout, mine), groups_by_strides(view, theirs)
    assert (layout.strides(*mine) == view.strides(*theirs)) == (rows_a == rows_b)
    if rows_a != rows_b:
        assert not {tuple(row) for row in rows_a} & {tuple(row) for row in rows_b}


@law
@given(layouts(with_ranks=True), st.data())
def test_law_5_strides_and_a_product_agree_on_offsets(layout: Layout, data: st.DataObject) -> None:
    axes = data.draw(axes_of(layout, min_size=1))
    steps = layout.strides(*axes)
    assert all(size > 1 for size, _ in steps)
    assert all(a[1] != b[0] * b[1] for a, b in itertools.pairwise(steps))  # nothing left to merge
    sums = [sum(p) for p in itertools.product(*(range(0, n * s, s) for n, s in steps))]
    row = [layout.ranks[offset] for offset in sums]
    assert row == layout.groups(*axes)[0].tolist()


@law
@given(layouts(with_ranks=True), st.data())
def test_a_ring_is_every_neighbor_in_turn(layout: Layout, data: st.DataObject) -> None:
    axis = data.draw(st.sampled_from(layout.axes))
    rank = int(data.draw(st.sampled_from(list(layout.ranks))))
    turns = [layout.neighbor(rank, axis, shift) for shift in range(layout.sizes[axis])]
    assert layout.ring(rank, axis).tolist() == turns
    dim = layout.axes.index(axis)
    where = [layout.coordinate(rank)[name] for name in layout.axes]
    rolled = np.roll(layout.grid, -where[dim], axis=dim)
    where[dim] = slice(None)  # type: ignore[call-overload]
    assert layout.ring(rank, axis).tolist() == rolled[tuple(where)].tolist()


@law
@given(layouts(with_ranks=True), st.data())
def test_law_8_every_rank_computes_the_same_plan(layout: Layout, data: st.DataObject) -> None:
    extra = data.draw(st.lists(axes_of(layout, min_size=1), max_size=3))
    held = layout.ranks if isinstance(layout.ranks, range) else layout.ranks.tolist()
    mine = GroupPlan.of(layout, extra)
    theirs = GroupPlan.of(Layout(ranks=held, **layout.sizes), [" ".join(axes) for axes in extra])
    assert mine == theirs
    assert mine.axis_sets == theirs.axis_sets
    for step, their_step in zip(mine.steps, theirs.steps, strict=True):
        assert step.axes == their_step.axes
        np.testing.assert_array_equal(step.members, their_step.members)


@law
@given(st.data(), st.integers(1, 4), st.permutations(STANDARD))
def test_law_8_the_order_of_the_arguments_does_not_matter(
    data: st.DataObject, count: int, names: list[str]
) -> None:
    asked = {name: data.draw(st.integers(1, 3)) for name in names[:count] if name != "dp"}
    world = math.prod(asked.values()) * data.draw(st.integers(1, 4))
    shuffled = dict(data.draw(st.permutations(list(asked.items()))))
    one, two = factor_world(world, **asked), factor_world(world, **shuffled)
    assert one == two
    assert GroupPlan.of(one) == GroupPlan.of(two)


@law
@given(layouts(with_ranks=True, max_ranks=8), layouts(with_ranks=True, max_ranks=8), st.data())
def test_law_8_different_requests_have_different_plans(
    one: Layout, other: Layout, data: st.DataObject
) -> None:
    two = data.draw(st.sampled_from([one, other]))
    extra_one = data.draw(st.lists(axes_of(one, min_size=1), max_size=1))
    extra_two = data.draw(st.lists(axes_of(two, min_size=1), max_size=1))
    equal = one == two and extra_one == extra_two
    assert (GroupPlan.of(one, extra_one) == GroupPlan.of(two, extra_two)) == equal


def test_law_8_also_where_they_would_make_the_same_groups() -> None:
    requests = [
        GroupPlan.of(Layout(dp=4)),
        GroupPlan.of(Layout(dp=4, tp=1)),
        GroupPlan.of(Layout(dp=4, sp=1)),
        GroupPlan.of(Layout(sp=1, dp=4)),
        GroupPlan.of(Layout(dp=4, sp=1), ["dp sp"]),
        GroupPlan.of(Layout(dp=4, sp=1), ["sp dp"]),
        GroupPlan.of(Layout(dp=4, sp=1), ["dp sp", "sp dp"]),
        GroupPlan.of(Layout(sp=4)),
    ]
    assert len(set(requests)) == len(requests)


@law
@given(batch_plans())
def test_law_9_the_global_batch_is_the_exact_product(plan: BatchPlan) -> None:
    product = plan.micro_batch * plan.accumulation_steps * plan.dp
    assert plan.global_batch == product
    three = {
        "global_batch": plan.global_batch,
        "micro_batch": plan.micro_batch,
        "accumulation_steps": plan.accumulation_steps,
    }
    for left_out in [*three, None]:
        given_two = {name: value for name, value in three.items() if name != left_out}
        assert BatchPlan.solve(dp=plan.dp, **given_two) == plan


@law
@given(batch_plans(), st.integers(0, 5))
def test_law_9_each_sample_is_owned_once(plan: BatchPlan, step: int) -> None:
    owned = [plan.samples(step, d) for d in range(plan.dp)]
    assert all(found.dtype == np.int64 for found in owned)
    assert {found.shape for found in owned} == {(plan.accumulation_steps, plan.micro_batch)}
    every = sorted(np.concatenate([found.ravel() for found in owned]).tolist())
    assert every == list(range(step * plan.global_batch, (step + 1) * plan.global_batch))
    # one global order: micro step by micro step, data coordinate by data coordinate
    in_order = np.stack(owned, axis=1).ravel()
    np.testing.assert_array_equal(in_order, every)


@law
@given(batch_plans(), st.integers(0, 5))
def test_law_9_item_i_of_a_micro_step_is_where_the_formula_says(plan: BatchPlan, step: int) -> None:
    for d in range(plan.dp):
        found = plan.samples(step, d)
        for a in range(plan.accumulation_steps):
            for i in range(plan.micro_batch):
                first = step * plan.global_batch
                assert found[a, i] == first + (a * plan.dp + d) * plan.micro_batch + i


@law
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_law_9_the_global_order_is_the_same_on_every_mesh(dp: int, micro: int, steps: int) -> None:
    """One step of this mesh reads what dp * steps steps of one rank would, in the same order."""
    plan = BatchPlan.solve(dp=dp, micro_batch=micro, accumulation_steps=steps)
    alone = BatchPlan.solve(dp=1, global_batch=plan.global_batch, micro_batch=micro)
    together = np.stack([plan.samples(3, d) for d in range(dp)], axis=1).reshape(-1, micro)
    np.testing.assert_array_equal(together, alone.samples(3, 0))


@law
@given(batch_plans(uneven=True), st.integers(0, 5), st.integers(1, 9), st.integers(0, 50))
def test_law_9_holds_for_uneven_plans_and_after_a_resize(
    plan: BatchPlan, step: int, dp: int, first: int
) -> None:
    """In one order whatever dp: micro step by micro step, the coordinates that have one."""
    for each in (plan, plan.resize(dp)):
        assert sum(each.num_micro_batches(d) for d in range(each.dp)) * each.micro_batch == (
            plan.global_batch
        )
        owned = [each.samples(step, d, first=first) for d in range(each.dp)]
        rows = [
            row for a in range(each.accumulation_steps) for part in owned for row in part[a : a + 1]
        ]
        begin = first + step * plan.global_batch
        assert np.concatenate(rows).tolist() == list(range(begin, begin + plan.global_batch))


def ranks_in(text: str) -> tuple[list[int], list[int]]:
    """The integers that stand alone in a picture, and those of them in brackets."""
    found = [re.fullmatch(r"(\[?)(\d+)(\]?)", token) for token in text.split()]
    every = [int(hit[2]) for hit in found if hit]
    return every, [int(hit[2]) for hit in found if hit and hit[1] and hit[3]]


def test_law_12_the_parser_of_pictures_sees_what_it_should() -> None:
    assert ranks_in("dp=2\n  sp=0  sp=1\n dp=0 [3] 4\n ... 5") == ([3, 4, 5], [3])


@law
@given(layouts(with_ranks=True, max_ranks=200), st.integers(1, 200), st.data())
def test_law_12_a_picture_shows_each_rank_once_and_fits(
    layout: Layout, width: int, data: st.DataObject
) -> None:
    mark = data.draw(st.none() | ranks(layout))
    text = picture(layout.axes, layout.grid, mark=mark, width=width)
    shown, marked = ranks_in(text)
    assert sorted(shown) == sorted(layout.ranks)
    assert marked == ([] if mark is None else [mark])
    assert max(map(len, text.splitlines())) <= max(width, 40)
    assert not any(line != line.rstrip() or not line for line in text.splitlines())


@law
@given(layouts(with_ranks=True, max_ranks=200))
def test_law_12_ranks_stand_in_row_major_order(layout: Layout) -> None:
    shown, _ = ranks_in(picture(layout.axes, layout.grid))
    assert shown == [int(rank) for rank in layout.ranks]


@law
@given(layouts(max_ranks=64), st.data(), st.integers(1, 120))
def test_law_12_long_names_too(layout: Layout, data: st.DataObject, width: int) -> None:
    names = [axis + "x" * data.draw(st.integers(0, 100)) for axis in layout.axes]
    assume(len(set(names)) == len(names))
    text = picture(tuple(names), layout.grid, width=width)
    shown, _ = ranks_in(text)
    assert sorted(shown) == sorted(layout.ranks)
    assert max(map(len, text.splitlines())) <= max(width, 40)


@law
@given(
    st.sampled_from(
        [(5000,), (2, 3000), (3000, 2), (1, 9000, 1), (70, 70), (9, 9, 9, 9), (17,) * 3]
    ),
    st.integers(0, 4096),
    st.integers(1, 200),
)
def test_law_12_a_large_picture_shows_no_rank_twice_and_the_mark(
    shape: tuple[int, ...], mark: int, width: int
) -> None:
    axes = ("a", "b", "c", "d")[: len(shape)]
    grid = np.arange(math.prod(shape)).reshape(shape)
    text = picture(axes, grid, mark=mark, width=width)
    shown, marked = ranks_in(text)
    assert shown == sorted(set(shown))
    assert {0, mark, grid.size - 1} <= set(shown)
    assert marked == [mark]
    assert "..." in text.split()
    assert max(map(len, text.splitlines())) <= max(width, 40)
