"""Reports of plans: text, JSON types, groups, and the speed of a plan."""

from __future__ import annotations

import json

import pytest

from meshkit import Layout, SequencePlan, plan_redistribution


def test_a_report_of_a_group_that_is_not_built() -> None:
    pattern = "b s +tp +dp -> b s =tp =dp"
    plan = plan_redistribution("dp=2 sp=2 tp=2", pattern, b=2, s=4)
    assert plan.missing_groups == ("dp tp",)
    assert 'groups    build_mesh(groups=["dp tp"]) creates the missing ones' in str(plan)


@pytest.mark.parametrize("text", ["dp=4,tp=2", "dp=4, tp=2", " dp=4 ,tp=2,"])
def test_commas_separate_axes_as_blanks_do(text: str) -> None:
    pattern = "a/dp b -> a/tp b"
    plain = plan_redistribution("dp=4 tp=2", pattern, a=8, b=4)
    assert plan_redistribution(text, pattern, a=8, b=4) == plain
    both = plan_redistribution("dp=4 tp=2", "a/dp b -> a/x b", to="x=2 y=2", a=8, b=4)
    assert str(plan_redistribution(text, "a/dp b -> a/x b", to="x=2,y=2", a=8, b=4)) == str(both)


def test_the_json() -> None:
    plan = plan_redistribution({"dp": 2, "tp": 2}, "b s d +tp -> b s/tp d", b=2, s=4, d=8)
    assert json.loads(json.dumps(plan.as_dict())) == {
        "axes": {"dp": 2, "tp": 2},
        "pattern": "b s d +tp -> b s/tp d",
        "sizes": {"b": 2, "s": 4, "d": 8},
        "dtype": "float32",
        "shapes": [[2, 4, 8], [2, 2, 8]],
        "forward": {
            "steps": [{"step": "reduce_scatter", "axes": ["tp"], "bytes": 128}],
            "bytes": 128,
            "bound": 128,
        },
        "backward": {
            "steps": [{"step": "all_gather", "axes": ["tp"], "bytes": 128}],
            "bytes": 128,
            "bound": 128,
        },
        "groups": ["tp"],
        "missing_groups": [],
        "better_order": None,
    }


@pytest.mark.parametrize(
    ("pattern", "better", "steps"),
    [
        ("a/dp/tp b -> a/tp b *dp", "a/tp/dp b -> a/tp b *dp", (2, 1)),
        ("a/tp b +dp -> a/dp/tp b", "a/tp b +dp -> a/tp/dp b", (2, 1)),
        ("a/tp/dp b -> a/tp b *dp", None, (1, 1)),
    ],
)
def test_an_order_of_axes_with_fewer_steps_is_named(
    pattern: str, better: str | None, steps: tuple[int, int]
) -> None:
    plan = plan_redistribution("dp=2 tp=2", pattern, a=8, b=4)
    assert len(plan.forward.named_steps) == steps[0]
    if better is None:
        assert plan.better_order is None
        return
    assert len(plan_redistribution("dp=2 tp=2", better, a=8, b=4).forward.named_steps) == steps[1]
    side = "left" if better.startswith("a/tp/dp") else "right"
    assert plan.better_order == f"a/tp/dp on the {side}: 1 of 2 steps"
    assert f"better    {plan.better_order}\n" in str(plan)


def test_a_speed_of_links_adds_the_time_of_the_bytes() -> None:
    plan = plan_redistribution("tp=2", "a +tp -> a/tp", a=50_000_000)
    rows = [line.split() for line in plan.draw(speed=50).splitlines()]
    assert ["in", "all", "100.0", "100.0", "2"] in rows  # 100 MB at 50 GB/s


def test_a_plan_between_two_views_names_the_factors_of_their_axes() -> None:
    view = Layout(x=2, y=4)
    plan = plan_redistribution("dp=4 tp=2", "o/dp i -> o =x i/y", to=view, o=64, i=64)
    assert str(plan.pattern) == "o/dp.0/dp.1 i -> o =dp.0 i/dp.1/tp"
    assert plan.groups == ("dp.0 dp.1",)


def test_the_backward_of_a_plan_to_other_ranks_sums_first() -> None:
    pattern = "o/dp/tp i -> o/tp i *dp"
    plan = plan_redistribution("dp=4 tp=2", pattern, to="dp=8 tp=4", dtype="bf16", o=4096, i=4096)
    steps = {
        "forward": [("send", [], 2**20), ("all_gather", ["dp"], 7 * 2**20)],
        "backward": [("all_reduce", ["dp"], 14 * 2**20), ("send", [], 2**22)],
    }
    for name, expected in steps.items():
        planned = plan.as_dict()[name]
        assert [(s["step"], s["axes"], s["bytes"]) for s in planned["steps"]] == expected
        assert planned["bytes"] == planned["bound"] == sum(bytes for *_, bytes in expected)
    assert plan.groups == ("dp",)
    assert plan.missing_groups == ()


def test_a_sequence_plan_reorders_tokens() -> None:
    tokens = SequencePlan(16, 4, "zigzag")
    plan = plan_redistribution("cp=4", "b s =cp -> b s/cp", b=2, s=tokens)
    assert [step.name for step in plan.forward.named_steps] == ["reorder", "slice"]


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("b s +dp -> b s/dp", 12 * 3 // 4),  # n (p - 1) / p
        ("b s/dp -> b s *dp", 12 * 3 // 4),
        ("b s +dp -> b s =dp", 2 * 12 * 3 // 4),
        ("b s @dp:0 -> b s *dp", 12),
        ("b s =dp -> b s/dp", 0),
    ],
)
def test_the_elements_of_collectives_are_those_of_ring_algorithms(text: str, elements: int) -> None:
    plan = plan_redistribution("dp=4", text, b=3, s=4)
    assert plan.received == plan.bound == elements


def test_an_all_reduce_of_parts_that_differ_counts_the_rank_that_receives_most() -> None:
    """Parts of 2, 1 and 1 elements: in each half of the ring, two ranks receive 3 of the 4."""
    parts = [2, 1, 1]
    most = 2 * max(sum(parts) - part for part in parts)
    plan = plan_redistribution("tp=3", "b +tp -> b =tp", b=sum(parts)).as_dict()["forward"]
    assert [step["step"] for step in plan["steps"]] == ["all_reduce"]
    assert plan["bytes"] == 4 * most == 24
