"""What the ranks of test_faults run. No pytest here: every child imports this."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.launch import join
from meshkit.live import assemble, create
from meshkit.live.guard import guard, roll_call
from meshkit.testing.faults import Strike

GUARD = 3.0  # seconds of a collective inside the guard


def struck(strike: Strike, point: str, how: str, odd: int, limit: float, method: str | None) -> Any:
    """A job from init to a collective, in which one rank is struck at some point."""
    who = meshkit.detect()
    hit: Callable[[], None] = {"kill": strike.kill, "stop": strike.stop}[how]
    mine = who.rank == odd
    if mine and point == "before init":
        hit()
    if mine and point == "init, agreed":
        join.together = first(hit, join.together)  # type: ignore[attr-defined]
    wait = limit if point in ("before init", "init, agreed") else 60
    meshkit.init(arrival_timeout=wait, **({"init_method": method} if method else {}))
    if mine and point == "before build":
        time.sleep(1)  # the others have left init
        hit()
    if mine and point == "agreed":
        assemble.on_all = first(hit, assemble.on_all)
    if mine and point == "made":
        assemble.create = then(hit, assemble.create)
    if point == "creating":
        slow(strike, hit, odd, who.world_size)
    # a timeout of its own, so that the default group does not stand for it: two groups are made
    mesh = meshkit.build_mesh(dp=-1, sp=2, timeout=600, arrival_timeout=limit)
    with mesh, mesh.guard(timeout=GUARD):
        for step in range(3):
            if mine and step == 2:
                hit()
            dist.all_reduce(torch.ones(1), group=mesh.group())
    return "through"


def first(fault: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any, **options: Any) -> Any:
        fault()
        return call(*args, **options)

    return changed


def then(fault: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*args: Any, **options: Any) -> Any:
        made = call(*args, **options)
        fault()
        return made

    return changed


def slow(strike: Strike, fault: Callable[[], None], odd: int, count: int) -> None:
    """The odd rank is struck while it waits, inside new_group, for one that comes late."""
    real, late = dist.new_group, (odd + 1) % count

    def changed(*args: Any, **options: Any) -> Any:
        rank = dist.get_rank()
        if rank == late:
            time.sleep(1)
        elif rank == odd:
            strike.later(0.4, fault)
        return real(*args, **options)

    create.dist.new_group = changed


def caller_dies(strike: Strike) -> Any:
    """Rank 0 sleeps; who calls the roll for it dies before the report is written."""
    mesh = meshkit.build_mesh(dp=-1)

    def dies(*args: Any) -> Any:
        strike.kill()

    gathered = roll_call._gather_report
    if mesh.rank:
        roll_call._gather_report = lambda site, keys, *more: (
            dies()
            if keys.compare_set("first", "", str(site.rank)) == str(site.rank).encode()
            else gathered(site, keys, *more)
        )
    with mesh.guard(timeout=2):
        if mesh.rank == 0:
            time.sleep(12)
        dist.all_reduce(torch.ones(1), group=mesh.group())


def slow_to_ask(strike: Strike, method: str, limit: float | None) -> Any:
    """Rank 2 dies. Rank 1 gets its error late: with a thread that watches, as rank 0, the host of
    the store, has ended; without one it reads the report a second after rank 0.
    """
    meshkit.init(init_method=method, arrival_timeout=60)
    mesh = meshkit.build_mesh(dp=3, timeout=60 if limit else 1)
    if mesh.rank == 1 and limit:
        guard.report_failure = lambda site, *more: (
            until_gone(site),
            roll_call.report_failure(site, *more),
        )[1]
    elif mesh.rank == 1:
        roll_call._read_report = first(lambda: time.sleep(1), roll_call._read_report)
    with mesh, mesh.guard(timeout=limit):
        if mesh.rank == 2:
            strike.kill()
        dist.all_reduce(torch.ones(1), group=mesh.group())


def until_gone(site: roll_call.GuardContext) -> None:
    """Wait until the host of the store has ended."""
    with contextlib.suppress(RuntimeError):
        while True:
            roll_call.num_calls(site.keys)
            time.sleep(0.05)


def hangs_elsewhere(strike: Strike) -> Any:
    """Rank 1 stops while rank 0 is in a collective of a group that is not the mesh's."""
    mesh = meshkit.build_mesh(dp=-1)
    own = dist.new_group([0, 1])
    told: list[float] = []
    guard.print = lambda text, **_: told.append(time.monotonic())
    if mesh.rank == 1:
        strike.later(0.5, strike.stop)
    with contextlib.suppress(RuntimeError), mesh.guard(timeout=1):
        if mesh.rank == 1:
            time.sleep(60)
        work = dist.all_reduce(torch.ones(1), group=own, async_op=True)
        work.wait(timedelta(seconds=11))
    return told


def barriers(strike: Strike, how: str, limit: float, method: str | None) -> Any:
    """Rank 0, which hosts the store if that is tcp, is struck before a barrier."""
    meshkit.init(arrival_timeout=30, **({"init_method": method} if method else {}))
    mesh = meshkit.build_mesh(dp=-1)
    mesh.barrier()
    if mesh.rank == 0:
        {"kill": strike.kill, "stop": strike.stop}[how]()
    time.sleep(0.5)
    mesh.barrier("dp", timeout=limit)


def through(strike: Strike) -> str:
    return "through"
