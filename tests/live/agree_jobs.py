"""What the ranks of test_agree run: one of them asks for something else."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.core.call import Call
from meshkit.launch.record import joined
from meshkit.live import agree, assemble, create
from meshkit.live.limits import Limits
from meshkit.live.shared import NONE, Shared
from meshkit.live.terms import Terms

Told = tuple[str, str, dict[int, str], float]

# What the odd rank passes, or what is altered there, so that one field of its request differs.
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
ALTERED = ("call", "meshkit", "torch", "history")


def caught(call: Any) -> Told | str:
    """What a call raises, and after how many seconds."""
    began = time.monotonic()
    try:
        call()
    except meshkit.MeshkitError as error:
        requests = dict(getattr(error, "requests", {}))
        return type(error).__name__, str(error), requests, time.monotonic() - began
    return "built"


def alter(field: str) -> Any:
    """Change what one field of this rank's request says; returns how to undo it."""
    plain = agree.request

    def altered(*args: Any) -> dict[str, str]:
        return {**plain(*args), field: "something else"}

    if field == "meshkit":
        agree.VERSION, version = "9.9", agree.VERSION
        return lambda: setattr(agree, "VERSION", version)
    if field == "torch":
        agree.torch = SimpleNamespace(__version__="9.9")
        return lambda: setattr(agree, "torch", torch)
    if field == "history":
        count = dist.get_pg_count
        dist.get_pg_count = lambda: count() + 1
        return lambda: setattr(dist, "get_pg_count", count)
    agree.request = altered
    return lambda: setattr(agree, "request", plain)


def each_field_on_each_rank(odd_ranks: list[int]) -> Any:
    """Every field perturbed on every rank in turn, in one job; then a mesh that works."""
    meshkit.init(arrival_timeout=60)
    rank, size = dist.get_rank(), dist.get_world_size()
    groups, told = dist.get_pg_count(), {}
    for field in (*PASSED, *ALTERED):
        for odd in odd_ranks:
            asked: dict[str, Any] = {"dp": -1, "sp": 2}
            if rank == odd:
                asked |= PASSED.get(field, {})
            if asked.get("ranks") == "reversed":
                asked["ranks"] = list(reversed(range(size)))
            if "place" in asked:
                asked["place"] = meshkit.Topology.even(size, nodes=1)
            undo = alter(field) if rank == odd and field in ALTERED else lambda: None
            told[field, odd] = caught(lambda asked=asked: meshkit.build_mesh(**asked))
            undo()
    left = dist.get_pg_count() - groups
    with meshkit.build_mesh(dp=-1, sp=2) as mesh:
        total = torch.ones(1)
        dist.all_reduce(total, group=mesh.group())
    return told, left, int(total)


def without_each_comparison(odd: int) -> Any:
    """Each field perturbed on one rank, where no rank compares it: who notices?

    Nothing is created, as ranks that disagree would hang in there.
    """
    meshkit.init(arrival_timeout=60)
    create, plain = assemble.on_all, agree.request
    assemble.on_all = lambda *args, **options: NONE
    noticed = {}
    for field in (*PASSED, *ALTERED):
        asked: dict[str, Any] = {"dp": -1, "sp": 2}
        if dist.get_rank() == odd:
            asked |= PASSED.get(field, {})
        if asked.get("ranks") == "reversed":
            asked["ranks"] = list(reversed(range(dist.get_world_size())))
        if "place" in asked:
            asked["place"] = meshkit.Topology.even(dist.get_world_size(), nodes=1)
        undo = alter(field) if dist.get_rank() == odd and field in ALTERED else lambda: None
        compared = agree.request

        def lacking(*args: Any, field: str = field, compared: Any = compared) -> dict[str, str]:
            return {name: value for name, value in compared(*args).items() if name != field}

        agree.request = lacking
        found = caught(lambda asked=asked: meshkit.build_mesh(**asked))
        noticed[field] = found if isinstance(found, str) else found[1]
        agree.request = plain
        undo()
        agree.request = plain
    assemble.on_all = create
    return noticed


def refused_sizes(odd: int) -> Any:
    meshkit.init(arrival_timeout=120)
    size = dist.get_world_size()
    sizes = {"dp": size // 2, "sp": 2} if dist.get_rank() == odd else {"dp": size}
    return caught(lambda: meshkit.build_mesh(sizes))


def fields_compared() -> list[str]:
    meshkit.init()
    record = joined()
    assert record is not None
    plan = meshkit.GroupPlan.of(meshkit.Layout(dp=1))
    terms = Terms(None, Limits(None), None)
    return list(agree.request(Call("build_mesh"), plan, record, terms, Shared()))


def refused_on(odd: int, first: bool) -> Any:
    """The odd rank's own request cannot be; then all ask for the same."""
    if first:
        meshkit.init(arrival_timeout=60)
    rank = meshkit.detect().rank
    sizes = {"dp": 3} if rank == odd else {"dp": 4}
    told = caught(lambda: meshkit.build_mesh(sizes, arrival_timeout=60))
    with meshkit.build_mesh(dp=4, arrival_timeout=60) as mesh:
        total = torch.ones(1)
        dist.all_reduce(total, group=mesh.group("dp"))
    return told, int(total)


def one_cannot_create(odd: int) -> Any:
    """An exception on one rank between the two meetings of a build."""
    meshkit.init(arrival_timeout=60)
    plain = assemble.create

    def broken(*args: Any, **options: Any) -> Any:
        raise OSError("too many open files")

    if dist.get_rank() == odd:
        assemble.create = broken
    began = time.monotonic()
    try:
        meshkit.build_mesh(dp=4)  # the default group: nobody waits inside create
        told: Any = "built"
    except (OSError, meshkit.DisagreementError) as error:
        told = type(error).__name__, str(error), time.monotonic() - began
    assemble.create = plain
    with meshkit.build_mesh(dp=2, sp=2) as mesh:
        total = torch.ones(1)
        dist.all_reduce(total, group=mesh.group())
    return told, int(total)


def one_group_fails(odd: int, number: int, error: BaseException) -> Any:
    """The n-th new_group fails on one rank, while the others connect; then all build again."""
    meshkit.init(arrival_timeout=10)
    real, calls = dist.new_group, []

    def failing(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) == number:
            raise error
        return real(*args, **options)

    if dist.get_rank() == odd:
        create.dist.new_group = failing
    began = time.monotonic()
    try:
        meshkit.build_mesh(dp=2, sp=2, tp=1)
        told: Any = "built"
    except BaseException as caught:
        told = type(caught).__name__, str(caught), time.monotonic() - began
    create.dist.new_group = real
    with meshkit.build_mesh(dp=2, sp=2, tp=1) as mesh:
        return told, str(mesh.verify().groups[0].axes), len(calls)


def values(by_rank: list[Any], options: dict[str, Any]) -> Any:
    """mesh.agree on values of the caller's own, and what it leaves open."""
    with meshkit.build_mesh(**options) as mesh:
        mesh.agree("learning rate", 3e-4) if mesh.rank in mesh.layout else None
        before = len(os.listdir("/proc/self/fd"))
        told = caught(lambda: mesh.agree("learning rate", by_rank[mesh.rank]))
        return told, len(os.listdir("/proc/self/fd")) - before


def different_calls(first: str, second: str) -> Any:
    """Rank 1 makes another call than the others."""
    mesh = meshkit.build_mesh(dp=-1, arrival_timeout=20)
    calls = {
        "build": lambda: meshkit.build_mesh(dp=-1, arrival_timeout=20),
        "agree": lambda: mesh.agree("step", 1),
        "other": lambda: mesh.agree("epoch", 1),
    }
    return caught(calls[second if mesh.rank == 1 else first])
