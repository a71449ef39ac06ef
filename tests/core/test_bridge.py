"""Two statements become one plan or one error, whichever side looks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit.core.bridge import Statement, plan_bridge
from meshkit.core.errors import DisagreementError, SpecError, UnknownAxisError
from meshkit.core.judges import Process

FACTS = {"meshkit": "0.1.0", "to": "sampler", "patterns": "{'w': 'o/dp i -> o/tp i'}"}
PATTERNS = [("w", "o/dp i -> o/tp i")]
PROCESS = Process("a", 17, "boot", "space", "5")


def trainer(dp: int = 2, rows: int = 8) -> Statement:
    tables = [({"w": [{"o": rows, "i": 3}, "float32"]}, [*range(dp)])]
    return Statement(FACTS, {"dp": dp}, PATTERNS, tables, PROCESS)


def sampler(tp: int = 4, rows: int = 8) -> Statement:
    tables = [({"w": [rows // tp, 3]}, [*range(tp)])]
    return Statement(FACTS, {"tp": tp}, PATTERNS, tables, PROCESS)


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


def test_a_state_may_move_back() -> None:
    facts = FACTS | {"to": "trainer"}
    tables = [({"w": [{"o": 8, "i": 3}, "float32"]}, [0, 1])]
    source = Statement(facts, {"dp": 2}, PATTERNS, tables, PROCESS)
    target = Statement(facts, {"tp": 4}, PATTERNS, sampler().tables, PROCESS)
    plan = plan_bridge(target, source)
    assert [[*layout.ranks] for layout in plan.layouts] == [[4, 5], [0, 1, 2, 3]]


@pytest.mark.parametrize("statement", [trainer(), sampler()])
def test_a_statement_survives_the_store(statement: Statement) -> None:
    copy = Statement.from_json(statement.to_json())
    assert replace(copy, patterns=[*copy.patterns]) == statement


@pytest.mark.parametrize("text", ["", "7", "[]", "[{}, [], [], []]", '[{}, [], [], [], [1, "x"]]'])
def test_a_value_of_a_stranger_is_no_statement(text: str) -> None:
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        Statement.from_json(text)


def test_every_fact_that_differs_is_named() -> None:
    other = replace(sampler(), facts=FACTS | {"meshkit": "0.2", "dtype": "torch.bfloat16"})
    with pytest.raises(DisagreementError) as error:
        plan_bridge(trainer(), other)
    assert error.value.evidence == (
        "meshkit: 0.1.0 on the trainer, 0.2 on the sampler.",
        "dtype: None on the trainer, torch.bfloat16 on the sampler.",
    )
    assert error.value.fix == "the same meshkit and dtype on both sides."


def test_a_tensor_of_another_shape_is_named() -> None:
    with pytest.raises(DisagreementError, match=r"w has o=8 i=3, so a rank gets .2, 3., and"):
        plan_bridge(trainer(), sampler(rows=12))


def test_a_name_that_one_side_lacks_is_named() -> None:
    tables = [({"w": [2, 3], "b": [3]}, [0, 1, 2, 3])]
    with pytest.raises(SpecError, match="no ranks of the source have b"):
        plan_bridge(trainer(), replace(sampler(), tables=tables))


def test_an_axis_that_the_other_mesh_lacks_is_refused() -> None:
    facts = FACTS | {"patterns": "{'w': 'o/dp i -> o/rows i'}"}
    pair = [
        replace(each, facts=facts, patterns=[("w", "o/dp i -> o/rows i")])
        for each in (trainer(), sampler())
    ]
    with pytest.raises(UnknownAxisError, match="rows"):
        plan_bridge(*pair)
