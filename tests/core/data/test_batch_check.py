"""Which ranks hold equal batches, beside all pairs compared one by one."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import BatchError, Layout
from meshkit.core.call import Call, Verbatim
from meshkit.core.data.batch_check import (
    BatchDigest,
    batch_conflict_error,
    data_coordinates,
    digests_conflict,
)

quick = settings(deadline=None, max_examples=60, database=None)
CALL = Call("mesh.check_batch", (Verbatim("batch"),))
LAYOUT = Layout(dp=2, sp=2)
WORDS = st.text('ab"\n\u00e9\ud800', max_size=4)
LEAVES = st.dictionaries(WORDS, WORDS, max_size=3)


def told(
    layout: Layout, held: dict[int, BatchDigest], data: tuple[str, ...] = ("dp",)
) -> list[str]:
    error = batch_conflict_error(layout, data, held)
    assert isinstance(error, BatchError)
    return str(error).splitlines()


def rows(*names: str) -> dict[int, BatchDigest]:
    """One leaf a rank."""
    return {
        rank: BatchDigest({"batch['x']": f"int64 (2,) {name}"}) for rank, name in enumerate(names)
    }


def test_a_data_coordinate_in_words() -> None:
    layout = Layout(dp=2, ep=2, sp=2)
    assert data_coordinates(layout, ("dp", "ep"))[5] == "dp=1 ep=0"
    assert set(data_coordinates(layout, ()).values()) == {""}
    placed = Layout(dp=2, ranks=[3, 1])
    assert list(data_coordinates(placed, ("dp",)).items()) == [(3, "dp=0"), (1, "dp=1")]


@quick
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=7))
def test_a_fault_is_a_pair_that_is_not_as_it_should_be(ranks: list[tuple[str, int]]) -> None:
    where = {rank: place for rank, (place, _) in enumerate(ranks)}
    digests = {rank: digest for rank, (_, digest) in enumerate(ranks)}
    wrong = any(
        (where[a] == where[b]) != (digests[a] == digests[b]) for a, b in combinations(where, 2)
    )
    assert digests_conflict(digests, where) == wrong


@quick
@given(LEAVES, LEAVES, WORDS)
def test_there_and_back_and_equal_digests_mean_equal_batches(
    leaves: dict[str, str], others: dict[str, str], fault: str
) -> None:
    one, other = BatchDigest(leaves, fault), BatchDigest(others)
    assert BatchDigest.unpacked(one.packed()) == one
    backwards = BatchDigest(dict(reversed(leaves.items())), fault)
    assert backwards.digest() == one.digest()
    assert len(one.digest()) == 32
    assert (BatchDigest(leaves).digest() == other.digest()) == (leaves == others)


def test_ranks_that_share_samples_hold_different_ones() -> None:
    assert told(LAYOUT, rows("a", "b", "c", "c")) == [
        "mesh.check_batch(batch): ranks that share samples hold different ones.",
        "  batch['x'] differs at dp=0.",
        "  rank 0 (dp=0 sp=0):  int64 (2,) a",
        "  rank 1 (dp=0 sp=1):  int64 (2,) b",
        "  Fix: read by the data coordinate, not by the rank: mesh.sampler(dataset, plan); "
        "and check before sp cuts the batch.",
    ]


def test_many_ranks_are_told_together() -> None:
    lines = told(Layout(dp=2, sp=3, tp=2), rows(*"aaaaaa", *"bbbbbc"))
    assert lines[1:4] == [
        "  batch['x'] differs at dp=1.",
        "  ranks 6-10 (dp=1 sp=0 tp=0; dp=1 sp=0 tp=1; dp=1 sp=1 tp=0; dp=1 sp=1 tp=1; "
        "and 1 more):  int64 (2,) b",
        "  rank 11 (dp=1 sp=2 tp=1):  int64 (2,) c",
    ]
    lines = told(Layout(dp=1, sp=20), rows(*"abcdefghijklmnopqrst"))
    assert len(lines) == 2 + 8 + 1 + 1
    assert lines[-2] == "  and 12 more."


def test_another_key_and_how_many_more() -> None:
    whole, part = {"batch['x']": "a", "batch['y']": "b", "batch['z']": "c"}, {"batch['x']": "a"}
    held = {
        0: BatchDigest(part),
        1: BatchDigest(whole),
        2: BatchDigest({**whole, "batch['y']": "d"}),
        3: BatchDigest(whole),
    }
    lines = told(LAYOUT, held)
    assert lines[1:5] == [
        "  batch['y'] differs at dp=0.",
        "  rank 0 (dp=0 sp=0):  not there",
        "  rank 1 (dp=0 sp=1):  b",
        "  So it is with 1 other leaf and 1 other data coordinate.",
    ]
    three = {0: BatchDigest({}), 1: BatchDigest(whole), 2: BatchDigest({}), 3: BatchDigest({})}
    assert told(LAYOUT, three)[4] == "  So it is with 2 other leaves."


def test_data_coordinates_hold_the_same() -> None:
    assert told(Layout(dp=3, sp=2), rows(*"aabbaa")) == [
        "mesh.check_batch(batch): data coordinates that must differ hold the same samples.",
        "  Equal in every leaf: dp=0 (ranks 0-1) and dp=2 (ranks 4-5).",
        "  Fix: give each data coordinate its own samples: mesh.sampler(dataset, plan).",
    ]
    line = told(Layout(dp=8), rows(*"aaaaaaaa"))[1]
    assert line == (
        "  Equal in every leaf: dp=0 (rank 0), dp=1 (rank 1), dp=2 (rank 2), dp=3 (rank 3) "
        "and 4 more."
    )


def test_all_ranks_share_where_no_axis_divides() -> None:
    lines = told(LAYOUT, rows(*"aaab"), data=())
    assert lines[1] == "  batch['x'] differs."


def test_what_cannot_be_compared_comes_first() -> None:
    held = {**rows("a", "b", "c", "d"), 2: BatchDigest({}, "batch['m'] is a set")}
    assert told(LAYOUT, held) == [
        "mesh.check_batch(batch): batch['m'] is a set, on rank 2 (dp=1 sp=0).",
        "  Compared are tensors and int, float, str, bytes, bool and None, in dicts, lists and "
        "tuples.",
        "  Fix: check the part of the batch that is made of these.",
    ]
