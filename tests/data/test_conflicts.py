"""Conflicts of batches and parameters, compared with a check of all pairs of ranks."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import Layout
from meshkit.data.conflicts import (
    HEAD_BYTES,
    SLOTS,
    EqualAxes,
    Holdings,
    Row,
    batch_conflict,
    details_length,
    heads_conflict,
    parameter_conflict,
)

quick = settings(deadline=None, max_examples=60, database=None)
LAYOUT = Layout(dp=2, sp=2)
AXES = EqualAxes.of(LAYOUT.sizes)
TEXTS = st.text('ab"\n\u00e9\ud800', max_size=4)


def batch(index: str, **leaves: str) -> Holdings:
    return Holdings(tuple(Row(index, name, content) for name, content in leaves.items()), (index,))


def batches(layout: Layout, contents: str, *data: str) -> dict[int, Holdings]:
    """Return a batch with one leaf for each rank, by the coordinate along the data axes."""
    result = {}
    for rank, content in enumerate(contents):
        index = " ".join(f"{axis}={layout.coordinate(rank)[axis]}" for axis in data)
        result[rank] = batch(index, x=content)
    return result


def lines(error: Exception | None) -> list[str]:
    assert error is not None
    return str(error).splitlines()


@quick
@given(st.dictionaries(TEXTS, TEXTS, max_size=3), st.dictionaries(TEXTS, TEXTS, max_size=3), TEXTS)
def test_rows_are_packed_and_equal_heads_mean_equal_rows(
    leaves: dict[str, str], others: dict[str, str], fault: str
) -> None:
    rows = tuple(Row("dp=0", name, content) for name, content in leaves.items())
    held = Holdings(rows, ("dp=0",), fault)
    assert Holdings.unpacked(held.packed()) == held
    assert len(held.head()) == HEAD_BYTES
    assert details_length(held.head()) == len(held.packed())
    backwards = Holdings(rows[::-1], ("dp=0",), fault)
    assert backwards.head()[:-9] == held.head()[:-9]
    other = Holdings(tuple(Row("dp=0", *leaf) for leaf in others.items()), ("dp=0",))
    assert heads_conflict([held.head(), other.head()]) == (bool(fault) or leaves != others)


# ---------------------------------------------------------------- batches


@quick
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("0123")), min_size=4, max_size=4))
def test_a_conflict_is_a_pair_of_ranks_with_wrong_equality(ranks: list[tuple[str, str]]) -> None:
    wrong = any((a[0] == b[0]) != (a[1] == b[1]) for a, b in product(ranks, ranks))
    holdings = {rank: batch(index, x=content) for rank, (index, content) in enumerate(ranks)}
    heads = [held.head() for held in holdings.values()]
    assert heads_conflict(heads, distinct=True) == wrong
    assert (batch_conflict(LAYOUT, holdings) is not None) == wrong


def test_ranks_that_share_samples_have_different_batches() -> None:
    assert lines(batch_conflict(LAYOUT, batches(LAYOUT, "abcc", "dp")))[:4] == [
        "ranks that share samples have different batches.",
        "  x differs at dp=0.",
        "  rank 0 (dp=0 sp=0):  a",
        "  rank 1 (dp=0 sp=1):  b",
    ]
    assert lines(batch_conflict(LAYOUT, batches(LAYOUT, "aaab")))[1] == "  x differs."


def test_many_ranks_are_summarized() -> None:
    layout = Layout(dp=2, sp=3, tp=2)
    assert lines(batch_conflict(layout, batches(layout, "aaaaaabbbbbc", "dp")))[1:4] == [
        "  x differs at dp=1.",
        "  ranks 6-10 (dp=1 sp=0 tp=0; dp=1 sp=0 tp=1; dp=1 sp=1 tp=0; dp=1 sp=1 tp=1; "
        "and 1 more):  b",
        "  rank 11 (dp=1 sp=2 tp=1):  c",
    ]
    layout = Layout(dp=1, sp=20)
    text = lines(batch_conflict(layout, batches(layout, "abcdefghijklmnopqrst", "dp")))
    assert (len(text), text[-2]) == (12, "  and 12 more.")


def test_a_missing_key_and_the_number_of_other_conflicts() -> None:
    holdings = {
        0: batch("dp=0", x="a"),
        1: batch("dp=0", x="a", y="b", z="c"),
        2: batch("dp=1", x="a", y="d", z="c"),
        3: batch("dp=1", x="a", y="b", z="c"),
    }
    assert lines(batch_conflict(LAYOUT, holdings))[1:5] == [
        "  y differs at dp=0.",
        "  rank 0 (dp=0 sp=0):  missing",
        "  rank 1 (dp=0 sp=1):  b",
        "  The same is true for 1 other leaf and 1 other data coordinate.",
    ]


def test_data_coordinates_have_equal_batches() -> None:
    layout = Layout(dp=3, sp=2)
    assert lines(batch_conflict(layout, batches(layout, "aabbaa", "dp")))[:2] == [
        "data coordinates that must differ have equal batches.",
        "  Equal in every leaf: dp=0 (ranks 0-1) and dp=2 (ranks 4-5).",
    ]
    layout = Layout(dp=8)
    assert lines(batch_conflict(layout, batches(layout, "aaaaaaaa", "dp")))[1] == (
        "  Equal in every leaf: dp=0 (rank 0), dp=1 (rank 1), dp=2 (rank 2), dp=3 (rank 3) "
        "and 4 more."
    )


# ---------------------------------------------------------------- parameters


def model(*names: str, kind: str = "float32 (2,)", part: str = "", **changes: Any) -> Holdings:
    digest, is_expert = changes.get("digest", "00"), changes.get("is_expert", False)
    rows = []
    for name in names:
        rows.append(Row("form", name, kind, is_expert))
        rows.append(Row(f"bytes {part}", name, f"{kind} {digest}", is_expert))
    return Holdings(tuple(rows), ("form",))


models = st.lists(
    st.builds(
        model,
        st.sampled_from(["a", "b"]),
        kind=st.sampled_from(["float32 (2,)", "int8 (2,)"]),
        part=st.sampled_from(["", "part 0", "part 1"]),
        digest=st.sampled_from(["00", "11"]),
    ),
    unique_by=lambda held: held.rows[0].name,
    max_size=2,
).map(lambda several: Holdings(tuple(row for held in several for row in held.rows), ("form",)))


def disagree(by_rank: list[Holdings]) -> bool:
    """Return whether two ranks disagree, pair by pair."""
    for own, other in product(by_rank, by_rank):
        theirs = {(row.ranks, row.name): row.content for row in other.rows}
        for row in own.rows:
            content = theirs.get((row.ranks, row.name))
            if content != row.content and (content or row.ranks == "form"):
                return True
    return False


@quick
@given(st.lists(models, min_size=4, max_size=4))
def test_an_error_exactly_if_two_ranks_disagree(by_rank: list[Holdings]) -> None:
    error = parameter_conflict(LAYOUT, AXES, dict(enumerate(by_rank)))
    assert (error is not None) == disagree(by_rank)
    if error:  # the heads may also differ without an error: then the details find none
        assert heads_conflict([held.head() for held in by_rank])


def test_more_classes_than_slots_need_the_details() -> None:
    parts = [model(str(i), part=str(i)) for i in range(SLOTS)]
    many = Holdings(tuple(row for part in parts for row in part.rows), ("form",))
    assert len(many.head()) == HEAD_BYTES
    assert heads_conflict([many.head()])
    assert parameter_conflict(LAYOUT, AXES, dict.fromkeys(range(4), many)) is None


def test_a_fault_of_one_rank_is_the_error_of_all() -> None:
    by_rank = dict.fromkeys(range(4), model("a")) | {2: Holdings((), fault="a cannot be read")}
    assert heads_conflict([by_rank[rank].head() for rank in by_rank])
    error = parameter_conflict(LAYOUT, AXES, by_rank)
    assert lines(error)[0].endswith("a cannot be read, on rank 2 (dp=1 sp=0).")
    assert lines(batch_conflict(LAYOUT, by_rank))[0] == "a cannot be read, on rank 2 (dp=1 sp=0)."
