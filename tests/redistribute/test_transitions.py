"""The table of transitions, cell by cell: the steps of the forward and of the backward."""

from __future__ import annotations

import numpy as np
import pytest

from meshkit import plan_redistribution
from meshkit.redistribute.move import Move, make_move
from meshkit.redistribute.pattern import Pattern, parse_pattern
from meshkit.redistribute.plan import Plan, plan_move
from tests.redistribute.interpreter import deal, join, run_plan

LEFT = {"/": "s/a h", "*": "s h *a", "=": "s h =a", "+": "s h +a", "@": "s h @a:1"}
RIGHT = {"/": "s h/a", "*": "s h *a", "=": "s h =a", "+": "s h +a", "@": "s h @a:0"}

# forward | backward, as in the documentation; "keep" is "keep on one", a drop is a keep on one
TABLE = {
    ("/", "/"): "all_to_all | all_to_all",
    ("/", "*"): "all_gather | reduce_scatter",
    ("/", "="): "all_gather | slice",
    ("/", "+"): "zero-fill | slice",
    ("/", "@"): "gather | scatter",
    ("*", "/"): "slice | zero-fill",
    ("*", "*"): "none | none",
    ("*", "="): "none | keep on one",
    ("*", "+"): "keep on one | keep on one",
    ("*", "@"): "keep on one | keep on one",
    ("=", "/"): "slice | all_gather",
    ("=", "*"): "none | all_reduce",
    ("=", "="): "none | none",
    ("=", "+"): "keep on one | none",
    ("=", "@"): "keep on one | broadcast",
    ("+", "/"): "reduce_scatter | all_gather",
    ("+", "*"): "all_reduce | all_reduce",
    ("+", "="): "all_reduce | none",
    ("+", "+"): "none | none",
    ("+", "@"): "reduce, keep on one | broadcast",
    ("@", "/"): "scatter | gather",
    ("@", "*"): "broadcast | reduce, keep on one",
    ("@", "="): "broadcast | keep on one",
    ("@", "+"): "keep on one | keep on one",
    ("@", "@"): "send | send",
}
MIRROR = {"+": "*", "*": "+"}


@pytest.mark.parametrize(("left", "right"), TABLE)
def test_a_transition_has_the_steps_of_the_table(left: str, right: str) -> None:
    plan = plan_redistribution("a=2", f"{LEFT[left]} -> {RIGHT[right]}", s=4, h=4)
    assert plan.backward is not None
    steps = (", ".join(s.name for s in p.named_steps) for p in (plan.forward, plan.backward))
    assert " | ".join(names or "none" for names in steps) == TABLE[left, right]


@pytest.mark.parametrize(("left", "right"), TABLE)
def test_the_backward_of_a_cell_is_the_forward_of_its_mirror(left: str, right: str) -> None:
    mirror = MIRROR.get(right, right), MIRROR.get(left, left)
    forward, backward = TABLE[left, right].split(" | ")
    assert TABLE[mirror] == f"{backward} | {forward}"
    # an error in either table is an error in the other one: the mirror of text and of symbols
    pattern = parse_pattern(f"{LEFT[left]} -> {RIGHT[right]}").mirror
    assert [kind.symbol for kind in pattern.types["a"]] == [*mirror]


def cell(left: str, right: str) -> Pattern:
    return parse_pattern(f"{LEFT[left]} -> {RIGHT[right]}")


def move_of(pattern: Pattern) -> Move:
    return make_move(pattern, {"a": 2}, {"s": 4, "h": 4})


def is_right(left: str, right: str, backward: Plan) -> bool:
    """Return whether a plan is the backward of a cell."""
    mirror, weights = move_of(cell(left, right).mirror), np.arange(1, 17).reshape(4, 4)
    try:
        result = run_plan(backward, deal(mirror, weights))
        copies = [{}, {axis: 1 for axis, _ in mirror.axes}]
        return all(np.array_equal(join(mirror, result, copy=copy), weights) for copy in copies)
    except (ValueError, IndexError):  # of other shapes
        return False


@pytest.mark.parametrize(("left", "right"), TABLE)
def test_a_backward_with_exchanged_marks_gives_a_wrong_gradient(left: str, right: str) -> None:
    pattern = cell(left, right)
    assert is_right(left, right, plan_move(move_of(pattern.mirror)))
    # the marks matter in every cell with a + or a *, but not where both sides have the same one
    matters = bool({left, right} & {"+", "*"}) and left != right
    unmarked = plan_move(move_of(Pattern(pattern.right, pattern.left)))
    assert is_right(left, right, unmarked) != matters


def test_an_axis_on_one_side_only_has_no_gradient() -> None:
    plan = plan_redistribution("a=2", "s/a h -> s h", s=4, h=4)
    assert [step.name for step in plan.forward.named_steps] == ["all_gather"]
    assert plan.backward is None
    assert "backward  none, since only one side names a" in str(plan)
