"""Axes: legal names, parsing, suggestions, and the roles that names give."""

from __future__ import annotations

import warnings

import einops
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, SpecError, UnknownAxisError, factor_world
from meshkit.layout.axes import (
    MAX_AXES,
    RESERVED,
    axis_role,
    check_axes_exist,
    check_names,
    closest_axes,
    data_axes,
    gradient_axes,
    parse_axes,
    unknown_axes,
)
from meshkit.synonyms import AXES, STANDARD, STANDARD_OF
from meshkit.testing import axis_names


def test_parse_axes_splits_a_str_and_keeps_a_sequence() -> None:
    assert parse_axes(" dp  sp ") == parse_axes(["dp", "sp"]) == ("dp", "sp")
    assert parse_axes("") == ()


@pytest.mark.parametrize(
    ("name", "axes", "suggestion"),
    [
        ("fsdp", ("dp", "sp"), "dp"),  # nearer to the letters of sp, but it means dp
        ("data", ("dp", "sp"), "dp"),
        ("tensor_parallel_size", ("dp", "tp"), "tp"),
        ("tensor", ("data", "model"), "model"),
        ("fsdp", ("sp", "tp"), None),
        ("shards", ("replicate", "shard"), "shard"),
        ("replica", ("replicate", "shard"), "replicate"),
        ("tpp", ("dp", "tp"), "tp"),
    ],
)
def test_a_name_of_another_library_means_the_axis_of_its_role(
    name: str, axes: tuple[str, ...], suggestion: str | None
) -> None:
    with pytest.raises(UnknownAxisError) as caught:
        check_axes_exist([name], axes)
    assert caught.value.suggestion == suggestion


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("ddp", "did you mean dp?"),
        ("ttp", "did you mean tp?"),
        ("dp+tp", "did you mean 'dp tp', these axes together?"),
        ("dp_tp", "did you mean 'dp tp', these axes together?"),
        ("dp_shard_cp", "did you mean 'dp_shard cp', these axes together?"),
        ("rows", "use one of dp, dp_shard, tp."),
        ("pd", "did you mean dp?"),
        ("pt", "did you mean tp?"),
        ("xp", "use one of dp, dp_shard, tp."),
    ],
)
def test_the_fix_of_an_unknown_axis(name: str, fix: str) -> None:
    with pytest.raises(UnknownAxisError) as caught:
        check_axes_exist([name], ("dp", "dp_shard", "tp"))
    assert caught.value.fix == fix


def test_the_closest_axis_to_a_misspelt_name() -> None:
    assert closest_axes("tpp", STANDARD) == ["tp"]
    assert closest_axes("TP", STANDARD) == ["tp"]
    assert closest_axes("replicat", ("replicate", "shard")) == ["replicate"]
    assert closest_axes("expert_model", ("dp", "tp")) == []


LEGAL = ["dp", "DP", "d", "dp2", "d_p", "replicate", "match", "type", "axes", "x" * 200]


ILLEGAL = [
    *("", " ", "2dp", "d-p", "d.p", "dp sp", "dé", "\uff44\uff50", "_dp", "dp_", "_", "__"),
    *("axis", "for", "None", "lambda", "async"),
    *sorted(RESERVED),
    *(3, None, b"dp", ("dp",)),
]


def test_legal_names_are_accepted() -> None:
    check_names(LEGAL)
    assert Layout(dict.fromkeys(LEGAL, 1)).axes == (*LEGAL,)


def test_illegal_names_raise_an_error() -> None:
    for name in ILLEGAL:
        with pytest.raises(SpecError, match="cannot be the name of an axis"):
            check_names([name])


@pytest.mark.parametrize("name", ["self", "cls", "sizes", "call", "pattern", "world_size", "name"])
def test_a_name_of_a_parameter_works_as_an_axis_or_raises_an_error(name: str) -> None:
    """A parameter of a function must not turn a legal name into a TypeError."""
    try:
        check_names([name])
    except SpecError:
        return
    layout = Layout(**{name: 2, "dp": 3})
    assert layout.rank(**{name: 1, "dp": 2}) == 5
    assert layout.view(**{"dp": 3, name: 2}).axes == ("dp", name)


@settings(deadline=None, max_examples=20, database=None)
@given(axis_names())
def test_einops_accepts_every_legal_name(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        einops.rearrange(np.zeros((2, 3)), f"{name} other_ax -> other_ax {name}")


def test_a_layout_can_have_32_axes() -> None:
    layout = Layout(**{f"a{i}": 2 if i in (0, 31) else 1 for i in range(MAX_AXES)})
    assert layout.grid.ndim == MAX_AXES
    assert layout.groups("a31").tolist() == [[0, 1], [2, 3]]
    assert layout.groups("a0").tolist() == [[0, 2], [1, 3]]


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


def test_a_name_gives_the_role() -> None:
    assert {name: axis_role(name) for name in ROLE_OF} == ROLE_OF


def test_the_standard_order_and_no_name_means_two_axes() -> None:
    assert STANDARD == ("pp", "dp", "ep", "cp", "sp", "tp")
    names = [f"{axis} {row.synonyms} {row.relatives}".split() for axis, row in AXES.items()]
    assert len(STANDARD_OF) == sum(map(len, names))


@given(mixed_sizes)
def test_the_axes_of_a_layout_by_role(sizes: dict[str, int]) -> None:
    """Compare with the table of this test, axis by axis."""
    assert [*data_axes(sizes)] == [a for a in sizes if ROLE_OF[a] in ("data", "expert")]
    assert {*unknown_axes(sizes)} == {a for a in sizes if ROLE_OF[a] == "unknown" and sizes[a] > 1}
    dense, experts = gradient_axes(sizes), gradient_axes(sizes, experts=True)
    assert {*dense} == {*data_axes(sizes)} | SPLIT_TOKENS & sizes.keys()
    assert {*experts} == {a for a in dense if ROLE_OF[a] != "expert"}
    assert len({*dense}) == len(dense)


@pytest.mark.parametrize("order", ["tp dp", "dp tp"])
def test_keys_have_the_order_of_their_dict_and_a_set_is_sorted(order: str) -> None:
    sizes = dict.fromkeys(order.split(), 2)
    assert parse_axes(sizes.keys()) == parse_axes([*sizes])
    assert factor_world(4, sizes, order=sizes.keys()) == factor_world(4, sizes, order=order)
    assert parse_axes({*sizes}) == parse_axes(frozenset(sizes)) == ("dp", "tp")
    with pytest.raises(SpecError, match="a set"):
        factor_world(4, sizes, order={*sizes})
