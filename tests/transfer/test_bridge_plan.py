"""Two statements become one plan or one error, whichever side looks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit.errors import DisagreementError
from meshkit.launch.judges import Process
from meshkit.transfer.bridge_plan import Statement, plan_bridge

FACTS = {"meshkit": "0.1.0", "to": "sampler", "dtype": "", "chunk": "64"}
PATTERNS = {"w": "o/dp i -> o/tp i"}
PROCESS = Process("a", 17, "boot", "space", "5")


def trainer(dp: int = 2, rows: int = 8, dtype: str = "float32") -> Statement:
    tables = [({"w": [{"o": rows, "i": 3}, dtype, False]}, [*range(dp)])]
    return Statement(FACTS, PATTERNS, {"dp": dp}, tables, PROCESS)


def sampler(tp: int = 4, rows: int = 8, dtype: str = "float32") -> Statement:
    tables = [({"w": [[rows // tp, 3], dtype, False]}, [*range(tp)])]
    return Statement(FACTS, PATTERNS, {"tp": tp}, tables, PROCESS)


@given(dp=st.integers(1, 6), tp=st.integers(1, 6), factor=st.integers(1, 3))
def test_each_row_arrives_once_at_its_rank(dp: int, tp: int, factor: int) -> None:
    rows = dp * tp * factor
    plan = plan_bridge(trainer(dp, rows), sampler(tp, rows))
    source, target = plan.layouts
    assert [*source.ranks] == [*range(dp)]
    assert [*target.ranks] == [*range(dp, dp + tp)]
    assert plan.num_ranks == dp + tp
    names = [plan.describe(rank) for rank in range(plan.num_ranks)]
    assert names == [f"trainer rank {n}" for n in range(dp)] + [
        f"sampler rank {n}" for n in range(tp)
    ]
    (tensor,) = plan.moved
    assert tensor.sizes == {"o": rows, "i": 3}


@pytest.mark.parametrize("statement", [trainer(), sampler()])
def test_a_statement_survives_the_store(statement: Statement) -> None:
    assert Statement.from_json(statement.to_json()) == statement


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "[]",
        "[{}, [], [], [], []]",
        '[{"meshkit": "0.1.0"}, [], [], [], [1, "x"]]',
        '[{"meshkit": "0.1.0"}, [], [], [[{"w": 7}, [0]]], ["a", 1]]',
        '[{"meshkit": "0.1.0"}, [], [], [[{"w": [["x"], "float32", false]}, [0]]], ["a", 1]]',
    ],
)
def test_a_value_of_a_stranger_is_no_statement(text: str) -> None:
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        Statement.from_json(text)


def test_another_version_is_named_whatever_else_it_states() -> None:
    other = Statement.from_json('[{"meshkit": "9.9", "new": "yes"}, {"more": 1}, ["b", 5]]')
    with pytest.raises(DisagreementError) as error:
        plan_bridge(trainer(), other)
    assert error.value.evidence[0] == "meshkit: 0.1.0 on the trainer, 9.9 on the sampler."


def test_an_uneven_part_of_a_later_rank_is_checked_too() -> None:
    """Both ranks have 5 rows of 9, and the second one gets 4."""
    tables = [({"w": [[5, 3], "float32", False]}, [0, 1])]
    with pytest.raises(DisagreementError) as error:
        plan_bridge(trainer(rows=9), replace(sampler(2), tables=tables))
    (line,) = error.value.evidence
    place = "w: o=9 i=3 on the trainer, so by 'o/dp i -> o/tp i' a rank of the sampler "
    assert line == f"{place}gets [4, 3], and has [5, 3]."


def test_all_names_that_one_side_lacks_are_named() -> None:
    fact = [[2, 3], "float32", False]
    tables = [({"w": fact, **{f"b{n}": fact for n in range(6)}}, [0, 1, 2, 3])]
    with pytest.raises(DisagreementError) as error:
        plan_bridge(trainer(), replace(sampler(), tables=tables))
    lines = [f"b{n}: on the sampler alone." for n in range(5)]
    assert error.value.evidence == (*lines, "And 1 more difference.")
    assert error.value.fix == "the same names on both sides."


@pytest.mark.parametrize(
    ("own", "asked", "other", "is_right"),
    [
        ("float32", "", "float32", True),
        ("float32", "", "bfloat16", False),
        ("bfloat16", "", "float32", False),
        ("float32", "bfloat16", "bfloat16", True),
        ("float32", "bfloat16", "float32", True),  # it travels in fewer bytes
        ("float32", "bfloat16", "float16", False),
        ("int64", "bfloat16", "int64", True),
        ("int64", "bfloat16", "bfloat16", False),
        ("int64", "", "int32", False),
    ],
)
def test_dtypes_differ_only_if_a_conversion_is_asked_for(
    own: str, asked: str, other: str, is_right: bool
) -> None:
    facts = FACTS | {"dtype": asked}
    pair = replace(trainer(dtype=own), facts=facts), replace(sampler(dtype=other), facts=facts)
    if is_right:
        assert plan_bridge(*pair).moved[0].dtype == own
        return
    with pytest.raises(DisagreementError) as error:
        plan_bridge(*pair)
    assert error.value.evidence == (f"w: {own} on the trainer, {other} on the sampler.",)
    fix = f"dtype=torch.{other}, which converts on the way, or " if own != "int64" else ""
    assert error.value.fix == f"{fix}the same dtypes on both sides."
