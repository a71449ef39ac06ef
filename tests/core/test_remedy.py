"""What is advised against an axis that crosses nodes is tried here, by doing it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshkit.core.topology.crossing import crossings
from meshkit.core.topology.crossing_policy import suggest_fix
from meshkit.core.topology.placement import placed

from meshkit import Layout, Topology, UnknownAxisError
from meshkit.core.call import Call

law = settings(deadline=None, max_examples=60, database=None)
BLOCKS = "start the ranks in blocks, node by node (srun --distribution=block)"


@pytest.mark.parametrize(
    ("layout", "topology", "text"),
    [
        (Layout(dp=2, tp=4), Topology.even(8, nodes=2), ""),
        (Layout(dp=2, tp=4), Topology.of_hosts(["a", "b"] * 4), f"{BLOCKS}; or place=True."),
        (Layout(tp=4, dp=2), Topology.even(8, nodes=2), "order='dp tp'."),
        (Layout(tp=4, dp=2), Topology.of_sizes([4, 4]), "order='dp tp'."),
        (Layout(dp=1, tp=8), Topology.even(8, nodes=2), "dp=2, tp=4, as a node holds 4 ranks."),
        (
            Layout(tp=12),
            Topology.of_sizes([7, 5]),
            "dp=12, tp=1, order='dp tp', as 1 divides the ranks of every node.",
        ),
        (
            Layout(dp=3, tp=4),
            Topology.of_sizes([6, 6]),
            "dp=6, tp=2, as 2 divides the ranks of every node.",
        ),
        (
            Layout(dp=3, tp=5),
            Topology.of_sizes([7, 8]),
            "dp=15, tp=1, as 1 divides the ranks of every node.",
        ),
        (
            Layout(dp=3, tp=4),
            Topology.of_sizes([2, 8, 2]),
            "dp=6, tp=2, as 2 divides the ranks of every node.",
        ),
        (
            Layout(dp=2, tp=4, ranks=[0, 4, 1, 5, 2, 6, 3, 7]),
            Topology.even(8, nodes=2),
            "place=True.",
        ),
        (
            Layout(dp=2, tp=4, sp=2),
            Topology.of_hosts([0, 1, 2, 3] * 4),
            "order='dp sp tp', place=True.",
        ),
    ],
)
def test_advised(layout: Layout, topology: Topology, text: str) -> None:
    assert suggest_fix(layout, topology, "tp") == text


def test_advised_for_racks() -> None:
    names = sorted(f"node{i}" for i in range(16))
    topology = Topology.of_hosts([name for name in names for _ in range(2)])
    topology = topology.inside("rack", [int(name[4:]) // 4 for name in names])
    assert (
        suggest_fix(Layout(dp=4, tp=8), topology, "tp", level="rack") == f"{BLOCKS}; or place=True."
    )
    text = "dp=4, tp=8, place=True, as a rack holds 8 ranks."
    assert suggest_fix(Layout(dp=2, tp=16), topology, "tp", level="rack") == text


def test_an_axis_that_is_not_there() -> None:
    with pytest.raises(UnknownAxisError):
        suggest_fix(Layout(dp=8), Topology.even(8, nodes=2), "tp")


@st.composite
def grounds(draw: st.DrawFn) -> tuple[Layout, Topology]:
    sizes = draw(st.permutations([draw(st.integers(1, 4)), draw(st.integers(1, 4)), 2]))
    axes = draw(st.permutations(["dp", "sp", "tp"]))
    layout = Layout(**dict(zip(axes, sizes, strict=True)))
    nodes = draw(st.integers(1, 4))
    hosts = np.arange(layout.num_ranks) % nodes
    return layout, Topology.of_hosts((hosts if draw(st.booleans()) else np.sort(hosts)).tolist())


@law
@given(grounds(), st.sampled_from(["dp", "sp", "tp"]), st.booleans())
def test_what_is_advised_works(ground: tuple[Layout, Topology], axis: str, written: bool) -> None:
    layout, topology = ground
    call = Call("build_mesh", kwargs=layout.sizes) if written else None
    text = suggest_fix(layout, topology, axis, call=call)
    assert (text != "") == crossings(layout, topology)[axis].crosses
    for way in filter(None, text.removesuffix(".").split("; or ")):
        if way == BLOCKS:
            blocks = Topology.of_sizes(topology.sizes)
            assert not crossings(layout, blocks)[axis].crosses
            continue
        said = way if written else f"build_mesh({way.partition(', as ')[0]})"
        asked = {**layout.sizes, **eval(said, {"build_mesh": dict})}
        place, order = asked.pop("place", False), asked.pop("order", " ".join(layout.axes)).split()
        fixed = Layout(**{name: asked[name] for name in order})
        assert fixed.num_ranks == layout.num_ranks
        found = placed(fixed, topology).layout if place else fixed
        assert not crossings(found, topology)[axis].crosses


@law
@given(grounds(), st.sampled_from(["dp", "sp", "tp"]))
def test_a_size_is_cut_where_nothing_else_keeps_it(
    ground: tuple[Layout, Topology], axis: str
) -> None:
    layout, topology = ground
    text = suggest_fix(layout, topology, axis)
    outer = [name for name in layout.axes if name != axis]
    inner = Layout(**{name: layout.sizes[name] for name in (*outer, axis)})
    divides = all(held % layout.sizes[axis] == 0 for held in topology.sizes.tolist())
    assert not (", as " in text and divides)
    if ", as " in text and layout.sizes[axis] <= topology.sizes.max():
        assert crossings(placed(inner, topology).layout, topology)[axis].crosses
