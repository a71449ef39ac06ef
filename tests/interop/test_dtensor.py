"""Sides of patterns as the placements of DTensors: equal parts, values and gradients."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

import meshkit
from meshkit import SpecError, UnknownAxisError
from meshkit.interop.dtensor import grad_placements, placements, side

AXES = ("dp", "tp")
PLACES: list[Placement] = [Shard(0), Shard(1), Replicate(), Partial()]
MOVES = [  # that DTensor has, with its gradient
    "b/dp s d -> b s d *dp",
    "b/dp s/tp d -> b s/tp d *dp",
    "b/dp s/tp d -> b/dp s d =tp",
    "b s/dp/tp d -> b s/dp d *tp",
    "b s d +dp -> b s/dp d",
    "b/dp s d +tp -> b/dp s d =tp",
    "b s d =dp -> b/dp s d",
    "b s/tp d -> b/tp s d",
]


@pytest.mark.parametrize(
    ("text", "places", "gradients"),
    [
        ("b s", (Replicate(), Replicate()), (Replicate(), Replicate())),
        ("b/dp s", (Shard(0), Replicate()), (Shard(0), Replicate())),
        ("b s/dp/tp", (Shard(1), Shard(1)), (Shard(1), Shard(1))),
        ("b s +dp *tp", (Partial(), Replicate()), (Replicate(), Partial())),
        ("b s =dp =tp", (Replicate(), Replicate()), (Replicate(), Replicate())),
        ("1 b (h/tp d)", (Replicate(), Shard(2)), (Replicate(), Shard(2))),
    ],
)
def test_each_mark_has_its_placement(text: str, places: object, gradients: object) -> None:
    assert placements(text, "dp tp") == places
    assert grad_placements(text, AXES) == gradients


def test_a_reduction_is_that_of_a_partial() -> None:
    assert placements("b +tp", "tp", op="max") == (Partial("max"),)


@given(st.lists(st.sampled_from([*PLACES, "*"]), min_size=2, max_size=2))
def test_there_and_back(drawn: list[Any]) -> None:
    places = [Replicate() if place == "*" else place for place in drawn]
    kept = {"*": Partial(), Partial(): Replicate()}
    gradients = [kept.get(place, place) for place in drawn]
    text = side(places, AXES, "b s", grad_placements=gradients)
    assert placements(text, AXES) == tuple(places)
    assert grad_placements(text, AXES) == tuple(gradients)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b @tp:0", "no placement says @tp:0, a tensor on one rank of tp."),
        ("... d/tp", "... has no number of dims."),
        ("(h d/tp)", "no placement says d/tp, which is inside a dim of the tensor."),
        ("b/tp/dp", "a DTensor cuts b by dp first, as in its DeviceMesh.\n  Fix: b/dp/tp."),
    ],
)
def test_a_side_without_placements_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        placements(text, AXES)
    assert message in str(caught.value)


def test_an_axis_that_the_device_mesh_lacks_is_refused() -> None:
    with pytest.raises(UnknownAxisError, match="tq"):
        placements("b/tq", AXES)


def test_an_absent_standard_axis_has_size_one() -> None:
    assert placements("b/cp/dp s +pp", AXES) == (Shard(0), Replicate())


@pytest.mark.parametrize("place", [Shard(2), Shard(-3), Partial("max")], ids=str)
def test_placements_without_a_side_are_refused(place: Placement) -> None:
    with pytest.raises(SpecError, match="no pattern with these dims says"):
        side([place], "tp", "b s")


def test_each_axis_has_one_placement() -> None:
    with pytest.raises(SpecError, match=r"2 axes have 1 placements"):
        side([Shard(0)], AXES, "b s")


# ------------------------------------------------------------------ on real ranks


def compare() -> dict[str, list[bool]]:
    """Return for each move whether the values and the gradients are those of a DTensor."""
    with meshkit.build_mesh(dp=2, tp=2) as mesh:
        return {pattern: compare_move(mesh, pattern) for pattern in MOVES}


def compare_move(mesh: meshkit.Mesh, pattern: str) -> list[bool]:
    left, right = pattern.split(" -> ")
    device_mesh = mesh.device_mesh("dp tp")
    whole = torch.arange(4.0 * 8 * 4).reshape(4, 8, 4).double()
    local = mesh.redistribute(whole, f"b s d -> {right if '+' in left else left}")
    x = (local if "+" not in left else whole * (1 + mesh.rank)).clone().requires_grad_()
    y = x.detach().clone().requires_grad_()
    ours = mesh.redistribute(x, pattern)
    d_tensor = DTensor.from_local(y, device_mesh, placements(left, AXES), run_check=False)
    moved = d_tensor.redistribute(placements=placements(right, AXES))
    theirs = moved.to_local(grad_placements=grad_placements(right, AXES))
    scale = 1 + mesh.rank if "*" in right else 1
    grad = ours.detach().cos() * scale
    ours.backward(grad)
    theirs.backward(grad)
    assert x.grad is not None
    assert y.grad is not None
    return [torch.equal(ours, theirs), torch.allclose(x.grad, y.grad, rtol=1e-12)]


def test_values_and_gradients_are_those_of_a_dtensor() -> None:
    for by_move in meshkit.spawn(compare, 4, timeout=120):
        assert by_move == {pattern: [True, True] for pattern in MOVES}
