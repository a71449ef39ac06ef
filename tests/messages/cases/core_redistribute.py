"""Cases of errors that core/redistribute raises."""

from __future__ import annotations

from meshkit import SequencePlan, plan_redistribution
from meshkit.core.redistribute.move import check_gradient, check_op, infer_sizes, unmarked_axes
from meshkit.core.redistribute.pattern import parse_pattern
from tests.messages.snapshot import unique

AXES = {"dp": 4, "tp": 2}
MESH = "dp=4 tp=2"
PLACE = {"dp": 1, "tp": 0}


def infer(text: str, shape: tuple[int, ...], **sizes: int) -> object:
    """Infer the sizes of a pattern from the shape of a local tensor."""
    return infer_sizes(parse_pattern(text), AXES, PLACE, shape, sizes)


def refuse_gradient(text: str) -> None:
    """Check the gradient of a pattern that lacks a mark."""
    pattern = parse_pattern(text)
    check_gradient(pattern, unmarked_axes(pattern))


CASES = unique(
    (
        "a movement over too many ranks",
        lambda: plan_redistribution({"dp": 10**9}, "b/dp -> b", b=2),
    ),
    ("a movement without an arrow", lambda: plan_redistribution(MESH, "b s/tp", b=2, s=4)),
    ("a movement with two arrows", lambda: plan_redistribution(MESH, "b -> b -> b", b=2)),
    ("a movement that is no text", lambda: plan_redistribution(MESH, 5, b=2)),  # type: ignore[arg-type]
    ("a movement that cuts three dims", lambda: plan_redistribution(MESH, "(a b/dp c)/tp -> a")),
    ("a movement with an invalid character", lambda: plan_redistribution(MESH, "b s:tp -> b s")),
    ("a movement with an open bracket", lambda: plan_redistribution(MESH, "(b s/tp -> b s")),
    ("a movement with a bracket in a bracket", lambda: plan_redistribution(MESH, "((b) s) -> b s")),
    ("a movement with a mark in a bracket", lambda: plan_redistribution(MESH, "(b +tp) -> b")),
    ("a movement that cuts a bracket", lambda: plan_redistribution(MESH, "b (h d)/tp -> b h d")),
    ("a movement that cuts a size of 1", lambda: plan_redistribution(MESH, "b 1/tp -> b")),
    ("a movement with a dim twice", lambda: plan_redistribution(MESH, "b b -> b")),
    ("a movement with an axis twice", lambda: plan_redistribution(MESH, "b/tp s/tp -> b s")),
    ("a movement with a dim on one side", lambda: plan_redistribution(MESH, "b s -> b")),
    ("a movement with an ellipsis on one side", lambda: plan_redistribution(MESH, "b -> b ...")),
    ("a movement with an unknown axis", lambda: plan_redistribution(MESH, "b/tpp -> b *tpp", b=2)),
    ("a mark outside its axis", lambda: plan_redistribution(MESH, "b @dp:4 -> b/dp", b=4)),
    (
        "a mark outside an axis of one",
        lambda: plan_redistribution("dp=4 pp=1", "b @pp:1 -> b *pp", b=4),
    ),
    ("an unknown reduction", lambda: check_op(parse_pattern("b +tp -> b =tp"), "prod")),
    ("a mean", lambda: check_op(parse_pattern("b +tp -> b =tp"), "mean")),
    ("a maximum that begins a sum", lambda: check_op(parse_pattern("b =tp -> b +tp"), "max")),
    ("a gathered axis without a mark", lambda: refuse_gradient("b s/tp -> b s")),
    ("two axes without a mark", lambda: refuse_gradient("b/dp s/tp -> b s")),
    ("a sliced axis without a mark", lambda: refuse_gradient("b s -> b s/tp")),
    ("a size of an unknown dim", lambda: plan_redistribution(MESH, "b/dp -> b *dp", c=4)),
    ("a size for an ellipsis", lambda: plan_redistribution(MESH, "... +dp -> ... =dp", b=4)),
    ("a size that is a float", lambda: plan_redistribution(MESH, "b/dp -> b *dp", b=4.0)),
    ("a dim without a size", lambda: plan_redistribution(MESH, "b/dp s -> b s *dp", b=4)),
    ("a dim called to without a size", lambda: plan_redistribution(MESH, "to/tp -> to")),
    (
        "sizes that are no mapping",
        lambda: plan_redistribution(MESH, "b/tp -> b", sizes=[4]),  # type: ignore[arg-type]
    ),
    (
        "a size of a dim in both ways",
        lambda: plan_redistribution(MESH, "b/tp -> b", sizes={"b": 4}, b=4),
    ),
    ("an ellipsis in a plan", lambda: plan_redistribution(MESH, "... s/tp -> ... s *tp", s=4)),
    ("a mesh that is no sizes", lambda: plan_redistribution("dp4", "b -> b", b=4)),
    ("a mesh of no ranks", lambda: plan_redistribution("dp=0", "b -> b", b=4)),
    ("a mesh that is no mesh", lambda: plan_redistribution(8, "b -> b", b=4)),  # type: ignore[arg-type]
    ("a mark outside an absent axis", lambda: plan_redistribution(MESH, "b @pp:1 -> b", b=4)),
    ("a tensor with too few dims", lambda: infer("b s/tp d -> b s d *tp", (2, 3))),
    (
        "a tensor with too few dims for an ellipsis",
        lambda: infer("... s d/tp -> ... s d *tp", (2,)),
    ),
    ("a bracket of unknown sizes", lambda: infer("(h d) -> h d", (12,))),
    ("a local size that differs", lambda: infer("b/dp -> b *dp", (3,), b=8)),
    ("a dim of size 1 that is longer", lambda: infer("b 1 -> b", (2, 3))),
    ("a bracket that does not divide", lambda: infer("(h d/tp) -> h d *tp", (9,), h=4)),
    ("a size that does not divide", lambda: infer("s =dp -> s/dp", (10,))),
    ("a size that does not divide over two axes", lambda: infer("s *dp *tp -> s/tp/dp", (4,))),
    ("a dim of an ellipsis that does not divide", lambda: infer("... s =dp -> ... s/dp", (2, 10))),
    (
        "a sequence plan with other parts",
        lambda: plan_redistribution(MESH, "s =dp -> s/dp", s=SequencePlan(16, 2, "zigzag")),
    ),
    (
        "a padded sequence plan with other parts",
        lambda: plan_redistribution(MESH, "s =tp -> s/tp", s=SequencePlan(10, 4, pad=True)),
    ),
    (
        "a view with other ranks",
        lambda: plan_redistribution(MESH, "b/dp -> b/x", to="x=4", b=4),
    ),
    (
        "a view without common factors",
        lambda: plan_redistribution("dp=3 tp=2", "b/dp -> b/x", to="x=2 y=3", b=6),
    ),
    (
        "parts of different sizes between views",
        lambda: plan_redistribution(MESH, "b/dp -> b/x", to="x=2 y=4", b=5),
    ),
)
