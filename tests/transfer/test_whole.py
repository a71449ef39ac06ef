"""Laws of the parts of whole tensors: their sizes add up, and ranks that do not fit are named."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import DisagreementError, Layout, SpecError
from meshkit.redistribute.pattern import parse_layout
from meshkit.transfer.whole import whole_sizes
from tests.redistribute.moves import DIMS, Bracketed, axis_sizes, bracketed, sides

law = settings(deadline=None, max_examples=100, database=None)
LAYOUT = Layout(pp=2, tp=3)
SIDES = parse_layout({"w": "o/tp i", "f": "(a b/tp) i"})
GIVEN = {"a": 2}


@given(st.data())
@law
def test_the_parts_of_array_split_have_the_sizes_of_the_whole(data: st.DataObject) -> None:
    axes = data.draw(axis_sizes(max_ranks=12))
    layout = Layout(axes, ranks=data.draw(st.permutations(range(math.prod(axes.values())))))
    dims = DIMS[: data.draw(st.integers(1, 3))]
    cuts = data.draw(sides(axes, dims, "="))[0]
    whole = np.zeros([data.draw(st.integers(1, 9)) for _ in dims])
    side = {"*": " ".join("/".join([dim, *cuts[dim]]) for dim in dims)}
    tables: dict[tuple[int, ...], list[int]] = {}
    for rank in map(int, layout.grid.flat):
        part = whole
        for number, dim in enumerate(dims):
            for axis in cuts[dim]:
                index = layout.coordinate(rank)[axis]
                part = np.array_split(part, layout.sizes[axis], number)[index]
        tables.setdefault(part.shape, []).append(rank)
    stated = [({"w": (shape, "float32")}, ranks) for shape, ranks in tables.items()]
    rank = data.draw(st.sampled_from([*map(int, layout.grid.flat)]))
    sizes = whole_sizes(layout, parse_layout(side), stated, rank)
    assert sizes == {"w": dict(zip(dims, whole.shape, strict=True))}


@given(bracketed())
@law
def test_the_sizes_of_dims_in_brackets_come_from_the_parts_that_have_elements(
    tensor: Bracketed,
) -> None:
    stated = [({"w": part(*local.shape)}, [rank]) for rank, local in tensor.parts.items()]
    sides = parse_layout({"w": tensor.side})
    for rank in tensor.parts:
        sizes = whole_sizes(tensor.layout, sides, stated, rank, tensor.given)
        assert sizes == {"w": {**tensor.sizes, "i": 2}}


def part(*shape: int, dtype: str = "float32") -> Any:
    return shape, dtype


def test_stages_have_tensors_of_their_own() -> None:
    tables = [({"w": part(2, 4)}, [0, 1, 2]), ({"w": part(3, 5), "v": part(1)}, [3, 4, 5])]
    assert whole_sizes(LAYOUT, SIDES, tables, 1) == {"w": {"o": 6, "i": 4}}
    assert whole_sizes(LAYOUT, SIDES, tables, 5) == {"w": {"o": 9, "i": 5}}


# the tables of stage 0, and the first line of the error
MISFITS = {
    "a rank lacks it": ([({"w": part(2, 4)}, [0, 2]), ({}, [1])], "some ranks lack it"),
    "another dtype": (
        [({"w": part(2, 4)}, [0, 1]), ({"w": part(2, 4, dtype="int64")}, [2])],
        "its dtypes or dims differ",
    ),
    "another number of dims": (
        [({"w": part(2, 4)}, [0, 1]), ({"w": part(2)}, [2])],
        "its dtypes or dims differ",
    ),
    "another width": (
        [({"w": part(2, 4)}, [0, 1]), ({"w": part(2, 5)}, [2])],
        "its parts do not belong together",
    ),
    "parts of torch.chunk": (
        [({"w": part(2, 4)}, [0, 1]), ({"w": part(0, 4)}, [2])],
        "its parts have other sizes than local_state gives",
    ),
}


@pytest.mark.parametrize("rank", [0, 5])
@pytest.mark.parametrize("case", MISFITS.values(), ids=MISFITS)
def test_parts_that_do_not_fit_are_named_on_every_rank(case: Any, rank: int) -> None:
    tables, reason = case
    with pytest.raises(DisagreementError, match=reason) as caught:
        whole_sizes(LAYOUT, SIDES, [*tables, ({}, [3, 4, 5])], rank)
    assert len(caught.value.evidence) == 3
    assert caught.value.evidence[2].startswith("Rank 2 (pp=0 tp=2): ")


def test_a_side_of_other_dims_names_the_tensor() -> None:
    with pytest.raises(SpecError, match="w: the tensor has 3 dims"):
        whole_sizes(LAYOUT, SIDES, [({"w": part(2, 4, 1)}, range(6))], 0)


def test_a_bracket_needs_sizes_that_fit() -> None:
    tables = [({"f": part(4, 4)}, [0, 1, 3, 4]), ({"f": part(2, 4)}, [2, 5])]
    assert whole_sizes(LAYOUT, SIDES, tables, 2, GIVEN) == {"f": {"a": 2, "b": 5, "i": 4}}
    for sizes, text in ({}, "a and b are unknown"), ({"a": 3}, "4 elements on rank 0"):
        with pytest.raises(SpecError, match=text):
            whole_sizes(LAYOUT, SIDES, tables, 0, sizes)
    with pytest.raises(DisagreementError, match="other sizes than local_state gives"):
        whole_sizes(LAYOUT, SIDES, [({"f": part(2, 4)}, [0, 3]), ({"f": part(4, 4)}, [1, 2, 4, 5])],
                    0, GIVEN)  # fmt: skip
