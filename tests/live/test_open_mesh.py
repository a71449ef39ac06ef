"""All ranks compare their requests before a group exists."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.core.call import Call
from meshkit.core.group_plan import GroupPlan
from meshkit.launch.job import require_job
from meshkit.launch.round import Round
from meshkit.live import open_mesh
from meshkit.live.group_registry import NO_GROUPS, GroupRegistry
from meshkit.live.groups import GroupOptions, GroupTimeouts
from meshkit.live.open_mesh import MeshProposal
from tests.live.faults import fail_new_group
from tests.live.newer_torch import needs_order

SLACK = 5.0  # seconds; a disagreement is raised as soon as all ranks have arrived, in ms


ABOUT = "ranks disagree about the mesh; no process group was created."


def list_compared_fields() -> list[str]:
    meshkit.init()
    call, plan = Call("build_mesh"), GroupPlan.of(meshkit.Layout(dp=1))
    options = GroupOptions(None, GroupTimeouts(None), {"tp": "warn"})
    proposed = MeshProposal(plan, require_job(), options, GroupRegistry(call), call)
    return ["call", *proposed.fields()]


# Options or faults of the odd rank, so that one field of its request differs.
PASSED: dict[str, dict[str, Any]] = {
    "sizes": {"dp": -1, "sp": 1},
    "ranks": {"ranks": "reversed"},
    "groups": {"groups": ["sp dp"]},
    "crossing": {"crossing": {"sp": "warn"}},
    "place": {"place": "one node"},
    "backend": {"backend": "cpu:gloo"},
    "timeout": {"timeout": 77, "arrival_timeout": 60},
    "arrival_timeout": {"arrival_timeout": 50},
}


Fields = dict[str, str]
ARRIVE = Round.arrive


ALTERED = ("call", "meshkit", "torch", "history")


def test_the_tests_perturb_every_field_of_a_request() -> None:
    (fields,) = meshkit.spawn(list_compared_fields, 1)
    assert set(fields) == {*PASSED, *ALTERED}


Refusal = tuple[str, str, dict[int, str], float]


def time_error(call: Any) -> Refusal | str:
    """Return the error that a call raises and the seconds until then, or 'built'."""
    began = time.monotonic()
    try:
        call()
    except meshkit.MeshkitError as error:
        requests = dict(getattr(error, "requests", {}))
        return type(error).__name__, str(error), requests, time.monotonic() - began
    return "built"


def patch_requests(patch: pytest.MonkeyPatch, change: Callable[[Fields], Fields]) -> None:
    """Let this rank arrive with another request; a later patch replaces this one."""

    def changed(round: Round, facts: Fields, **options: Any) -> None:
        ARRIVE(round, change(facts), **options)

    patch.setattr(Round, "arrive", changed)


def alter_field(patch: pytest.MonkeyPatch, field: str) -> None:
    """Change one field of this rank's request, until the patch is undone."""
    if field == "meshkit":
        patch.setattr(open_mesh, "VERSION", "9.9")
    elif field == "torch":
        patch.setattr(open_mesh, "torch", SimpleNamespace(__version__="9.9"))
    elif field == "history":
        count = dist.get_pg_count
        patch.setattr(dist, "get_pg_count", lambda: count() + 1)
    else:
        patch_requests(patch, lambda old: {**old, field: "something else"})


def ask_with_one_field_perturbed(
    patch: pytest.MonkeyPatch, field: str, odd: int
) -> Callable[[], meshkit.Mesh]:
    """Return a call of build_mesh that differs in one field on the odd rank."""
    size = dist.get_world_size()
    request: dict[str, Any] = {"dp": -1, "sp": 2}
    if dist.get_rank() == odd:
        request |= PASSED.get(field, {})
        if field in ALTERED:
            alter_field(patch, field)
    if request.get("ranks") == "reversed":
        request["ranks"] = list(reversed(range(size)))
    if "place" in request:
        request["place"] = meshkit.Topology.even(size, nodes=1)
    return lambda: meshkit.build_mesh(**request)


def perturb_each_field(odd_ranks: list[int]) -> Any:
    """Perturb each field on each odd rank in turn, in one job; then build a mesh."""
    meshkit.init(arrival_timeout=60)
    groups, outcomes = dist.get_pg_count(), {}
    for field in (*PASSED, *ALTERED):
        for odd in odd_ranks:
            with pytest.MonkeyPatch.context() as patch:
                outcomes[field, odd] = time_error(ask_with_one_field_perturbed(patch, field, odd))
    left = dist.get_pg_count() - groups
    with meshkit.build_mesh(dp=-1, sp=2) as mesh:
        total = torch.ones(1)
        dist.all_reduce(total, group=mesh.group())
    return outcomes, left, int(total)


@needs_order
@pytest.mark.parametrize(("ranks", "odd"), [(2, [0, 1]), (4, [0, 1, 2, 3]), (8, [0, 5, 7])])
def test_each_field_on_each_rank_in_turn(ranks: int, odd: list[int]) -> None:
    by_rank = meshkit.spawn(perturb_each_field, ranks, (odd,), timeout=300)
    assert [(left, total) for _, left, total in by_rank] == [(0, ranks)] * ranks
    for key in by_rank[0][0]:
        field, one = key
        outcomes = [everything[key] for everything, _, _ in by_rank]
        assert len({(kind, text) for kind, text, _, _ in outcomes}) == 1, key
        kind, text, requests, _ = outcomes[0]
        assert (kind, text.splitlines()[0]) == ("DisagreementError", ABOUT)
        assert max(seconds for *_, seconds in outcomes) < SLACK
        assert set(requests) == set(range(ranks))
        assert (ranks == 2 and one == 0) or f"  rank {one} (host " in text, text
        shown = "dp=" if field == "sizes" else f"{field}="
        assert shown in text, text


def skip_each_comparison(odd: int) -> Any:
    """Perturb each field on one rank while no rank compares it; return which build fails.

    The build creates no group, since ranks that disagree would hang there.
    """
    meshkit.init(arrival_timeout=60)
    noticed = {}
    for field in (*PASSED, *ALTERED):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(open_mesh, "commit", lambda *args, **options: NO_GROUPS, raising=True)
            build = ask_with_one_field_perturbed(patch, field, odd)

            def lacking(old: Fields, field: str = field) -> Fields:
                return {name: value for name, value in old.items() if name != field}

            patch_requests(patch, lacking)
            found = time_error(build)
            noticed[field] = found if isinstance(found, str) else found[1]
    return noticed


@needs_order
def test_each_comparison_is_needed() -> None:
    """If the ranks do not compare a field, a rank that differs in it builds without an error."""
    for noticed in meshkit.spawn(skip_each_comparison, 4, (2,), timeout=120):
        assert noticed == dict.fromkeys((*PASSED, *ALTERED), "built")


def ask_for_other_sizes(odd: int) -> Any:
    meshkit.init(arrival_timeout=120)
    size = dist.get_world_size()
    sizes = {"dp": size // 2, "sp": 2} if dist.get_rank() == odd else {"dp": size}
    return time_error(lambda: meshkit.build_mesh(sizes))


def test_thirty_two_ranks() -> None:
    outcomes = meshkit.spawn(ask_for_other_sizes, 32, (17,), timeout=300)
    assert {kind for kind, *_ in outcomes} == {"DisagreementError"}
    lines = outcomes[0][1].splitlines()
    assert lines[1] == "  ranks 0-16 and 18-31:  dp=32"
    assert lines[2].startswith("  rank 17 (host ")
    assert len({text for _, text, *_ in outcomes}) == 1


def refuse_on_one_rank(odd: int, first: bool) -> Any:
    """Build an invalid mesh on the odd rank; then the same mesh on all ranks."""
    if first:
        meshkit.init(arrival_timeout=60)
    rank = meshkit.detect().rank
    sizes = {"dp": 3} if rank == odd else {"dp": 4}
    outcome = time_error(lambda: meshkit.build_mesh(sizes, arrival_timeout=60))
    with meshkit.build_mesh(dp=4, arrival_timeout=60) as mesh:
        total = torch.ones(1)
        dist.all_reduce(total, group=mesh.group("dp"))
    return outcome, int(total)


@pytest.mark.parametrize("first", [True, False], ids=["joined", "not joined yet"])
@pytest.mark.parametrize("odd", [0, 2])
def test_the_other_ranks_quote_an_invalid_request_at_once(odd: int, first: bool) -> None:
    by_rank = meshkit.spawn(refuse_on_one_rank, 4, (odd, first), timeout=120)
    assert [total for _, total in by_rank] == [4] * 4
    for rank, (outcome, _) in enumerate(by_rank):
        kind, text, _, seconds = outcome
        assert seconds < SLACK
        if rank == odd:
            assert kind == "SpecError"
            assert text.startswith("build_mesh({'dp': 3}, arrival_timeout=60) needs 3 ranks, ")
        else:
            assert kind == "DisagreementError"
            lines = text.splitlines()
            assert lines[0] == ABOUT
            assert lines[1].startswith(f"  rank {odd} (host ")
            assert "gave up: SpecError: build_mesh({'dp': 3}, arrival_timeout=60)" in lines[1]


def fail_before_creating(odd: int) -> Any:
    """Raise an error on one rank between the two agreements of a build."""
    meshkit.init(arrival_timeout=60)

    def broken(*args: Any, **options: Any) -> Any:
        raise OSError("too many open files")

    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == odd:
            patch.setattr(open_mesh, "create_groups", broken, raising=True)
        began = time.monotonic()
        try:
            meshkit.build_mesh(dp=4)  # the default group: no rank waits inside create
            outcome: Any = "built"
        except (OSError, meshkit.DisagreementError) as error:
            outcome = type(error).__name__, str(error), time.monotonic() - began
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        total = torch.ones(1)
        dist.all_reduce(total, group=mesh.group())
    return outcome, int(total)


def test_the_other_ranks_quote_a_rank_that_cannot_create_its_groups() -> None:
    by_rank = meshkit.spawn(fail_before_creating, 4, (2,), timeout=120)
    assert [total for _, total in by_rank] == [4] * 4
    kinds = [outcome[0] for outcome, _ in by_rank]
    assert kinds == ["DisagreementError", "DisagreementError", "OSError", "DisagreementError"]
    text = by_rank[0][0][1]
    assert text.startswith("a rank could not create its groups of the mesh; all are closed again.")
    assert "gave up: OSError: too many open files" in text


def fail_while_creating(odd: int, number: int, error: BaseException) -> Any:
    """Let one call of new_group fail on one rank while the others connect; then build again."""
    meshkit.init(arrival_timeout=10)
    calls: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == odd:
            calls = fail_new_group(patch, number, error, together=False)
        began = time.monotonic()
        try:
            meshkit.build_mesh(dp=2, sp=2, tp=1)
            outcome: Any = "built"
        except BaseException as caught:
            outcome = type(caught).__name__, str(caught), time.monotonic() - began
    with meshkit.build_mesh(dp=2, sp=2, tp=1) as mesh:
        return outcome, str(mesh.verify().groups[0].axes), len(calls)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize(
    "error", [RuntimeError("Gloo: too many open files"), OSError("too many open files")]
)
def test_a_group_fails_on_one_rank_while_others_connect(number: int, error: Exception) -> None:
    """The other ranks wait for one attempt, name the rank, and can build again."""
    by_rank = meshkit.spawn(fail_while_creating, 4, (1, number, error), timeout=120)
    for rank, (outcome, axes, calls) in enumerate(by_rank):
        kind, text, seconds = outcome
        assert axes == "('dp', 'sp')"
        if rank == 1:
            assert (kind, calls >= number) == (type(error).__name__, True)
        else:
            assert kind == "DisagreementError", text
            assert "rank 1 (host " in text
            assert f"gave up: {type(error).__name__}: {error}" in text
        assert seconds < 10 + 3


def agree_on_values(by_rank: list[Any], options: dict[str, Any]) -> Any:
    """Agree on a value of each rank; return the error and the descriptors that stay open."""
    with meshkit.build_mesh(**options) as mesh:
        mesh.agree("learning rate", 3e-4) if mesh.rank in mesh.layout else None
        before = len(os.listdir("/proc/self/fd"))
        outcome = time_error(lambda: mesh.agree("learning rate", by_rank[mesh.rank]))
        return outcome, len(os.listdir("/proc/self/fd")) - before


def agreed(by_rank: list[Any], **options: Any) -> list[Any]:
    return meshkit.spawn(agree_on_values, 4, (by_rank, options), timeout=120)


def test_ranks_agree_on_a_value() -> None:
    assert agreed([1e-3] * 4, dp=4) == [("built", 0)] * 4
    outcomes = agreed([1e-3, 1e-3, 2e-3, 1e-3], dp=4)
    for (kind, text, requests, _), left in outcomes:
        assert (kind, left) == ("DisagreementError", 0)
        lines = text.splitlines()
        assert lines[:2] == [
            "ranks disagree about learning rate.",
            "  ranks 0-1 and 3:  learning rate=0.001",
        ]
        assert lines[2].startswith("  rank 2 (host ")
        assert lines[2].endswith("):  learning rate=0.002")
        assert lines[3:] == ["  Fix: pass equal learning rate on every rank."]
        assert requests[2] == "call=mesh.agree learning rate=0.002"


def test_ranks_agree_on_a_value_over_a_part_of_the_world() -> None:
    outcomes = agreed([1, 2, 1, 3], dp=2, ranks=[0, 2])
    assert [one[0] for one in outcomes[::2]] == ["built", "built"]
    assert {one[0][0] for one in outcomes[1::2]} == {"CoordinateError"}


def make_different_calls(first: str, second: str) -> Any:
    """Make another call on rank 1 than on the other ranks."""
    mesh = meshkit.build_mesh(dp=-1, arrival_timeout=20)
    calls = {
        "build": lambda: meshkit.build_mesh(dp=-1, arrival_timeout=20),
        "agree": lambda: mesh.agree("step", 1),
        "other": lambda: mesh.agree("epoch", 1),
    }
    return time_error(calls[second if mesh.rank == 1 else first])


@pytest.mark.parametrize("calls", [("build", "agree"), ("agree", "other")])
def test_different_calls_raise(calls: tuple[str, str]) -> None:
    outcomes = meshkit.spawn(make_different_calls, 3, calls, timeout=60)
    assert {kind for kind, *_ in outcomes} == {"DisagreementError"}
    assert len({text for _, text, *_ in outcomes}) == 1
    assert max(seconds for *_, seconds in outcomes) < SLACK
    assert "  rank 1 (host " in outcomes[0][1]


def refuse_to_create(*_: object) -> None:
    raise meshkit.MeshkitError("torch created another group.", fix="report it.")


def build_with_one_failure() -> str:
    """Return the error of this rank, if rank 1 creates no groups."""
    world = meshkit.init()
    with pytest.MonkeyPatch.context() as patch:
        if world.rank == 1:
            patch.setattr(open_mesh, "create_groups", refuse_to_create)
        with pytest.raises(meshkit.MeshkitError) as caught:
            meshkit.build_mesh(dp=2, arrival_timeout=20)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_the_other_ranks_quote_the_call_of_the_rank_that_failed() -> None:
    other, failed = meshkit.spawn(build_with_one_failure, 2, timeout=60)
    call = "build_mesh(dp=2, arrival_timeout=20): torch created another group."
    assert failed == f"MeshkitError: {call}\n  Fix: report it."
    assert other.startswith("DisagreementError: ")
    assert f"gave up: MeshkitError: {call}\n" in other
    assert other.endswith("\n  Fix: report it.")
