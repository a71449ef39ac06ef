"""``meshkit move``: a plan as text and as JSON, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import meshkit

Answers = Callable[[str], tuple[int, str, str]]


def test_the_text_is_that_of_the_plan(answer: Answers) -> None:
    code, text, error = answer("move 'dp=4 tp=2' 'o/dp/tp i -> o/tp i/dp' o=4096 i=4096")
    plan = meshkit.plan_redistribution("dp=4 tp=2", "o/dp/tp i -> o/tp i/dp", o=4096, i=4096)
    assert (code, text, error) == (0, f"{plan}\n", "")


def test_the_json(answer: Answers) -> None:
    code, text, _ = answer("move 'dp=4 tp=2' 'b s/tp d -> b s d *tp' b=2 s=8 d=4 --json")
    plan = meshkit.plan_redistribution("dp=4 tp=2", "b s/tp d -> b s d *tp", b=2, s=8, d=4)
    assert code == 0
    assert json.loads(text) == json.loads(json.dumps(plan.as_dict()))


def test_a_move_to_another_view(answer: Answers) -> None:
    code, text, _ = answer("move 'dp=4 tp=2' 'o/dp -> o/y =x' o=8 --to 'x=2 y=4'")
    assert code == 0
    assert "o/dp.0/dp.1 -> o/dp.1/tp =dp.0" in text


def test_an_error_quotes_the_command(answer: Answers) -> None:
    assert answer("move 'dp=4 tp=2' 'o/dq i -> o i' o=4 i=4") == (
        2,
        "",
        "meshkit move 'dp=4 tp=2' 'o/dq i -> o i' o=4 i=4: there is no axis 'dq'.\n"
        "  The axes are dp, tp.\n"
        "  Fix: did you mean dp?\n",
    )
    code, _, error = answer("move 'dp=4' 'o/dp i -> o i' o=4")
    assert code == 2
    assert "the size of i is missing." in error
