"""Sequence plans: laws, a second derivation by chunks, balance, padding and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import SequencePlan, SpecError
from meshkit.layout.sequence import ORDERS

quick = settings(deadline=None, max_examples=60, database=None)


@st.composite
def plans(draw: st.DrawFn) -> SequencePlan:
    """Draw plans of all lengths, also shorter than the number of parts."""
    parts, order = draw(st.integers(1, 9)), draw(st.sampled_from(ORDERS))
    return SequencePlan(draw(st.integers(1, 80)), parts, order, pad=True)


def pairs(plan: SequencePlan, part: int) -> int:
    """Count the pairs of a query of the part and a key that is not later."""
    return sum(key <= query for query in plan.positions(part) for key in range(plan.padded))


# ---------------------------------------------------------------- laws


@quick
@given(plans())
def test_parts_hold_every_position_once_and_equally_many(plan: SequencePlan) -> None:
    positions = [plan.positions(part) for part in range(plan.parts)]
    assert {len(row) for row in positions} == {plan.tokens}
    assert {row.dtype for row in positions} == {np.dtype(np.int64)}
    assert sorted(np.concatenate(positions).tolist()) == list(range(plan.padded))
    assert all((np.diff(row) > 0).all() for row in positions)
    assert plan.inverse().dtype == np.int64
    assert plan.inverse().tolist() == np.argsort(np.concatenate(positions)).tolist()


@quick
@given(plans())
def test_positions_equal_those_from_einops(plan: SequencePlan) -> None:
    positions = [plan.positions(part).tolist() for part in range(plan.parts)]
    if plan.order == "zigzag" and plan.parts > 1:
        chunks = rearrange(np.arange(plan.padded), "(half p c) -> half p c", half=2, p=plan.parts)
        assert positions == np.concatenate([chunks[0], chunks[1, ::-1]], axis=-1).tolist()
    else:
        assert positions == rearrange(np.arange(plan.padded), "(p c) -> p c", p=plan.parts).tolist()


@quick
@given(plans())
def test_every_token_is_owned_once_and_padding_comes_last(plan: SequencePlan) -> None:
    owned: list[int] = []
    for part in range(plan.parts):
        is_token = plan.is_token(part)
        count = plan.num_tokens(part)
        assert is_token.dtype == np.bool_
        assert is_token.tolist() == [True] * count + [False] * (plan.tokens - count)
        owned += plan.positions(part)[is_token].tolist()
    assert sorted(owned) == list(range(plan.length))
    unit = plan.parts * (2 if plan.order == "zigzag" and plan.parts > 1 else 1)
    assert plan.length <= plan.padded < plan.length + unit
    assert plan.padded % unit == 0


@quick
@given(plans())
def test_ranges_are_the_runs_of_the_positions(plan: SequencePlan) -> None:
    for part in range(plan.parts):
        ranges = plan.ranges(part)
        assert [place for run in ranges for place in run] == plan.positions(part).tolist()
        assert len(ranges) == 1 + (np.diff(plan.positions(part)) > 1).sum()


@quick
@given(st.integers(1, 6), st.integers(1, 4))
def test_zigzag_parts_have_equal_numbers_of_pairs(parts: int, chunk: int) -> None:
    length = 2 * parts * chunk
    plan = SequencePlan(length, parts, "zigzag")
    counted = {pairs(plan, part) for part in range(parts)}
    assert counted == {length * (length + 1) // 2 // parts}
    runs = SequencePlan(length, parts)
    uneven = [pairs(runs, part) for part in range(parts)]
    assert uneven == sorted(set(uneven))  # each part more than the one before
    assert sum(uneven) == length * (length + 1) // 2


@quick
@given(st.integers(1, 80), st.integers(1, 9), st.sampled_from(ORDERS))
def test_the_nearest_lengths_divide_and_none_is_nearer(length: int, parts: int, order: Any) -> None:
    def is_valid(candidate: int) -> bool:
        plan = SequencePlan(candidate, parts, order, pad=True)
        return plan.padded == candidate

    if is_valid(length):
        assert SequencePlan(length, parts, order).padded == length
        return
    with pytest.raises(SpecError) as caught:
        SequencePlan(length, parts, order)
    shorter = [n for n in range(1, length) if is_valid(n)]
    assert caught.value.below == max(shorter, default=None)
    assert caught.value.above == min(n for n in range(length, 200) if is_valid(n))


# ---------------------------------------------------------------- examples
