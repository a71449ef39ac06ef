"""A call as its caller wrote it."""

from __future__ import annotations

import numpy as np
import pytest

from meshkit.core.call import Call, drop_none


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Call("f"), "f()"),
        (Call("f", (8,)), "f(8)"),
        (Call("f", (8,), {"dp": 4, "order": "dp"}), "f(8, dp=4, order='dp')"),
        (Call("f", ({"dp": 4},), {"sp": 2}), "f({'dp': 4}, sp=2)"),
        (Call("f", kwargs={"ranks": range(8, 16)}), "f(ranks=range(8, 16))"),
        (Call("f", kwargs={"ranks": [*range(8)]}), "f(ranks=[0, 1, 2, 3, 4, 5, 6, 7])"),
        (Call("f", kwargs={"ranks": [*range(9)]}), "f(ranks=[0, 1, ..., 8])"),
        (Call("f", kwargs={"ranks": np.arange(2)}), "f(ranks=[0, 1])"),
        (Call("f", kwargs={"ranks": np.arange(100)}), "f(ranks=[0, 1, ..., 99])"),
        (Call("f", kwargs={"pattern": "dp sp -> (dp sp)"}), "f(pattern='dp sp -> (dp sp)')"),
    ],
)
def test_as_it_is_printed(call: Call, text: str) -> None:
    assert str(call) == text


def test_arguments_changed_added_and_left_out() -> None:
    call = Call("f", (8,), {"dp": 4, "sp": 2})
    assert str(call.but(dp=8)) == "f(8, dp=8, sp=2)"
    assert str(call.but(order="sp dp")) == "f(8, dp=4, sp=2, order='sp dp')"
    assert str(call.but(dp=None)) == "f(8, sp=2)"
    assert str(call) == "f(8, dp=4, sp=2)"


def test_sizes_in_a_mapping_are_changed_where_they_stand() -> None:
    call = Call("f", ({"dp": 4, "sp": 2},), {"tp": 1})
    assert str(call.but(dp=8)) == "f({'dp': 8, 'sp': 2}, tp=1)"
    assert str(call.but(dp=None)) == "f({'sp': 2}, tp=1)"
    assert str(call.but(tp=2, order="x")) == "f({'dp': 4, 'sp': 2}, tp=2, order='x')"
    assert call.args == ({"dp": 4, "sp": 2},)


def test_given_keeps_what_is_not_none() -> None:
    assert drop_none(a=1, b=None, c=0, d=False, e="") == {"a": 1, "c": 0, "d": False, "e": ""}
