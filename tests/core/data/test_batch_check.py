"""Conflicts of batches, compared with a check of all pairs of ranks; the errors of conflicts."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from meshkit import BatchError, Layout
from meshkit.core.data.batch_check import (
    BatchDigest,
    batch_conflict_error,
    data_coordinates,
    digests_conflict,
)

quick = settings(deadline=None, max_examples=60, database=None)
LAYOUT = Layout(dp=2, sp=2)
TEXTS = st.text('ab"\n\u00e9\ud800', max_size=4)
LEAVES = st.dictionaries(TEXTS, TEXTS, max_size=3)


def conflict_lines(
    layout: Layout, batches: dict[int, BatchDigest], data: tuple[str, ...] = ("dp",)
) -> list[str]:
    """Return the lines of the error of conflicting batches."""
    error = batch_conflict_error(layout, data, batches)
    assert isinstance(error, BatchError)
    return str(error).splitlines()


def make_batches(*names: str) -> dict[int, BatchDigest]:
    """Return the batches of ranks with one leaf each."""
    return {
        rank: BatchDigest({"batch['x']": f"int64 (2,) {name}"}) for rank, name in enumerate(names)
    }


def test_data_coordinates_as_text() -> None:
    layout = Layout(dp=2, ep=2, sp=2)
    assert data_coordinates(layout, ("dp", "ep"))[5] == "dp=1 ep=0"
    assert set(data_coordinates(layout, ()).values()) == {""}
    placed = Layout(dp=2, ranks=[3, 1])
    assert list(data_coordinates(placed, ("dp",)).items()) == [(3, "dp=0"), (1, "dp=1")]


@quick
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=7))
def test_a_conflict_is_a_pair_of_ranks_with_wrong_equality(ranks: list[tuple[str, int]]) -> None:
    coordinates = {rank: coordinate for rank, (coordinate, _) in enumerate(ranks)}
    digests = {rank: digest for rank, (_, digest) in enumerate(ranks)}
    wrong = any(
        (coordinates[a] == coordinates[b]) != (digests[a] == digests[b])
        for a, b in combinations(coordinates, 2)
    )
    assert digests_conflict(digests, coordinates) == wrong


@quick
@given(LEAVES, LEAVES, TEXTS)
def test_a_packed_digest_is_restored_and_equal_digests_mean_equal_batches(
    leaves: dict[str, str], others: dict[str, str], fault: str
) -> None:
    digest, other_digest = BatchDigest(leaves, fault), BatchDigest(others)
    assert BatchDigest.unpacked(digest.packed()) == digest
    backwards = BatchDigest(dict(reversed(leaves.items())), fault)
    assert backwards.digest() == digest.digest()
    assert len(digest.digest()) == 32
    assert (BatchDigest(leaves).digest() == other_digest.digest()) == (leaves == others)


def test_ranks_that_share_samples_have_different_batches() -> None:
    assert conflict_lines(LAYOUT, make_batches("a", "b", "c", "c")) == [
        "ranks that share samples have different batches.",
        "  batch['x'] differs at dp=0.",
        "  rank 0 (dp=0 sp=0):  int64 (2,) a",
        "  rank 1 (dp=0 sp=1):  int64 (2,) b",
        "  Fix: read by the data coordinate, not by the rank: mesh.sampler(dataset, plan); "
        "and check before sp cuts the batch.",
    ]


def test_many_ranks_are_summarized() -> None:
    lines = conflict_lines(Layout(dp=2, sp=3, tp=2), make_batches(*"aaaaaa", *"bbbbbc"))
    assert lines[1:4] == [
        "  batch['x'] differs at dp=1.",
        "  ranks 6-10 (dp=1 sp=0 tp=0; dp=1 sp=0 tp=1; dp=1 sp=1 tp=0; dp=1 sp=1 tp=1; "
        "and 1 more):  int64 (2,) b",
        "  rank 11 (dp=1 sp=2 tp=1):  int64 (2,) c",
    ]
    lines = conflict_lines(Layout(dp=1, sp=20), make_batches(*"abcdefghijklmnopqrst"))
    assert len(lines) == 2 + 8 + 1 + 1
    assert lines[-2] == "  and 12 more."


def test_a_missing_key_and_the_number_of_other_conflicts() -> None:
    whole, part = {"batch['x']": "a", "batch['y']": "b", "batch['z']": "c"}, {"batch['x']": "a"}
    batches = {
        0: BatchDigest(part),
        1: BatchDigest(whole),
        2: BatchDigest({**whole, "batch['y']": "d"}),
        3: BatchDigest(whole),
    }
    lines = conflict_lines(LAYOUT, batches)
    assert lines[1:5] == [
        "  batch['y'] differs at dp=0.",
        "  rank 0 (dp=0 sp=0):  missing",
        "  rank 1 (dp=0 sp=1):  b",
        "  The same is true for 1 other leaf and 1 other data coordinate.",
    ]
    three = {0: BatchDigest({}), 1: BatchDigest(whole), 2: BatchDigest({}), 3: BatchDigest({})}
    assert conflict_lines(LAYOUT, three)[4] == "  The same is true for 2 other leaves."


def test_data_coordinates_have_equal_batches() -> None:
    assert conflict_lines(Layout(dp=3, sp=2), make_batches(*"aabbaa")) == [
        "data coordinates that must differ have equal batches.",
        "  Equal in every leaf: dp=0 (ranks 0-1) and dp=2 (ranks 4-5).",
        "  Fix: give each data coordinate its own samples: mesh.sampler(dataset, plan).",
    ]
    line = conflict_lines(Layout(dp=8), make_batches(*"aaaaaaaa"))[1]
    assert line == (
        "  Equal in every leaf: dp=0 (rank 0), dp=1 (rank 1), dp=2 (rank 2), dp=3 (rank 3) "
        "and 4 more."
    )


def test_all_ranks_share_if_no_axis_divides() -> None:
    lines = conflict_lines(LAYOUT, make_batches(*"aaab"), data=())
    assert lines[1] == "  batch['x'] differs."


def test_a_leaf_of_an_invalid_type_is_reported_first() -> None:
    batches = {**make_batches("a", "b", "c", "d"), 2: BatchDigest({}, "batch['m'] is a set")}
    assert conflict_lines(LAYOUT, batches) == [
        "batch['m'] is a set, on rank 2 (dp=1 sp=0).",
        "  Batches are compared as tensors and int, float, str, bytes, bool and None, in dicts, "
        "lists and tuples.",
        "  Fix: check the part of the batch that has these types.",
    ]
