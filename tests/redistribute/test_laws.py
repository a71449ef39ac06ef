"""The laws of redistribution, by the numpy interpreter over all ranks of a mesh."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshkit import SequencePlan, plan_redistribution
from meshkit.redistribute.digits import CommonAxes, find_common_axes
from meshkit.redistribute.move import Move, make_move
from meshkit.redistribute.pattern import parse_pattern
from meshkit.redistribute.plan import least_received, plan_move
from meshkit.redistribute.steps import AllToAll, GroupStep, Route, Step
from tests.redistribute.interpreter import (
    Array,
    Parts,
    block_sizes,
    coordinates,
    deal,
    join,
    run_plan,
)
from tests.redistribute.moves import Case, cases, side_texts, sides

law = settings(deadline=None, max_examples=60, database=None)
few = settings(deadline=None, max_examples=30, database=None)
many = settings(deadline=None, max_examples=1500, database=None)


def global_tensor(move: Move) -> Array:
    """Return a tensor of different integers, so that sums of ranks are exact."""
    return np.arange(1, math.prod(move.sizes) + 1, dtype=np.int64).reshape(move.sizes)


def check_values(move: Move) -> None:
    """Check that the plan of a move gives the parts of the right side, all copies included."""
    whole = global_tensor(move)
    result = run_plan(plan_move(move), deal(move, whole))
    last = {axis: size - 1 for axis, size in move.axes}
    for copy in ({}, last):
        np.testing.assert_array_equal(join(move, result, copy=copy), whole)
    for value, expected in zip(result, deal(move, whole, 1), strict=True):
        assert value.shape == expected.shape


@given(cases() | cases(uneven=True))
@example(Case("o/dp/tp i -> o/tp i/dp", {"dp": 4, "tp": 2}, {"o": 8, "i": 8}))  # dp has two digits
@law
def test_a_plan_gives_the_parts_of_the_right_side(case: Case) -> None:
    check_values(case.move)


@pytest.mark.nightly
@given(cases() | cases(uneven=True))
@many
def test_thousands_of_plans(case: Case) -> None:
    check_values(case.move)


# ------------------------------------------------------------------ cuts, beside numpy


@given(st.integers(0, 30), st.integers(1, 4), st.integers(1, 4))
@few
def test_each_level_of_a_cut_is_an_array_split(size: int, outer: int, inner: int) -> None:
    pattern = parse_pattern("s/dp/tp -> s/tp/dp")
    move = make_move(pattern, {"dp": outer, "tp": inner}, {"s": size})
    whole = np.arange(size)
    expected = [
        part for block in np.array_split(whole, outer) for part in np.array_split(block, inner)
    ]
    wanted = {(i, j): expected[i * inner + j] for i in range(outer) for j in range(inner)}
    for coordinate, part in zip(coordinates(move), deal(move, whole), strict=True):
        place = coordinate.get("dp", 0), coordinate.get("tp", 0)
        np.testing.assert_array_equal(part, wanted[place])


# ------------------------------------------------------------------ gradients


@given(cases(uneven=True) | cases())
@law
def test_the_transpose_of_a_plan_is_the_backward_that_the_mirror_gives(case: Case) -> None:
    move = case.move
    weights = global_tensor(move)
    mirror = parse_pattern(case.pattern).mirror
    types = tuple(mirror.types[axis][::-1] for axis, _ in move.axes)
    gradients = deal(replace(move, types=types), weights, 1)
    transposed = _transpose(move, gradients)
    np.testing.assert_array_equal(_collect(move, transposed), weights)


def _transpose(move: Move, gradients: Parts) -> list[Array]:
    """Return the gradients of all inputs, by the transposed matrix of the plan.

    The loss of ranks that do the same counts once, and that of ranks without the tensor never.
    """
    plan, inputs = plan_move(move), deal(move, np.zeros(move.sizes, np.int64))
    counted = [
        gradient * all(_counts(move.type_of[axis][1], index) for axis, index in c.items())
        for c, gradient in zip(coordinates(move), gradients, strict=True)
    ]
    zeros = [np.zeros_like(part) for part in inputs]
    result = [np.zeros_like(part) for part in inputs]
    for rank, part in enumerate(inputs):
        for index in np.ndindex(*part.shape):
            zeros[rank][index] = 1
            pairs = zip(run_plan(plan, zeros), counted, strict=True)
            result[rank][index] = sum(int((out * weight).sum()) for out, weight in pairs)
            zeros[rank][index] = 0
    return result


def _counts(kind: Any, index: int) -> bool:
    return {"=": index == 0, "@": index == kind.holder}.get(kind.symbol, True)


def _collect(move: Move, gradients: list[Array]) -> Array:
    """Return the gradient of the global tensor: copies are one variable, parts of a sum are not."""
    total = np.zeros(move.sizes, np.int64)
    free = [axis for axis, (left, _) in move.type_of.items() if left.symbol in "*="]
    ranges = [range(dict(move.axes)[axis]) for axis in free]
    for indices in itertools.product(*ranges):
        copy = dict(zip(free, indices, strict=True))
        total += _read_left(move, gradients, copy)
    return total


def _read_left(move: Move, gradients: list[Array], copy: dict[str, int]) -> Array:
    whole = np.zeros(move.sizes, np.int64)
    for coordinate, part in zip(coordinates(move), gradients, strict=True):
        kinds = {axis: move.type_of[axis][0] for axis in coordinate}
        if any(k.symbol == "@" and coordinate[a] != k.holder for a, k in kinds.items()):
            assert not part.any()  # nothing flows to a rank that does not hold the tensor
            continue
        wanted = {a: copy.get(a, 0) for a, k in kinds.items() if k.symbol in "*=+"}
        if all(coordinate[axis] == index for axis, index in wanted.items()):
            order = [dim for entry in move.left_entries for dim in entry]
            region = move.source.region(coordinate)
            local = part.reshape([region[dim].size for dim in order]).transpose(np.argsort(order))
            whole[tuple(slice(start, start + size) for start, size in region)] += local
    return whole


@given(cases())
@few
def test_the_mirror_of_the_mirror_is_the_pattern(case: Case) -> None:
    pattern = parse_pattern(case.pattern)
    assert pattern.mirror.mirror == pattern


# ------------------------------------------------------------------ cost and memory


def missing(move: Move) -> list[int]:
    """Return how many elements of its result each rank does not hold, by sets of elements."""
    whole = global_tensor(move)
    pairs = zip(deal(move, whole), deal(move, whole, 1), strict=True)
    return [len({*after.flat} - {*before.flat}) for before, after in pairs]


def counted(move: Move) -> list[int]:
    """Return the elements that operations of each rank receive from other ranks."""
    plan, totals = plan_move(move), []
    for coordinate in coordinates(move):
        total = 0
        for step in plan.steps:
            if isinstance(step, GroupStep):
                index = _group_index(step.axes, coordinate, move)
                total += _received(step.bind(coordinate), index, coordinate, move)
        totals.append(total)
    return totals


def _group_index(axes: tuple[str, ...], coordinate: dict[str, int], move: Move) -> int:
    index = 0
    for axis in axes:
        index = index * dict(move.axes)[axis] + coordinate[axis]
    return index


def _received(step: Step, own: int, coordinate: dict[str, int], move: Move) -> int:
    if isinstance(step, AllToAll):
        count = math.prod(step.shape)
        return count - block_sizes(step.receives, count, move.count_ranks(step.axes))[own]
    if isinstance(step, Route):
        regions = [r for i, r in enumerate(step.receives) if i != own and r is not None]
        return sum(math.prod(s.stop - s.start for s in region) for region in regions)
    return int(step.received(coordinate))


@given(cases(marks="*=") | cases(marks="*=", uneven=True))
@law
def test_a_rank_receives_exactly_what_it_does_not_hold(case: Case) -> None:
    move = case.move
    plan = plan_move(move)
    received = [plan.received(coordinate) for coordinate in coordinates(move)]
    assert received == missing(move) == counted(move)
    assert received == [least_received(move, coordinate) for coordinate in coordinates(move)]


@given(cases(uneven=True) | cases())
@example(  # ranks of sp reduce different rows
    Case("b/dp s +pp *sp -> b/dp/pp/sp s", {"dp": 2, "pp": 2, "sp": 2}, {"b": 8, "s": 1})
)
@law
def test_no_plan_receives_less_than_the_bound(case: Case) -> None:
    move = case.move
    plan = plan_move(move)
    received = [plan.received(coordinate) for coordinate in coordinates(move)]
    assert received == counted(move)
    bounds = [least_received(move, coordinate) for coordinate in coordinates(move)]
    assert sum(received) >= sum(bounds)


@given(cases(uneven=True) | cases())
@law
def test_no_step_holds_more_than_the_source_or_the_result(case: Case) -> None:
    move = case.move
    plan, whole = plan_move(move), global_tensor(move)
    parts, results = deal(move, whole), deal(move, whole, 1)
    for place, before, after in zip(coordinates(move), parts, results, strict=True):
        limit = max(before.size, after.size)
        for step in plan.steps:
            shape = getattr(step.bind(place), "shape", None)
            assert math.prod(shape or ()) <= max(limit, 1), step


@given(cases(uneven=True) | cases())
@law
def test_all_ranks_run_equal_steps_and_agree_on_each_block(case: Case) -> None:
    move = case.move
    ranks = [*coordinates(move)]
    for step in plan_move(move).steps:
        bound = [step.bind(coordinate) for coordinate in ranks]
        assert len({type(own) for own in bound}) == 1
        if isinstance(step, AllToAll | Route):
            for pair in itertools.product(range(len(ranks)), repeat=2):
                _check_agreement(bound, ranks, pair, move)


def _check_agreement(
    steps: list[Any], ranks: list[dict[str, int]], pair: tuple[int, int], move: Move
) -> None:
    """Check that one rank expects as much as another one sends to it."""
    sender, receiver = (steps[number] for number in pair)
    axes, size = sender.axes, move.count_ranks(sender.axes)
    places = [{a: i for a, i in ranks[number].items() if a not in axes} for number in pair]
    if places[0] != places[1]:
        return
    own = [_group_index(axes, ranks[number], move) for number in pair]
    if isinstance(sender, Route):
        regions = sender.sends[own[1]], receiver.receives[own[0]]
        sent, received = (r and tuple(s.stop - s.start for s in r) for r in regions)
    else:
        # an exchange moves all elements of the tensor, which are as many before and after
        count = math.prod(sender.shape)
        sent = block_sizes(sender.sends, count, size)[own[1]]
        received = block_sizes(receiver.receives, count, size)[own[0]]
    assert sent == received


# ------------------------------------------------------------------ equal plans


@given(cases())
@few
def test_axes_of_size_1_and_other_axes_change_nothing(case: Case) -> None:
    long = {axis: size for axis, size in case.axes.items() if size > 1}
    pattern = case.pattern
    for axis in case.axes.keys() - long.keys():
        pattern = pattern.replace(f"/{axis}", "")
        pattern = " ".join(word for word in pattern.split() if word.strip("+*=@:0") != axis)
    assert Case(pattern, {**long, "ep": 3}, case.sizes).move == case.move
    if long:  # axes that the mesh does not have at all
        assert plan_redistribution(long, case.pattern, **case.sizes).forward.move == case.move


@given(cases(), st.randoms(use_true_random=False))
@few
def test_names_of_dims_and_the_order_of_marks_change_nothing(case: Case, random: Any) -> None:
    names = {name: f"{name}x" for name in case.sizes}
    sides = []
    for side in case.pattern.split(" -> "):
        words = side.replace("(", "( ").replace(")", " )").split()
        marks = [word for word in words if word[0] in "+*=@"]
        random.shuffle(marks)
        dims = [word for word in words if word[0] not in "+*=@"]
        renamed = [
            "/".join([names.get(w.split("/")[0], w.split("/")[0]), *w.split("/")[1:]]) for w in dims
        ]
        sides.append(" ".join([*renamed, *marks]))
    other = Case(" -> ".join(sides), case.axes, {names[n]: s for n, s in case.sizes.items()})
    assert plan_move(other.move) == plan_move(case.move)


# ------------------------------------------------------------------ zigzag, and views


@pytest.mark.parametrize(
    "plan",
    [
        SequencePlan(16, 4, "zigzag"),
        SequencePlan(13, 4, "contiguous", pad=True),
        SequencePlan(13, 4, "zigzag", pad=True),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("pattern", "axes"),
    [
        ("b s =cp -> b s/cp", {"cp": 4}),
        ("b s/cp -> s b *cp", {"cp": 4}),
        ("(b s/cp/sp) h -> s (b h/cp) *sp", {"cp": 2, "sp": 2}),
        ("b s h/cp -> (b s/cp) h", {"cp": 4}),
        ("b s/cp/sp h -> b s/cp h/sp", {"cp": 2, "sp": 2}),
        ("b s +cp -> b s/cp", {"cp": 4}),
        ("b s @cp:1 -> b s/cp", {"cp": 4}),
    ],
)
def test_a_sequence_plan_orders_and_pads_the_tokens_of_a_cut_dim(
    pattern: str, axes: dict[str, int], plan: SequencePlan
) -> None:
    sizes = {"b": 2, "s": plan.length, "h": 4}
    dims = [dim.name for dim in parse_pattern(pattern).left.dims]
    named = {name: sizes[name] for name in sizes if name in dims}
    move = make_move(parse_pattern(pattern), axes, named, {"s": plan})
    if not {r.whole_first for r in move.reorderings}:  # both sides have the padding
        check_values(move)
        return
    whole = np.arange(1, math.prod(named.values()) + 1).reshape([named[dim] for dim in dims])
    result = run_plan(plan_move(move), deal(move, whole))
    np.testing.assert_array_equal(join(move, result), whole)
    for value, expected in zip(result, deal(move, whole, 1), strict=True):
        assert value.shape == expected.shape


def test_the_tokens_of_a_zigzag_part_are_those_of_its_sequence_plan() -> None:
    plan = SequencePlan(16, 4, "zigzag")
    move = make_move(parse_pattern("s =cp -> s/cp"), {"cp": 4}, {"s": 16}, {"s": plan})
    result = run_plan(plan_move(move), deal(move, np.arange(16)))
    expected = [plan.positions(part).tolist() for part in range(4)]
    assert [part.tolist() for part in result] == expected


@st.composite
def views(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, int], Case]:
    """Return two factorizations of one number of ranks with common factors, and a pattern."""
    factors = draw(st.lists(st.sampled_from([2, 3]), min_size=1, max_size=3))
    meshes = []
    for names in (AXES_BEFORE, AXES_AFTER):
        cuts = sorted(draw(st.sets(st.integers(1, len(factors) - 1)))) if factors[1:] else []
        bounds = [0, *cuts, len(factors)]
        sizes = [math.prod(factors[a:b]) for a, b in itertools.pairwise(bounds)]
        meshes.append(dict(zip(names, sizes, strict=False)))
    texts = []
    for mesh in meshes:
        cuts_of, marks = draw(sides(mesh, ("b", "s"), "*=+@"))
        texts.append(draw(side_texts(cuts_of, marks, in_order=False)))
    total = math.prod(factors)
    sizes = {dim: total * draw(st.integers(1, 2)) for dim in ("b", "s")}
    return meshes[0], meshes[1], Case(" -> ".join(texts), {}, sizes)


AXES_BEFORE, AXES_AFTER = ("dp", "sp", "tp"), ("x", "y", "z")


def _both(pattern: str) -> list[str]:
    return [f"{side} -> {side}" for side in pattern.split(" -> ")]


def _along(view: Move, move: Move, common: CommonAxes, parts: Parts) -> Parts:
    """Return the parts of the ranks of a move in the order of the ranks of one of its views."""
    known = {tuple(c.items()): part for c, part in zip(coordinates(move), parts, strict=True)}
    factors = {**common.left, **common.right}
    result = []
    for place in coordinates(view):
        full = {}
        for axis, index in place.items():
            for name in reversed(factors[axis]):
                index, digit = divmod(index, common.sizes[name])
                full[name] = digit
        result.append(known[tuple((axis, full.get(axis, 0)) for axis, _ in move.axes)])
    return result


@given(views())
@law
def test_a_plan_between_two_views_gives_the_parts_of_the_second(
    case: tuple[dict[str, int], dict[str, int], Case],
) -> None:
    before, after, named = case
    common = find_common_axes(before, after)
    assert common is not None
    move = make_move(common.rewrite(parse_pattern(named.pattern)), common.sizes, named.sizes)
    whole = global_tensor(move)
    parts = deal(move, whole)
    result = run_plan(plan_move(move), parts)
    # each side alone, over all axes of its own view
    left, right = (
        make_move(parse_pattern(f"{side} -> {side}"), mesh, named.sizes)
        for side, mesh in zip(named.pattern.split(" -> "), (before, after), strict=True)
    )
    np.testing.assert_array_equal(join(left, _along(left, move, common, parts), 0), whole)
    names = [[d.name for d in parse_pattern(side).left.dims] for side in _both(named.pattern)]
    transposed = whole.transpose([names[0].index(name) for name in names[1]])
    joined = join(right, _along(right, move, common, result), 1)
    np.testing.assert_array_equal(joined, transposed)
