"""The text of a disagreement: the requests, the ranks, the fix."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from meshkit.core.errors import format_error
from meshkit.core.report.disagreement import (
    FIXES,
    describe_disagreement,
    differing_fields,
    group_equal_requests,
)

MESH = "ranks disagree about the mesh; no process group was created."
REQUEST = {"call": "build_mesh", "sizes": "dp=4 sp=2 tp=1", "timeout": "default"}


def lines_of(
    odd: Mapping[int, Mapping[str, str]], missing: list[int] | None = None, ranks: int = 8
) -> list[str]:
    requests = {rank: {**REQUEST, **odd.get(rank, {})} for rank in range(ranks)}
    requests = {rank: one for rank, one in requests.items() if rank not in (missing or [])}
    where = {rank: f"host {'ab'[rank % 2]}, pid {300 + rank}" for rank in requests}
    evidence, fix = describe_disagreement(requests, where, missing or [])
    return format_error(MESH, *evidence, fix=fix).splitlines()


def test_one_rank_with_other_sizes() -> None:
    assert lines_of({4: {"sizes": "dp=2 sp=4 tp=1"}}) == [
        "ranks disagree about the mesh; no process group was created.",
        "  ranks 0-3 and 5-7:  dp=4 sp=2 tp=1",
        "  rank 4 (host a, pid 304):  dp=2 sp=4 tp=1",
        "  Fix: pass equal sizes on every rank.",
    ]


def test_another_field_is_named_beside_the_sizes() -> None:
    assert lines_of({1: {"timeout": "30 s"}, 2: {"timeout": "60 s"}}) == [
        MESH,
        "  ranks 0, 3-7:  dp=4 sp=2 tp=1, timeout=default".replace("0, 3", "0 and 3"),
        "  rank 1 (host b, pid 301):  dp=4 sp=2 tp=1, timeout=30 s",
        "  rank 2 (host a, pid 302):  dp=4 sp=2 tp=1, timeout=60 s",
        "  Fix: pass equal timeout on every rank.",
    ]


def test_a_large_minority_is_shown_by_its_first() -> None:
    odd = {rank: {"sizes": "dp=8"} for rank in range(2, 8)}
    lines = lines_of(odd)
    assert lines[1] == "  ranks 2-7:  dp=8"
    assert lines[2] == "  ranks 0-1 (host a, pid 300; host b, pid 301):  dp=4 sp=2 tp=1"
    odd = {rank: {"sizes": "dp=8"} for rank in range(9, 16)}
    assert lines_of(odd, ranks=16)[2].startswith("  ranks 9-15 (host b, pid 309; ")
    assert lines_of(odd, ranks=16)[2].endswith("; and 3 more):  dp=8")


def test_who_is_not_there_is_told_too() -> None:
    assert lines_of({1: {"sizes": "dp=8"}}, missing=[3, 5])[-2] == "  Missing: ranks 3 and 5."


def test_very_many_requests_are_cut_short() -> None:
    lines = lines_of({rank: {"sizes": f"dp={rank}"} for rank in range(20)}, ranks=20)
    assert len(lines) == 1 + 8 + 1 + 1
    assert lines[-2] == "  and 12 more."


def test_the_fix_is_that_of_the_first_field_that_has_one() -> None:
    odd = {"call": "mesh.agree", "torch": "2.6.0", "history": "7 groups"}
    assert lines_of({0: odd})[-1] == f"  Fix: {FIXES['call']}"
    assert (
        lines_of({0: {"history": "7 groups", "timeout": "1 s"}})[-1] == f"  Fix: {FIXES['history']}"
    )
    assert lines_of({0: {"timeout": "1 s", "sizes": "dp=8"}})[-1] == (
        "  Fix: pass equal sizes and timeout on every rank."
    )


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
    assert differing_fields([request for request, _ in groups]) == (
        ["a"] if len(groups) > 1 else []
    )
