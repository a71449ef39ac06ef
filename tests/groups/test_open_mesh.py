"""All ranks compare their requests before a group exists."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import meshkit
from meshkit.call import Call
from meshkit.groups import open_mesh
from meshkit.groups.open_mesh import MeshProposal
from meshkit.groups.registry import GroupRegistry
from meshkit.groups.requests import GroupOptions, GroupTimeouts
from meshkit.launch.job import require_job
from meshkit.launch.round import Round
from meshkit.layout.group_plan import GroupPlan
from tests.faults import error_of, fail_new_group
from tests.membership import all_reduce_members
from tests.newer_torch import needs_order
from tests.pool import Pool
from tests.promises import BUSY
from tests.resources import descriptors

RANKS = 4  # of the pool

SLACK = 5.0  # seconds; a disagreement is raised as soon as all ranks have arrived, in ms


def list_compared_fields() -> list[str]:
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
    "timeout": {"timeout": 77, "arrival_timeout": 300},
    "arrival_timeout": {"arrival_timeout": 50},
}


Fields = dict[str, str]
ALTERED = ("call", "meshkit", "torch", "history")


def test_the_tests_perturb_every_field_of_a_request(pool: Pool) -> None:
    assert set(pool.run(list_compared_fields)[0]) == {*PASSED, *ALTERED}


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
        arrive = Round.arrive

        def changed(round: Round, facts: Fields, **options: Any) -> None:
            arrive(round, {**facts, field: "something else"}, **options)

        patch.setattr(Round, "arrive", changed)


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


def perturb_each_field() -> Any:
    """Perturb each field on each rank in turn; then build a mesh."""
    groups, outcomes = dist.get_pg_count(), {}
    for field in (*PASSED, *ALTERED):
        for odd in range(dist.get_world_size()):
            with pytest.MonkeyPatch.context() as patch:
                outcomes[field, odd] = time_error(ask_with_one_field_perturbed(patch, field, odd))
    assert dist.get_pg_count() == groups
    with meshkit.build_mesh(dp=-1, sp=2) as mesh:
        assert all_reduce_members(mesh) == [*range(4)]
    return outcomes


@needs_order
def test_each_field_on_each_rank_in_turn(pool: Pool) -> None:
    by_rank = pool.run(perturb_each_field, timeout=120)
    for field, odd in by_rank[0]:
        outcomes = [everything[field, odd] for everything in by_rank]
        assert len({(kind, text) for kind, text, _, _ in outcomes}) == 1, field
        kind, text, requests, _ = outcomes[0]
        assert kind == "DisagreementError"
        assert max(seconds for *_, seconds in outcomes) < SLACK
        assert set(requests) == set(range(4))
        assert f"  rank {odd} (host " in text, text
        assert ("dp=" if field == "sizes" else f"{field}=") in text, text


def refuse_on_one_rank(odd: int) -> None:
    """Build an invalid mesh on the odd rank; then the same mesh on all ranks."""
    is_odd = meshkit.detect().rank == odd
    sizes = {"dp": 3} if is_odd else {"dp": 4}
    outcome = time_error(lambda: meshkit.build_mesh(sizes, arrival_timeout=60))
    kind, text, requests, seconds = outcome
    assert seconds < SLACK
    assert kind == ("SpecError" if is_odd else "DisagreementError")
    assert "build_mesh({'dp': 3}, arrival_timeout=60)" in text
    assert is_odd or [*requests] == [odd]
    with meshkit.build_mesh(dp=4, arrival_timeout=60) as mesh:
        assert all_reduce_members(mesh, "dp") == [*range(4)]


@pytest.mark.parametrize("odd", [0, 2])
def test_the_other_ranks_quote_an_invalid_request_at_once(pool: Pool, odd: int) -> None:
    """In a job that has begun, and as the first call."""
    pool.run(refuse_on_one_rank, odd)
    meshkit.spawn(refuse_on_one_rank, 4, (odd,), timeout=120)


def fail_before_creating() -> None:
    """Raise an error on rank 2 between the two rounds of a build; then build again."""
    is_odd = dist.get_rank() == 2
    for error, quoted in (
        (OSError("too many open files"), "gave up: OSError: too many open files"),
        (meshkit.MeshkitError("odd."), "gave up: MeshkitError: build_mesh(dp=4): odd.\n"),
    ):

        def broken(*_: object, error: Exception = error, **__: object) -> None:
            raise type(error)(*error.args)

        with pytest.MonkeyPatch.context() as patch:
            if is_odd:
                patch.setattr(open_mesh, "create_groups", broken, raising=True)
            expected: Any = type(error) if is_odd else meshkit.DisagreementError
            with pytest.raises(expected) as caught:
                meshkit.build_mesh(dp=4)  # the default group: no rank waits inside create
        assert is_odd or quoted in str(caught.value)
        with meshkit.build_mesh(dp=2, sp=2) as mesh:
            assert all_reduce_members(mesh) == [*range(4)]


def test_the_other_ranks_quote_a_rank_that_cannot_create_its_groups(pool: Pool) -> None:
    pool.run(fail_before_creating)


def fail_while_creating(number: int, error: Exception) -> None:
    """Let one call of new_group fail on rank 1 while the others connect; then build again."""
    is_odd, calls = dist.get_rank() == 1, list[Any]()
    with pytest.MonkeyPatch.context() as patch:
        if is_odd:
            calls = fail_new_group(patch, number, error, together=False)
        began = time.monotonic()
        expected: Any = type(error) if is_odd else meshkit.DisagreementError
        with pytest.raises(expected) as caught:
            meshkit.build_mesh(dp=2, sp=2, tp=1, arrival_timeout=10)
        assert time.monotonic() - began < 1 + BUSY
    assert is_odd or f"gave up: {type(error).__name__}: {error}" in str(caught.value)
    assert len(calls) >= number * is_odd
    with meshkit.build_mesh(dp=2, sp=2, tp=1) as mesh:
        mesh.verify()


@pytest.mark.parametrize(
    ("number", "error"),
    [(1, RuntimeError("Gloo: too many open files")), (3, OSError("too many open files"))],
)
def test_a_group_fails_on_one_rank_while_others_connect(
    pool: Pool, number: int, error: Exception
) -> None:
    """The other ranks see that while they connect, name the rank, and can build again."""
    pool.run(fail_while_creating, number, error)


class Unprintable:
    """A value without a repr."""

    def __repr__(self) -> str:
        raise ValueError("no repr")


def agree_on_values(by_rank: list[Any], options: dict[str, Any]) -> Any:
    """Agree on a value of each rank; return the error and the descriptors that stay open."""
    with meshkit.build_mesh(**options) as mesh:
        mesh.agree("learning rate", 3e-4) if mesh.rank in mesh.layout else None
        before = descriptors()
        outcome = time_error(lambda: mesh.agree("learning rate", by_rank[mesh.rank]))
        assert descriptors() <= before  # an earlier group that failed may close its own meanwhile
        return outcome if isinstance(outcome, str) else (outcome[0], outcome[2])


def test_ranks_agree_on_a_value(pool: Pool) -> None:
    assert pool.run(agree_on_values, [1e-3] * 4, {"dp": 4}) == ["built"] * 4
    requests = dict.fromkeys(range(4), "call=mesh.agree learning rate=0.001")
    requests[2] = "call=mesh.agree learning rate=0.002"
    outcomes = pool.run(agree_on_values, [1e-3, 1e-3, 2e-3, 1e-3], {"dp": 4})
    assert outcomes == [("DisagreementError", requests)] * 4
    requests[2] = "call=mesh.agree learning rate=no repr, but ValueError"
    outcomes = pool.run(agree_on_values, [1e-3, 1e-3, Unprintable(), 1e-3], {"dp": 4})
    assert outcomes == [("DisagreementError", requests)] * 4
    outcomes = pool.run(agree_on_values, [Unprintable()] * 4, {"dp": 4})
    assert outcomes == [("SpecError", {})] * 4


def agree_on_pairs() -> tuple[list[tuple[str, Any]], int]:
    """Return the outcome for equal values and for values that differ on rank 0."""
    rank = dist.get_rank()
    first, last = set([0, 8]), set([8, 0])  # noqa: C405  # equal, with different reprs
    assert repr(first) != repr(last)
    large = torch.zeros(5000, dtype=torch.float64)
    other = large.clone()
    other[2500] = 1e-9
    equal = {
        "sets": (first, last),
        "nested": ([{"a": first, "b": (1,)}], [{"b": (1,), "a": last}]),
        "frozen": ({frozenset(first): 1}, {frozenset(last): 1}),
        "namespace": (SimpleNamespace(a=1, b=first), SimpleNamespace(b=last, a=1)),
        "tensors": ({"w": large}, {"w": large.clone()}),
        "nan": (float("nan"), float("nan")),
    }
    different = {
        "sets": (first, last | {1}),
        "types": (first, frozenset(first)),
        "digits": (torch.tensor(0.1), torch.tensor(0.1 + 1e-7)),
        "middle": ({"w": large}, {"w": other}),
        "dtype": (torch.zeros(2), torch.zeros(2).double()),
    }
    with meshkit.build_mesh(dp=4) as mesh:
        outcomes = []
        for name, (own, others) in [*equal.items(), *different.items()]:
            value = own if rank == 0 else others
            error = error_of(lambda value=value: mesh.agree("it", value))
            outcomes.append((name, error and error[0]))
        batch = {frozenset(first if rank else last): torch.zeros(1)}
        mesh.check_batch(batch, data="")
        return outcomes, len(equal)


def test_equal_values_agree_whatever_their_order(pool: Pool) -> None:
    for outcomes, equal in pool.run(agree_on_pairs):
        errors = [error for _, error in outcomes]
        assert errors == [None] * equal + ["DisagreementError"] * (len(errors) - equal), outcomes


def call_in_any_order() -> Any:
    """Make equal calls, in which rank 0 lists names in another order."""
    step = -1 if dist.get_rank() == 0 else 1
    crossing = dict.fromkeys(["dp", "tp"][::step], "allow")
    sizes = dict([("a", 4), ("b", 2)][::step])
    with (
        meshkit.build_mesh(dp=2, tp=2, crossing=crossing, groups={"tp dp"}) as mesh,
        meshkit.build_mesh(dp=2, ranks=[0, 1]) as other,
    ):
        with mesh.guard(timeout=30):
            x = mesh.redistribute(torch.ones(4, 1), "a b/tp -> a b", **sizes)
        y = mesh.redistribute(torch.ones(4, 1), "a b/tp -> a/dp b", to=other, **sizes)
        assert (y is not None) == other.inside
        return [*x.shape], mesh.peers({"tp", "dp"}).tolist()


@needs_order
def test_equal_calls_agree_whatever_the_order_of_their_names(pool: Pool) -> None:
    assert pool.run(call_in_any_order) == [([4, 2], [0, 1, 2, 3])] * RANKS


def test_ranks_agree_on_a_value_over_a_part_of_the_world(pool: Pool) -> None:
    outcomes = pool.run(agree_on_values, [1, 2, 1, 3], {"dp": 2, "ranks": [0, 2]})
    assert outcomes[::2] == ["built", "built"]
    assert [outcome[0] for outcome in outcomes[1::2]] == ["CoordinateError"] * 2


def build_in_threads() -> None:
    """Build one mesh in two threads, and sum over the group of each."""
    build = partial(meshkit.build_mesh, dp=2, tp=2)
    with ThreadPoolExecutor(2) as threads:
        meshes = [thread.result() for thread in [threads.submit(build), threads.submit(build)]]
    for mesh in meshes:
        with mesh:
            dist.all_reduce(total := torch.ones(()), group=mesh.group())
            assert total == 4


def test_two_threads_build_one_mesh(pool: Pool) -> None:
    pool.run(build_in_threads)
