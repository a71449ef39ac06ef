"""Law 14: each element of a model is counted once in a norm, wherever ranks hold its copies."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.norm.shares import NormLayout, counts
from meshkit.testing import layouts
from tests.laws.derivations import digits, factorizations, index_tuples, law

SYMBOLS = st.sampled_from("/=*+ ")


@law
@given(layouts(with_ranks=True), st.data())
def test_law_14_each_element_of_a_plain_parameter_counts_once(
    layout: Layout, data: st.DataObject
) -> None:
    marks = {axis: data.draw(SYMBOLS) for axis in layout.axes}
    unknown = [axis for axis, symbol in marks.items() if symbol == " "]
    marks.update(dict.fromkeys(unknown, "="))  # an axis of unknown role needs a mark
    cut = [axis for axis, symbol in marks.items() if symbol == "/"]
    others = [symbol + axis for axis, symbol in marks.items() if symbol in "=*+"]
    stages = [a for a in layout.axes if a in ("pp", "pipe", "pipeline", "stage", "stages")]
    others = [text for text in others if text[1:] not in stages]
    side = " ".join(["/".join(["o", *(axis for axis in cut if axis not in stages)]), *others])
    shares = NormLayout.of(layout.sizes, {"*": side}).shares("w", (7,), is_plain=True)
    # by elements: each is named by its part along the axes that cut it, and by its stage
    counted: Counter[tuple[int, ...]] = Counter()
    for rank, indices in zip(map(int, layout.ranks), index_tuples(layout), strict=True):
        at = dict(zip(layout.axes, indices, strict=True))
        part = tuple(at[axis] for axis in layout.axes if axis in cut or axis in stages)
        counted[part] += counts(layout, rank, shares.own)
    assert {*counted.values()} == {1}
    # by sizes: as many ranks as there are parts
    assert sum(counted.values()) == math.prod(layout.sizes[a] for a in {*cut, *stages})


@law
@given(st.data())
def test_law_14_each_copy_of_a_dtensor_on_part_of_a_view_counts_once(data: st.DataObject) -> None:
    number = data.draw(st.sampled_from([6, 8, 12, 16]))
    layout = Layout(data.draw(factorizations(number)))
    view = Layout(data.draw(factorizations(number)))
    inside = data.draw(st.sets(st.sampled_from(view.axes)))
    members_of = (
        {int(rank): row.tolist() for row in view.groups(*inside) for rank in row}
        if inside
        else {rank: [rank] for rank in range(number)}
    )
    firsts = [rank for rank in range(number) if counts(layout, rank, (), members_of[rank])]
    assert firsts == sorted(members_of[0])  # those that hold the DTensor of the first rank
    outer = [axis for axis in view.axes if axis not in inside]
    by_digits = [
        rank
        for rank in range(number)
        if not any(dict(zip(view.axes, digits(rank, view.shape), strict=True))[a] for a in outer)
    ]
    assert firsts == by_digits


@law
@given(layouts())
def test_law_14_stages_of_a_pipeline_count_their_own_parameters(layout: Layout) -> None:
    staged = Layout({"stage": 3, **{a: n for a, n in layout.sizes.items() if a != "stage"}})
    shares = NormLayout.of(staged.sizes, {}).shares("w", (), is_plain=False)
    ranks = [rank for rank in range(staged.num_ranks) if counts(staged, rank, shares.own)]
    stages = [rank for rank in ranks if staged.coordinate(rank)["stage"]]
    assert len(stages) < len(ranks)
    tied = NormLayout.of(staged.sizes, {"*": "=stage"}).shares("w", (), is_plain=False)
    assert [rank for rank in ranks if counts(staged, rank, tied.own)] == ranks[: len(ranks) // 3]
