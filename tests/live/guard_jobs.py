"""What the ranks of test_guard and test_verify run. No pytest here: every child imports this."""

from __future__ import annotations

import contextlib
import threading
import time
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

import meshkit
from meshkit.launch.inside import timeout_of
from meshkit.live.guard import guard as guard_module
from meshkit.live.guard import verify as verify_module
from meshkit.live.guard.barrier import wait
from meshkit.live.guard.current import tracking
from meshkit.live.guard.stack import frames_of_thread, rank_status
from tests.live.jobs import threads


def told(error: BaseException) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "missing": list(getattr(error, "missing_ranks", ())),
        "behind": list(getattr(error, "behind", ())),
        "cause": type(error.__cause__).__name__,
    }


def load_batch(seconds: float) -> None:
    time.sleep(seconds)


def one_sleeps(seconds: float, timeout: float | None, each: float | None) -> Any:
    """Rank 2 sleeps before its second collective over dp; all have one over sp after it."""
    limits = None if each is None else {"dp": each, "sp": each}
    mesh = meshkit.build_mesh(dp=2, sp=2, timeout=limits)
    before = threads()
    began = time.monotonic()
    try:
        with mesh.guard(timeout=timeout):
            for step in range(3):
                if mesh.rank == 2 and step == 1:
                    load_batch(seconds)
                dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
                dist.all_reduce(torch.ones(1), group=mesh.group("sp"))
    except meshkit.CollectiveError as error:
        return told(error), time.monotonic() - began, threads() - before
    return "through"


def one_raises() -> Any:
    """Rank 1 leaves the guard with an error of its own; then all build again."""
    mesh = meshkit.build_mesh(dp=2, sp=2)
    found: Any = "through"
    try:
        with mesh, mesh.guard(timeout=2):
            if mesh.rank == 1:
                raise ValueError("bad sample 17")
            dist.all_reduce(torch.ones(1), group=mesh.group("sp"))
            dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
    except (ValueError, meshkit.CollectiveError) as error:
        found = told(error)
    meshkit.shutdown()  # as the Fix says: the default group may be broken too
    with meshkit.build_mesh(dp=2, sp=2) as again, again.guard():
        total = torch.ones(1)
        dist.all_reduce(total, group=again.group())
    return found, int(total)


def left_long_ago() -> Any:
    """All leave a guard with an error that is caught; much later rank 2 hangs."""
    mesh = meshkit.build_mesh(dp=2, sp=2)
    with contextlib.suppress(StopIteration), mesh.guard():
        raise StopIteration
    try:
        with mesh.guard(timeout=2):
            if mesh.rank == 2:
                load_batch(5)
            dist.all_reduce(torch.ones(1), group=mesh.group())
    except meshkit.CollectiveError as error:
        return told(error)
    return "through"


def hangs_elsewhere() -> Any:
    """The collective that hangs is of a group that is not the mesh's: torch would wait for long."""
    mesh = meshkit.build_mesh(dp=2, timeout={"dp": 50})
    own = dist.new_group([0, 1], group_desc="a group of mine")
    seen: list[str] = []
    guard_module.print = lambda text, **_: seen.append(str(text))
    with mesh.guard(timeout=1):
        if mesh.rank == 1:
            load_batch(8)
        dist.all_reduce(torch.ones(1), group=own)
    return seen


def two_false_alarms_and_a_hang() -> Any:
    """Where nothing raises: a long compilation on all ranks is no hang, the next hang is one."""
    guard_module._raises_in_caller = lambda site: False
    mesh = meshkit.build_mesh(dp=2, timeout={"dp": 6})
    with mesh.guard(timeout=1):
        time.sleep(3)
    try:
        with mesh.guard(timeout=3):  # so that a busy machine gets as far as load_batch
            if mesh.rank == 1:
                load_batch(9)
            dist.all_reduce(torch.ones(1), group=mesh.group("dp"))
    except meshkit.CollectiveError as error:
        return told(error)
    return "through"


def healthy() -> Any:
    """What a guard costs and leaves where nothing fails, and what it does to times."""
    mesh = meshkit.build_mesh(dp=2, timeout={"dp": 50})
    before = threads()
    group = mesh.group("dp")
    times = [timeout_of(group)]
    with mesh.guard(timeout=7):
        times.append(timeout_of(group))
        with mesh.guard(timeout=3):
            times.append(timeout_of(group))
        times.append(timeout_of(group))
        inside = threads() - before
    times.append(timeout_of(group))
    with mesh.guard():
        times.append(timeout_of(group))
        dist.all_reduce(torch.ones(1), group=group)
    return [int(one.total_seconds()) for one in times if one], inside, threads() - before


def other_errors() -> Any:
    """Errors that are none of a collective pass as they are."""
    found = []
    mesh = meshkit.build_mesh(dp=2)
    for error in (RuntimeError("shape mismatch"), KeyError("x"), SystemExit(3)):
        try:
            with mesh.guard():
                raise error
        except BaseException as caught:
            found.append(caught is error)
    try:
        mesh.guard(timeout=0)
    except meshkit.SpecError as refused:
        found.append(str(refused))
    return found


def stalls_where_nobody_raises(seconds: float) -> Any:
    """As on a backend whose calls return at once: the watching thread has to notice the hang."""
    guard_module._raises_in_caller = lambda site: False
    aborted: list[str] = []
    mesh = meshkit.build_mesh(dp=2, timeout={"dp": 6})
    group = mesh.group("dp")
    real = dist.ProcessGroup.abort
    dist.ProcessGroup.abort = lambda self: aborted.append(self.group_name)
    try:
        with mesh.guard(timeout=1):
            if mesh.rank == 1:
                load_batch(seconds)
            dist.all_reduce(torch.ones(1), group=group)
    except meshkit.CollectiveError as error:
        return told(error), group.group_name in aborted
    finally:
        dist.ProcessGroup.abort = real
    return "through", group.group_name in aborted


def verifies(options: dict[str, Any], slow: int | None) -> Any:
    mesh = meshkit.build_mesh(**options)
    if mesh.rank == slow:
        real = verify_module._time_gather

        def late(*args: Any) -> float:
            time.sleep(0.05)
            return real(*args)

        verify_module._time_gather = late
    try:
        found = mesh.verify(timeout=20)
    except meshkit.CoordinateError as error:
        return type(error).__name__
    groups = [(one.axes, one.num_groups, one.group_size) for one in found.groups]
    rows = [(one.seconds, one.slowest_seconds, one.slowest) for one in found.groups]
    return groups, rows, found.slowest_rank, found.waited, str(found)


def verifies_wrong_groups() -> Any:
    """One rank's gather meets other ranks than the mesh says."""
    mesh = meshkit.build_mesh(dp=2, sp=2)
    if mesh.rank == 3:
        real = verify_module._has_members
        verify_module._has_members = lambda members, group, device: (
            real(members[::-1], group, device)
            if len(members) == 2
            else real(members, group, device)
        )
    try:
        mesh.verify()
    except meshkit.MeshkitError as error:
        return type(error).__name__, str(error)
    return "verified"


def verify_hangs() -> Any:
    """Rank 1 never comes to verify."""
    mesh = meshkit.build_mesh(dp=2)
    if mesh.rank == 1:
        time.sleep(9)
        return None
    try:
        mesh.verify(timeout=1)
    except meshkit.CollectiveError as error:
        return told(error)
    return "verified"


def closes_together(stays_away: bool) -> Any:
    """As on nccl, whose groups end on all ranks together."""
    from meshkit.live import mesh as mesh_module

    mesh = meshkit.build_mesh(dp=2, timeout={"dp": 50}, arrival_timeout=2)
    mesh_module.ends_together = lambda groups: True
    if mesh.rank == 1:
        time.sleep(4 if stays_away else 1)
    began = time.monotonic()
    try:
        mesh.close()
    except meshkit.RankTimeoutError as error:
        return str(error).splitlines()[0], time.monotonic() - began, repr(mesh)
    return "closed", time.monotonic() - began, repr(mesh)


def operations() -> Any:
    """The operation that place reads from the frames inside a collective."""
    mesh = meshkit.build_mesh(dp=2)
    mine = dist.new_group([0, 1], group_desc="a group of mine")
    seen: list[str] = []

    def look(*_: Any, **__: Any) -> Any:
        frames, current = frames_of_thread(threading.get_ident()), tracker.current
        seen.append(rank_status(mesh.rank, mesh._groups.by_key, frames, current).operation)
        raise ZeroDivisionError

    calls = {
        "dp": lambda: dist.all_reduce(torch.ones(1), group=mesh.group("dp")),
        "world": lambda: dist.broadcast(torch.ones(1), 0),
        "foreign": lambda: dist.all_gather([torch.ones(1)] * 2, torch.ones(1), group=mine),
        "barrier": lambda: mesh.barrier("dp"),
        "begun": lambda: wait(SimpleNamespace(wait=look), mesh.group("dp")),  # type: ignore[arg-type]
        "none": look,
    }
    c10d = dist.distributed_c10d
    plain, barrier = c10d._rank_not_in_group, dist.barrier
    c10d._rank_not_in_group = dist.barrier = look
    found = {}
    for name, call in calls.items():
        seen.clear()
        with contextlib.suppress(ZeroDivisionError), tracking() as tracker:
            call()
        found[name] = seen[0]  # torch looks again when it logs the error
    c10d._rank_not_in_group, dist.barrier = plain, barrier
    return found
