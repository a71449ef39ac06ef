"""Tensors of ranks put together, compared with those of one rank, and the axis to blame."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshkit
from meshkit import Layout
from meshkit.compare.causes import Array
from meshkit.compare.parity import (
    Held,
    NumbersError,
    Rules,
    find_differences,
    gather_copies,
    lacking_ranks,
)
from meshkit.testing import layouts
from tests.laws.derivations import law
from tests.redistribute.moves import Bracketed, bracketed

NONE = Rules({}, {})
RNG = np.random.default_rng(0)
WHOLE = RNG.normal(size=(4, 6))


def held(text: str, part: Callable[[dict[str, int]], Array | None], name: str = "x") -> Held:
    """Return a tensor on a mesh by a function of the coordinate; one rank holds ``WHOLE``."""
    sizes = {axis: int(size) for axis, size in (word.split("=") for word in text.split())}
    layout = Layout(sizes)
    parts = {rank: part(layout.coordinate(rank)) for rank in range(layout.num_ranks)}
    return Held(text, layout, {name: parts}, {name: WHOLE})


def differences(*runs: Held, rules: Rules = NONE) -> list[tuple[str, tuple[str, ...], str]]:
    return [(d.mesh, d.axes, d.cause) for d in find_differences(runs, rules).differences]


@law
@given(layouts(max_ranks=24), st.data())
def test_cuts_and_sums_are_undone(layout: Layout, data: st.DataObject) -> None:
    roles = {axis: data.draw(st.sampled_from("ab+*")) for axis in layout.axes}
    cuts = {dim: [axis for axis, role in roles.items() if role == dim] for dim in "ab"}
    marks = [f"{role}{axis}" for axis, role in roles.items() if role in "+*"]
    side = " ".join(["/".join([dim, *axes]) for dim, axes in cuts.items()] + marks)
    shape = [2 * layout.size(*cuts[dim]) if cuts[dim] else 2 for dim in "ab"]
    summed = [axis for axis, role in roles.items() if role == "+"]
    whole = np.random.default_rng(1).normal(size=shape)
    share = 1 / (layout.size(*summed) if summed else 1)

    def part(rank: int) -> Array:
        block = whole * share
        for dim, axes in enumerate(cuts.values()):
            for axis in axes:  # the outermost first
                size, index = layout.size(axis), layout.coordinate(rank)[axis]
                block = np.split(block, size, dim)[index]
        return block

    parts = {rank: part(rank) for rank in range(layout.num_ranks)}
    copies = gather_copies("x", parts, whole, layout, Rules({"*": side}, {}))
    assert copies.worst(whole, 0) < 1e-12
    kept = [axis for axis, role in roles.items() if role == "*" and layout.size(axis) > 1]
    assert list(copies.axes) == kept


@law
@given(bracketed())
def test_cuts_inside_brackets_are_undone(tensor: Bracketed) -> None:
    """Also if some ranks have no element."""
    rules = Rules({"x": tensor.side}, {}, tensor.given)
    copies = gather_copies("x", tensor.parts, tensor.whole, tensor.layout, rules)
    assert copies.worst(tensor.whole, 0) == 0


def test_brackets_ellipsis_holders_and_uneven_parts() -> None:
    layout = Layout(dp=2, tp=2)
    halves = np.array_split(WHOLE, 2, 1)
    parts = {rank: halves[layout.coordinate(rank)["tp"]] for rank in range(4)}
    for side in ("a (h/tp d)", "... o/tp", "a o/tp =dp", "a o/tp/ep"):
        assert gather_copies("x", parts, WHOLE, layout, Rules({"x": side}, {})).axes == ("dp",)
    only = {rank: WHOLE if rank < 2 else np.zeros(1) for rank in range(4)}
    copies = gather_copies("x", only, WHOLE, layout, Rules({"x": "a b @dp:0"}, {}))
    assert (copies.axes, copies.worst(WHOLE, 0)) == (("tp",), 0)
    uneven = {0: WHOLE[:3], 1: WHOLE[3:]}
    assert gather_copies("x", uneven, WHOLE, Layout(tp=2), Rules({"x": "a/tp b"}, {})).axes == ()


def test_the_mean_over_data_axes() -> None:
    run = held("dp=4 tp=2", lambda at: np.asarray([1.0, 2, 3, 6][at["dp"]]), "loss")
    run = Held(run.mesh, run.layout, run.tensors, {"loss": np.asarray(3.0)})
    assert differences(run, rules=Rules({}, {"l*": "avg"})) == []
    run = Held(run.mesh, run.layout, run.tensors, {"loss": np.asarray(12.0)})
    assert differences(run, rules=Rules({}, {"l*": "sum"})) == []
    assert differences(run)[0][2] == "missing sum"


def test_none_stands_for_zeros_and_stages_hold_their_own() -> None:
    zeros = Held("tp=2", Layout(tp=2), {"x": {0: None, 1: np.zeros(3)}}, {"x": None})
    assert differences(zeros) == []
    part = held("tp=2", lambda at: WHOLE if at["tp"] else None)
    assert differences(part) == [("tp=2", ("tp",), "missing sum")]
    layout = Layout(pp=2, tp=2)
    assert lacking_ranks(layout, [0, 1]) == lacking_ranks(layout, [0, 1, 2, 3]) == []
    assert lacking_ranks(layout, [0, 2, 3]) == [1]
    stage = Held("pp=2 tp=2", layout, {"x": {2: WHOLE, 3: WHOLE}}, {"x": WHOLE})
    assert differences(stage) == []
    lacking = Held("dp=2", Layout(dp=2), {"x": {1: WHOLE}, "y": {0: WHOLE, 1: WHOLE}}, {"x": WHOLE})
    report = find_differences([lacking], NONE)
    assert [d.name for d in report.differences] == ["x", "y"]
    assert "Rank 0 did not return it." in report.differences[0].text
    assert "One rank did not return it." in report.differences[1].text


def twice(*axes: str) -> Callable[[dict[str, int]], Array]:
    """Return a part that is as many times too large as the axes are long, here 2 each."""
    return lambda at: WHOLE * 2 ** len([axis for axis in axes if axis in at])


def test_meshes_rule_axes_out() -> None:
    wrong = held("dp=2 tp=2", twice("tp"))
    assert differences(wrong) == [("dp=2 tp=2", ("dp", "tp"), "scaled")]
    assert "the size of dp or tp" in find_differences([wrong], NONE).differences[0].text
    right = held("dp=2", lambda at: WHOLE)
    assert differences(right, wrong) == [("dp=2 tp=2", ("tp",), "scaled")]
    alone = held("tp=2", twice("tp"))
    assert differences(wrong, alone) == [
        ("dp=2 tp=2", ("tp",), "scaled"),
        ("tp=2", ("tp",), "scaled"),
    ]


def test_axes_that_only_act_together_are_all_named() -> None:
    right = [held(text, lambda at: WHOLE) for text in ("dp=2", "tp=2")]
    both = held("dp=2 tp=2", lambda at: WHOLE * 4)
    assert differences(*right, both) == [("dp=2 tp=2", ("dp", "tp"), "scaled")]


def test_an_unknown_cause_names_the_axis_that_is_left() -> None:
    noise = RNG.normal(size=(4, 6))
    runs = [held(text, lambda at: noise if "tp" in at else WHOLE) for text in ("dp=2", "dp=2 tp=2")]
    assert differences(*runs) == [("dp=2 tp=2", ("tp",), "unknown")]
    text = find_differences(runs, NONE).differences[0].text
    assert "The largest difference is at [" in text
    assert "tp may be to blame" in text


def test_rounding_is_no_difference_and_is_reported() -> None:
    values = {0: np.array([1e-17]), 1: np.array([3e-17])}
    run = Held("tp=2", Layout(tp=2), {"b": values, "w": {0: WHOLE, 1: WHOLE * (1 + 1e-15)}},
               {"b": np.array([2e-17]), "w": WHOLE})  # fmt: skip
    report = find_differences([run], NONE)
    assert report.differences == ()
    assert str(report).startswith("2 tensors on 1 mesh: all are those of one rank (to ")
    report.raise_if_different()


def test_the_report_has_the_first_in_full_and_a_line_for_each_other() -> None:
    parts = RNG.normal(size=(2, 4, 6))
    runs = [
        held(text, lambda at: parts[at["tp"]], "grad w")
        for text in ("tp=2", "dp=2 tp=2")
    ]  # fmt: skip
    runs = [Held(r.mesh, r.layout, r.tensors, {"grad w": parts.sum(0)}) for r in runs]
    report = find_differences(runs, NONE)
    first, also, last = str(report).rsplit("\n", 2)
    assert first == report.differences[0].text
    assert (also, last) == ("Also:", "  dp=2 tp=2: grad w: missing sum over tp")
    assert 'Fix: "... =tp -> ... *tp" where the weight is used.' in first
    with pytest.raises(NumbersError) as caught:
        report.raise_if_different()
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, meshkit.DisagreementError)
    assert "dp=2 tp=2: grad w" in str(caught.value)


def test_the_report_begins_with_a_known_cause() -> None:
    parts, noise = RNG.normal(size=(2, 4, 6)), RNG.normal(size=(4, 6))
    tensors = {"grad 0": {0: noise, 1: noise}, "grad 1": {0: parts[0], 1: parts[1]}}
    one = {"grad 0": WHOLE, "grad 1": parts.sum(0)}
    report = find_differences([Held("tp=2", Layout(tp=2), tensors, one)], NONE)
    assert [row.name for row in report.differences] == ["grad 0", "grad 1"]
    text = str(report)
    assert text.startswith("grad 1 on tp=2 is not")
    assert text.endswith("Also:\n  tp=2: grad 0: unknown over tp")


@pytest.mark.parametrize(
    ("name", "mesh", "has_weight"),
    [("grad w", "dp=2", True), ("grad w", "tp=2", False), ("loss", "dp=2", False)],
)
def test_the_fix_of_a_gradient_scaled_over_data_axes_names_the_weight(
    name: str, mesh: str, has_weight: bool
) -> None:
    layout = Layout(**{mesh[:2]: 2})
    held = Held(mesh, layout, {name: {0: WHOLE / 2, 1: WHOLE / 2}}, {name: WHOLE})
    text = str(find_differences([held], NONE))
    assert ("; in an accumulation, (loss * micro.weight).backward()." in text) == has_weight


def test_every_cause_has_a_text(snapshot: object) -> None:
    parts = np.random.default_rng(1).normal(size=(2, 4, 6))
    mixed = np.concatenate([WHOLE[:, 3:], WHOLE[:, :3]], 1)
    cells: dict[str, Callable[[dict[str, int]], Array]] = {
        "grad scaled up": lambda at: 2 * WHOLE,
        "grad scaled down": lambda at: WHOLE / 2,
        "grad sum": lambda at: [WHOLE - parts[0], parts[0]][at["tp"]],
        "sum": lambda at: [WHOLE - parts[0], parts[0]][at["tp"]],
        "mean": lambda at: [2 * WHOLE - parts[0], parts[0]][at["tp"]],
        "own part": lambda at: np.split(WHOLE, 2, 1)[at["tp"]],
        "order": lambda at: mixed,
        "padding": lambda at: WHOLE[:3],
        "one place": lambda at: WHOLE if at["tp"] else parts[0],
        "norm": lambda at: 2**0.5 * WHOLE,
    }
    runs = [held("tp=2", cell, name) for name, cell in cells.items()]
    rows = itertools.chain(*(find_differences([run], NONE).differences for run in runs))
    assert "\n".join(row.text for row in rows) == snapshot
