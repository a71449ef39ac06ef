"""Which ranks hold and want the tensors of a state: tables without processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from meshkit import Layout
from meshkit.transfer.state import MovedTensor, StatePatterns, loses_a_part, plan_moves

SOURCE, TARGET = Layout(pp=2, dp=2), Layout(pp=2, tp=2, ranks=range(4, 8))
WEIGHT = [{"o": 4, "i": 2}, "float32", False]
HALF, WHOLE = [[2, 2], "float32", False], [[4, 2], "float32", False]
PATTERNS = StatePatterns.of({"*.w": "o/dp i -> o/tp i", "*": "o i -> o i"})


def plan(held: Any, wanted: Any, target: Layout = TARGET) -> list[MovedTensor]:
    return plan_moves(PATTERNS, (SOURCE, target), held, wanted, "", "mesh.transfer")


def patterns_of(held: object, wanted: object) -> list[str]:
    """Return each name that moves with its pattern."""
    moved = plan(held, wanted)
    return [f"{tensor.name}: {tensor.pattern}" for tensor in moved]


def test_the_first_glob_that_matches_a_whole_name_counts() -> None:
    assert str(PATTERNS.find("a.w")) == "o/dp i -> o/tp i"
    assert str(PATTERNS.find("a.w.x")) == "o i -> o i"


def test_all_ranks_have_equal_names() -> None:
    table = {"a.w": WEIGHT, "b": WEIGHT}
    assert patterns_of([(table, range(4))], [({"a.w": HALF, "b": WHOLE}, range(4, 8))]) == [
        "a.w: o/dp i -> o/tp i",
        "b: o i -> o i",
    ]


def test_stages_hold_and_want_names_of_their_own() -> None:
    held = [({"0.w": WEIGHT, "b": WEIGHT}, [0, 1]), ({"1.w": WEIGHT, "b": WEIGHT}, [2, 3])]
    first, last = {"0.w": HALF, "b": WHOLE}, {"1.w": HALF, "b": WHOLE}
    assert patterns_of(held, [(first, [4, 5]), (last, [6, 7])]) == [
        "0.w: o/dp i @pp:0 -> o/tp i @pp:0",
        "b: o i -> o i",
        "1.w: o/dp i @pp:1 -> o/tp i @pp:1",
    ]


def test_a_tied_weight_goes_to_each_stage_that_wants_it() -> None:
    target = Layout(pp=3, ranks=range(4, 7))
    wanted = [({"t": WHOLE, "m": WHOLE}, [5]), ({"t": WHOLE}, [4, 6])]
    held = [({"t": WEIGHT, "m": WEIGHT}, range(4))]
    moved = plan(held, wanted, target)
    assert [str(tensor.pattern.right) for tensor in moved] == ["o i", "o i @pp:1"]
    wanted = [({"t": WHOLE, "m": WHOLE}, [4, 6]), ({"t": WHOLE}, [5])]
    moved = plan(held, wanted, target)
    assert [str(tensor.pattern.right) for tensor in moved] == ["o i", "o i @pp:0", "o i @pp:2"]


INTS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("own", INTS)
def test_whole_numbers_fill_a_dtype_that_holds_all_of_them(own: str) -> None:
    ends = torch.iinfo(getattr(torch, own))
    for other in INTS:
        info = torch.iinfo(getattr(torch, other))
        holds = info.min <= ends.min and ends.max <= info.max
        assert loses_a_part(own, other) is not holds, other
    assert not any(loses_a_part(own, other) for other in ("float16", "bfloat16", "complex64"))
    assert loses_a_part(own, "bool")
    assert not loses_a_part("bool", own)
