"""The comparison of parameters of ranks, without ranks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout, SpecError
from meshkit.core.data.parameter_check import (
    HEAD_BYTES,
    SLOTS,
    EqualAxes,
    ModelDigest,
    ParameterDigest,
    details_length,
    heads_conflict,
    parameter_conflict,
)

LAYOUT = Layout(dp=2, sp=2)
AXES = EqualAxes.of(LAYOUT.sizes)
rows = st.builds(
    ParameterDigest,
    name=st.sampled_from(["a", "b"]),
    kind=st.sampled_from(["float32 (2,)", "int8 (2,)"]),
    peers=st.just(""),
    share=st.sampled_from(["", "part 0", "part 1"]),
    digest=st.sampled_from(["00", "11"]),
    is_expert=st.booleans(),
)
models = st.lists(rows, unique_by=lambda row: row.name, max_size=2).map(
    lambda of_rank: ModelDigest(tuple(of_rank), ("",))
)


def disagree(by_rank: list[ModelDigest]) -> bool:
    """Return whether two ranks disagree, pair by pair."""
    for own in by_rank:
        for other in by_rank:
            theirs = {row.name: row for row in other.parameters}
            for row in own.parameters:
                same = theirs.get(row.name)
                if same is None or same.kind != row.kind:
                    return True
                if same and same.share == row.share and same.digest != row.digest:
                    return True
    return False


@settings(deadline=None, max_examples=300)
@given(st.lists(models, min_size=4, max_size=4))
def test_an_error_exactly_if_two_ranks_disagree(by_rank: list[ModelDigest]) -> None:
    error = parameter_conflict(LAYOUT, AXES, dict(enumerate(by_rank)))
    assert (error is not None) == disagree(by_rank)
    if error:  # the heads may also differ without an error: then the details find none
        assert heads_conflict([model.head() for model in by_rank])


def model(*names: str, **changes: Any) -> ModelDigest:
    row = ParameterDigest("", "float32 (2,)", "", "", "00", False)
    return ModelDigest(tuple(row._replace(name=name, **changes) for name in names), ("",))


def test_equal_models_need_no_details() -> None:
    assert not heads_conflict([model("a", "b").head()] * 4)
    assert heads_conflict([model("a", "b").head()] * 3 + [model("a", "b", digest="11").head()])


def test_a_head_has_one_size_and_the_length_of_the_details() -> None:
    many = ModelDigest(
        tuple(model(str(i), share=str(i)).parameters[0] for i in range(SLOTS)), ("",)
    )
    for sent in (model(), model("a"), many):
        assert len(sent.head()) == HEAD_BYTES
        assert details_length(sent.head()) == len(sent.packed())
        assert ModelDigest.unpacked(sent.packed()) == sent
    assert heads_conflict([many.head()])  # more classes than slots: the details are compared
    assert parameter_conflict(LAYOUT, AXES, dict.fromkeys(range(4), many)) is None


def test_a_fault_of_one_rank_is_the_error() -> None:
    by_rank = dict.fromkeys(range(4), model("a")) | {2: ModelDigest((), fault="a cannot be read")}
    assert heads_conflict([by_rank[rank].head() for rank in by_rank])
    error = parameter_conflict(LAYOUT, AXES, by_rank)
    assert str(error).splitlines()[0] == "this call: a cannot be read, on rank 2 (dp=1 sp=0)."


def test_the_fix_of_an_expert_sums_over_its_group_and_divides_by_the_whole_one() -> None:
    layout = Layout(dp=2, ep=2)
    drifted = {rank: model("a", is_expert=True, digest=f"{rank // 2}") for rank in range(4)}
    error = parameter_conflict(layout, EqualAxes.of(layout.sizes), drifted)
    assert error is not None
    assert error.fix_text == (  # examples/howto/moe.py does so, with the losses of one process
        "sum gradients of experts over mesh.gradient_group(experts=True), and divide them by the "
        "size of mesh.gradient_group()."
    )


def test_many_contents_are_cut_short() -> None:
    layout = Layout(dp=64)
    drifted = {rank: model("a", "b", digest=f"{rank:02d}") for rank in range(64)}
    error = parameter_conflict(layout, AXES, drifted)
    assert error is not None
    assert "and 56 more." in str(error)
    assert "The same is true for 1 other parameter." in str(error)
    assert error.requests[63] == "float32 (2,) 63"
    assert error.parameter == "a"  # type: ignore[attr-defined]


def test_no_role_is_guessed() -> None:
    sizes = {"dp": 2, "rows": 2, "ep": 2}
    with pytest.raises(SpecError, match="nothing says whether ranks along rows") as error:
        EqualAxes.of(sizes)
    assert "axes='dp rows ep'" in str(error.value)
    assert EqualAxes.of(sizes, "rows ep") == EqualAxes(("rows", "ep"), ("rows",))
    assert EqualAxes.of({"rows": 1}) == EqualAxes((), ())
