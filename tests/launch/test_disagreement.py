"""The text of a disagreement: the requests, the ranks, the fix."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshkit.launch.disagreement import (
    FIXES,
    describe_disagreement,
    differing_fields,
    group_equal_requests,
)

REQUEST = {"call": "build_mesh", "sizes": "dp=4 sp=2 tp=1", "timeout": "default"}


def lines_of(odd: Mapping[int, Mapping[str, str]], *missing: int, ranks: int = 8) -> list[str]:
    """Return the evidence and the fix if some ranks request other values."""
    every = {rank: {**REQUEST, **odd.get(rank, {})} for rank in range(ranks)}
    requests = {rank: request for rank, request in every.items() if rank not in missing}
    where = {rank: f"host {'ab'[rank % 2]}, pid {300 + rank}" for rank in requests}
    evidence, fix = describe_disagreement(requests, where, missing)
    return [*evidence, fix]


@pytest.mark.parametrize(
    ("odd", "lines"),
    [
        (
            {4: {"sizes": "dp=2 sp=4 tp=1"}},
            [
                "ranks 0-3 and 5-7:  dp=4 sp=2 tp=1",
                "rank 4 (host a, pid 304):  dp=2 sp=4 tp=1",
                "pass equal sizes on every rank.",
            ],
        ),
        (
            {4: {"sizes": "dp=2 sp=4 tp=1", "crossing": "sp=warn"}},  # it follows from the sizes
            [
                "ranks 0-3 and 5-7:  dp=4 sp=2 tp=1",
                "rank 4 (host a, pid 304):  dp=2 sp=4 tp=1",
                "pass equal sizes on every rank.",
            ],
        ),
        (
            {1: {"timeout": "30 s"}, 2: {"timeout": "60 s"}},
            [
                "ranks 0 and 3-7:  dp=4 sp=2 tp=1, timeout=default",
                "rank 1 (host b, pid 301):  dp=4 sp=2 tp=1, timeout=30 s",
                "rank 2 (host a, pid 302):  dp=4 sp=2 tp=1, timeout=60 s",
                "pass equal timeout on every rank.",
            ],
        ),
        (
            {rank: {"sizes": "dp=8"} for rank in range(2, 8)},
            [
                "ranks 2-7:  dp=8",
                "ranks 0-1 (host a, pid 300; host b, pid 301):  dp=4 sp=2 tp=1",
                "pass equal sizes on every rank.",
            ],
        ),
    ],
    ids=["sizes", "sizes and what follows", "timeouts", "a large minority"],
)
def test_the_lines_of_a_disagreement(
    odd: Mapping[int, Mapping[str, str]], lines: list[str]
) -> None:
    assert lines_of(odd) == lines


def test_many_ranks_and_many_requests_are_cut_short() -> None:
    half = lines_of({rank: {"sizes": "dp=8"} for rank in range(9, 16)}, ranks=16)[1]
    assert half.startswith("ranks 9-15 (host b, pid 309; ")
    assert half.endswith("; and 3 more):  dp=8")
    lines = lines_of({rank: {"sizes": f"dp={rank}"} for rank in range(20)}, ranks=20)
    assert len(lines) == 8 + 1 + 1
    assert lines[-2] == "and 12 more."
    assert lines_of({1: {"sizes": "dp=8"}}, 3, 5)[-2] == "Missing: ranks 3 and 5."


def test_the_fix_is_that_of_the_first_field_that_has_one() -> None:
    others = {"torch": "2.6.0", "history": "7 groups", "timeout": "1 s", "sizes": "dp=8"}
    assert lines_of({0: others | {"call": "mesh.agree"}})[-1] == FIXES["call"]
    assert lines_of({0: {"history": "7 groups", "timeout": "1 s"}})[-1] == FIXES["history"]
    both = lines_of({0: {"timeout": "1 s", "sizes": "dp=8"}})[-1]
    assert both == "pass equal sizes and timeout on every rank."


@pytest.mark.parametrize(
    ("sizes", "fix"),
    [
        ("4454", "export WORLD_SIZE=4 on rank 2, or pass world_size=4."),
        ("454564", "pass equal world_size on every rank."),  # no size has most ranks
        ("4445553", "pass equal world_size on every rank."),
        ("44447853", "pass equal world_size on every rank."),
        ("444483", "export WORLD_SIZE=4 on ranks 4-5, or pass world_size=4."),
    ],
)
def test_a_wrong_world_size_names_the_variable_and_the_rank(sizes: str, fix: str) -> None:
    requests = {rank: {"call": "init()", "world_size": size} for rank, size in enumerate(sizes)}
    assert describe_disagreement(requests, {}, ())[1] == fix


REQUESTS = st.dictionaries(
    st.integers(0, 30), st.fixed_dictionaries({"a": st.sampled_from("xy"), "b": st.just("z")})
)


@given(REQUESTS)
def test_every_rank_is_in_one_group_and_equal_requests_are_one(
    requests: dict[int, dict[str, str]],
) -> None:
    groups = group_equal_requests(requests)
    assert sorted(rank for _, ranks in groups for rank in ranks) == sorted(requests)
    assert all(requests[rank] == request for request, ranks in groups for rank in ranks)
    assert len({str(request) for request, _ in groups}) == len(groups)
    assert differing_fields([request for request, _ in groups]) == ["a"] * (len(groups) > 1)
