"""Roles of axes, and the axes that divide samples or that gradients are averaged over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit.core.axes import AXES, STANDARD, STANDARD_OF
from meshkit.core.grid.roles import axis_role, data_axes, gradient_axes, unknown_axes

# the names of each role, as users of other libraries write them
NAMES = {
    "data": "dp data fsdp hsdp shard replicate dp_shard dp_replicate data_parallel ddp batch"
    " replica",
    "expert": "ep expert experts expert_parallel",
    "model": "tp mp mdl model tensor tensor_parallel model_parallel etp pp pipe pipeline stage"
    " stages pipeline_parallel cp context context_parallel"
    " sp seq sequence sequence_parallel ulysses",
    "unknown": "efsdp rows x batch_rows dp_size my_tp tp2 DP",
}
SPLIT_TOKENS = {"cp", "context", "context_parallel"} | {
    *("sp", "seq", "sequence", "sequence_parallel", "ulysses")
}
ROLE_OF = {name: role for role, names in NAMES.items() for name in names.split()}

mixed_sizes = st.dictionaries(st.sampled_from(sorted(ROLE_OF)), st.integers(1, 3), max_size=6)


@pytest.mark.parametrize(("name", "role"), ROLE_OF.items())
def test_a_name_gives_the_role(name: str, role: str) -> None:
    assert axis_role(name) == role


def test_the_standard_order_and_no_name_means_two_axes() -> None:
    assert STANDARD == ("pp", "dp", "ep", "cp", "sp", "tp")
    assert len(STANDARD_OF) == sum(1 + len(row.synonyms + row.relatives) for row in AXES.values())


@given(mixed_sizes)
def test_the_axes_of_a_layout_by_role(sizes: dict[str, int]) -> None:
    """Compare with the table of this test, axis by axis."""
    assert [*data_axes(sizes)] == [a for a in sizes if ROLE_OF[a] in ("data", "expert")]
    assert {*unknown_axes(sizes)} == {a for a in sizes if ROLE_OF[a] == "unknown" and sizes[a] > 1}
    dense, experts = gradient_axes(sizes), gradient_axes(sizes, experts=True)
    assert {*dense} == {*data_axes(sizes)} | SPLIT_TOKENS & sizes.keys()
    assert {*experts} == {a for a in dense if ROLE_OF[a] != "expert"}
    assert len({*dense}) == len(dense)


def test_standard_gradient_axes_have_one_order_for_every_order_of_the_mesh() -> None:
    assert gradient_axes({"tp": 2, "sp": 2, "cp": 2, "ep": 2, "dp": 2}) == ("dp", "ep", "cp", "sp")
    assert gradient_axes({"seq": 2, "shard": 2, "replicate": 2}) == ("seq", "shard", "replicate")
    assert data_axes({"ep": 2, "dp": 2}) == ("ep", "dp")
