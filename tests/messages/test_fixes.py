"""A fix can be typed, and works: the calls, values and patterns that errors propose."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from meshkit import BatchPlan, Layout, SequencePlan, factor_world
from tests.messages.snapshot import error_of

LAYOUT = Layout(dp=4, sp=2, tp=1)
NAMES = {
    "Layout": Layout,
    "factor_world": factor_world,
    "BatchPlan": BatchPlan,
    "SequencePlan": SequencePlan,
    "layout": LAYOUT,
}
CALL = re.compile(
    r"\b(?:factor_world|BatchPlan\.solve|BatchPlan|SequencePlan|Layout|layout\.\w+)\("
)


def calls_in_fix(text: str) -> list[str]:
    """Return the calls that a fix proposes: each ``name(...)`` with its brackets closed."""
    fix = text.rpartition("Fix: ")[2]
    calls = []
    for match in CALL.finditer(fix):
        depth = 0
        for end in range(match.end() - 1, len(fix)):
            depth += {"(": 1, ")": -1}.get(fix[end], 0)
            if depth == 0:
                calls.append(fix[match.start() : end + 1])
                break
    return calls


def test_the_calls_in_a_fix_are_found() -> None:
    text = (
        "f\n  Fix: start 8 ranks, or factor_world(6, order=('dp',)), which; or layout.rank(dp=1)."
    )
    assert calls_in_fix(text) == ["factor_world(6, order=('dp',))", "layout.rank(dp=1)"]


@pytest.mark.parametrize(
    "case",
    [
        lambda: Layout(),
        lambda: Layout(dp=0, sp=2),
        lambda: factor_world(8, tp="4"),
        lambda: factor_world(8, tp=-1),
        lambda: factor_world(8, tp=-1, sp=-1),
        lambda: factor_world(8, tp=-1, sp=-1, order="sp tp"),
        lambda: factor_world(8, shard=2, tp=2),
        lambda: factor_world(8, dp=2, within={"tp": 4}),
        lambda: factor_world(8, sp=2, tp=2, order="dp cp tp tp"),
        lambda: factor_world(8, order="sp"),
        lambda: factor_world(8, order=""),
        lambda: factor_world(6, dp=4, sp=2, tp=1),
        lambda: factor_world(6, dp=4, sp=2, order="sp dp"),
        lambda: LAYOUT.view(dp=3, sp=2),
        lambda: LAYOUT.view(),
        lambda: LAYOUT.rank(dp=1),
        lambda: LAYOUT.rank(dp=9, sp=0, tp=0),
        lambda: LAYOUT.rank(dp=np.int64(9), sp=0, tp=0),
        lambda: Layout(dp=-1),
        lambda: Layout(tp=2, dp=-1),
        lambda: Layout(tp=-1, dp=2),
        lambda: Layout(replicate=-1, shard=2),
        lambda: BatchPlan.solve(dp=4, micro_batch=2),
        lambda: BatchPlan.solve(dp=4),
        lambda: BatchPlan.solve(dp=4, global_batch=10),
        lambda: SequencePlan(10, 4),
        lambda: SequencePlan(10, 4, "zigzag"),
    ],
)
def test_a_call_that_a_fix_proposes_works(case: Callable[[], object]) -> None:
    for call in calls_in_fix(str(error_of(case))):
        eval(call, NAMES)


@pytest.mark.parametrize(
    "sizes",
    [
        {"dp": 4, "global_batch": 100, "micro_batch": 3},
        {"dp": 4, "global_batch": 2, "micro_batch": 1},
        {"dp": 4, "global_batch": 100, "accumulation_steps": 3},
        {"dp": 4, "global_batch": 24, "accumulation_steps": 4, "micro_batch": 2},
    ],
)
def test_each_value_that_a_batch_error_proposes_works(sizes: dict[str, int]) -> None:
    fix = error_of(lambda: BatchPlan.solve(**sizes)).fix_text
    changes = [{"global_batch": int(n)} for n in re.findall(r"global_batch=(\d+)", fix)]
    micro = re.search(r"micro_batch one of ([\d, ]+)", fix)
    changes += [{"micro_batch": int(n)} for n in micro[1].split(", ")] if micro else []
    assert changes
    for change in changes:
        BatchPlan.solve(**{**sizes, **change})


def test_a_rank_that_is_proposed_is_not_the_refused_one() -> None:
    error = error_of(lambda: Layout(dp=4, ranks=range(0, 8, 2)).coordinate(3))
    assert error.fix_text != "a rank from 0 to 6."  # 3 is from 0 to 6


def test_a_pattern_that_is_proposed_is_not_the_refused_one() -> None:
    error = error_of(lambda: LAYOUT.rearrange("dp sp tp -> dp sp"))
    assert 'begins "dp sp tp -> "' not in error.fix_text  # the refused one does


def test_an_error_of_einops_is_the_evidence() -> None:
    error = error_of(lambda: LAYOUT.rearrange("dp sp -> sp dp"))
    assert error.evidence == (str(error.__cause__).strip().splitlines()[-1].strip(),)


def test_the_call_is_the_one_of_the_caller() -> None:
    assert str(error_of(lambda: factor_world(2**64))).startswith("factor_world(")


def test_an_index_of_another_type_names_its_axis() -> None:
    error = error_of(lambda: LAYOUT.rank(dp="1", sp=0, tp=0))
    assert error.headline.endswith("dp is '1', a str.")
    assert (error.axis, error.index) == ("dp", "1")


@pytest.mark.parametrize(
    "case",
    [
        lambda: Layout(dp=1).coordinate(5),
        lambda: Layout(dp=4, ranks=[0]),
        lambda: Layout(dp=1, ranks=[0, 1]),
        lambda: factor_world(6, tp=1, order="tp"),
    ],
)
def test_the_number_one_stands_before_a_singular(case: Callable[[], object]) -> None:
    assert not re.search(r"\b1 (ranks|positions)\b", str(error_of(case)))
