"""Timeouts and aborts in torch's private API: how long a collective may take, and what ends it.

nccl2 has another setter of a timeout than nccl: tests/scenarios/test_nccl_like.py. gloo ends
a wait only by closing the connections of the group.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_nccl_timeout, default_pg_timeout

from .torch_groups import all_groups, backend_of, is_nccl

CLOSING, PROBING = 2**16, 2**16 + 1  # the tags of messages that nobody sends

# the receives by which meshkit has looked for lost connections of a group, which torch counts too
_num_probes: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


def timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """Return how long a collective of the group may take; None if torch does not expose it. Local.

    The groups of a mesh get this timeout of the default group, instead of torch's default.
    """
    timeouts = []
    for device in group._device_types:
        with suppress(AttributeError, RuntimeError):
            timeouts.append(group._get_backend(device).options._timeout)
    return min((each for each in timeouts if isinstance(each, timedelta)), default=None)


def set_timeout(group: dist.ProcessGroup, timeout: timedelta | None) -> None:
    """Set the timeout of later collectives; None is the default of each device's backend. Local."""
    group.set_timeout(timeout or default_timeout(backend_of(group)))
    for name, part in _parts(group) if timeout is None else ():
        _set_timeout_of(part, default_timeout(name))


def _set_timeout_of(part: Any, timeout: timedelta | None) -> None:  # noqa: ANN401
    """Set the timeout of later collectives of one device; nccl2 has another name for it."""
    change = getattr(part, "_set_default_timeout", None) or part.set_timeout
    change(timeout)


def _parts(group: dist.ProcessGroup) -> Iterator[tuple[str, Any]]:
    """Yield the backend of each device with its name, if a group has several."""
    pairs = backend_of(group).split(",")
    for kind, _, name in (pair.partition(":") for pair in pairs if len(pairs) > 1):
        yield name, group._get_backend(torch.device(kind))


def default_timeout(backend: str) -> timedelta:
    """Return torch's default timeout of a group: 10 min for nccl alone, 30 min for all others."""
    return (default_pg_nccl_timeout if backend[:4] == "nccl" else None) or default_pg_timeout


class LoweredTimeouts:
    """The timeouts of groups inside guards, which end in any order if several threads have some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # group and device backend to the timeout outside all guards, and those of the guards
        self._limits: dict[tuple[dist.ProcessGroup, str], list[list[timedelta | None]]] = {}

    @contextmanager
    def lower(self, groups: Iterable[dist.ProcessGroup], limit: timedelta | None) -> Iterator[None]:
        """Lower the timeout of gloo, which raises in the thread that waits, inside the block.

        At its timeout the watchdog of nccl ends the process, so the timeout of nccl stays. The last
        block that was entered decides. Local.
        """
        changes: dict[tuple[dist.ProcessGroup, str], Callable[[Any], object]] = {}
        own = [limit]
        with self._lock:
            for group in groups if limit is not None else ():
                timeout, parts = timeout_of(group), [*_parts(group)]
                if not parts and backend_of(group) in ("gloo", "cpu:gloo"):
                    changes[group, ""] = partial(set_timeout, group)
                    self._limits.setdefault((group, ""), [[timeout]])
                for name, part in parts:
                    if name == "gloo":
                        changes[group, name] = partial(_set_timeout_of, part)
                        self._limits.setdefault((group, name), [[part.options._timeout]])
            for key, change in changes.items():
                self._limits[key].append(own)
                change(limit)
        try:
            yield
        finally:
            with self._lock:
                for key, change in changes.items():
                    limits = self._limits[key]
                    limits[:] = [each for each in limits if each is not own]
                    change(limits[-1][0])
                    if len(limits) == 1:
                        del self._limits[key]


def wait_in_time(work: dist.Work, group: dist.ProcessGroup, limit: timedelta | None) -> None:
    """Wait until a work is done; raise torch's error, or one of its class, at the limit.

    A wait of nccl with a timeout would abort that group alone, and so may hang.
    """
    if limit is None or not is_nccl(group):
        work.wait(*[limit] if limit else [])
        return
    end, pause = time.monotonic() + limit.total_seconds(), 0.0001
    while not work.is_completed():
        if time.monotonic() > end:
            raise dist.DistBackendError(f"wait timeout after {limit.total_seconds():g} s")
        time.sleep(pause)
        pause = min(2 * pause, 0.01)
    work.wait()


def error_of(group: dist.ProcessGroup, device: torch.device) -> str:
    """Return the error that the watchdog of a group has seen; "" for none, or if unknown. Local."""
    with suppress(AttributeError, RuntimeError):
        error: Any = cast(Any, group._get_backend(device)).get_error()
        return "" if error.name == "SUCCESS" else str(error.name)
    return ""


def collective_count(group: dist.ProcessGroup) -> int | None:
    """Return how many collectives this rank has started on the group; None if unknown. Local.

    On gloo sends and receives also count, so the ranks of a pipeline have different counts. On nccl
    they do not.
    """
    try:
        number = int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]
        return number - _num_probes.get(group, 0)
    except (AttributeError, RuntimeError):
        return None


def abort_all_groups(seconds: float) -> list[str]:
    """Abort the collectives of all groups, so that no thread and no kernel waits for them. Local.

    An abort in NCCL waits until the kernels of the device are done, also if one of them belongs to
    another group, which is still to be aborted. So each abort has a thread, and all begin at once.
    torch's own function aborts one group after another: its NCCL group call spans one thread, and
    each abort runs in another one. The groups stay until they are destroyed. On gloo nothing
    happens.

    Returns:
        The names of the groups whose abort did not end in time.
    """
    names = dict(getattr(getattr(dist.distributed_c10d, "_world", None), "pg_names", {}))
    late = _for_each_at_once(_abort, names, seconds)
    return [names[group] for group in late]


def _for_each_at_once(
    work: Callable[[dist.ProcessGroup], object], groups: Iterable[dist.ProcessGroup], seconds: float
) -> list[dist.ProcessGroup]:
    """Do some work for each group, in a thread each; return the groups that were not in time."""
    threads = {
        group: threading.Thread(target=work, args=(group,), name="meshkit-abort", daemon=True)
        for group in groups
    }
    for thread in threads.values():
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads.values():
        thread.join(max(0.0, end - time.monotonic()))
    return [group for group, thread in threads.items() if thread.is_alive()]


def _abort(group: dist.ProcessGroup) -> None:
    """Abort a group; an error of torch leaves it to its destruction."""
    with suppress(RuntimeError):
        group.abort()


def _close_gloo_group(group: Any) -> bool:  # noqa: ANN401
    """Close the connections of a gloo group; return whether there were any. Local.

    gloo closes all connections of a group if a message times out. Every thread that waits in the
    group then raises, as do the peers. A receive from any rank is possible also if a peer is lost.
    torch 2.13 has ``abort`` and
    ``shutdown`` too, which end no wait. An error may still refer to the group.
    """
    backend: Any = group if isinstance(group, dist.ProcessGroupGloo) else _gloo_backend(group)
    if backend is None or backend.size() == 1:
        return False
    with suppress(RuntimeError):
        work = backend.recv_anysource([torch.empty(1)], CLOSING)
        _num_probes[group] = _num_probes.get(group, 0) + 1
        work.wait(timedelta(milliseconds=1))
    return True


def close_gloo_groups(ranks: Collection[int] | None, seconds: float) -> bool:
    """Close the connections of all gloo groups, also of the user; return if there were any. Local.

    ``ranks`` limits this to groups inside these ranks. If gloo connects at the first use, nothing
    happens: it ends the process if a group is closed while a connection to a lost rank begins.

    Cost: 30 ms, all groups at once.
    """
    if _connects_later():
        return False
    groups = []
    for group in all_groups():
        members = {*dist.get_process_group_ranks(group)}
        is_inside = ranks is None or members <= {*ranks}
        if is_inside and len(members) > 1 and _gloo_backend(group) is not None:
            groups.append(group)
    _for_each_at_once(_close_gloo_group, groups, seconds)
    return bool(groups)


def _connects_later() -> bool:
    """Return whether gloo connects two ranks at their first message, not at the creation. Local."""
    return os.environ.get("TORCH_GLOO_LAZY_INIT") == "1"


def has_lost_connection() -> bool:
    """Return whether a gloo group of this process has lost the connection to a rank. Local.

    A receive from a lost rank raises at once. A receive from any other rank has no effect, as it is
    given up. If gloo connects at the first use, a receive would connect, so the answer is True.
    """
    if _connects_later():
        return True
    return any(map(_has_lost_connection, all_groups()))


def _has_lost_connection(group: dist.ProcessGroup) -> bool:
    """Return whether the gloo backend of a group has lost the connection to a rank."""
    if (backend := _gloo_backend(group)) is None:
        return False
    for peer in {*range(group.size())} - {group.rank()}:
        try:
            backend.recv([torch.empty(1)], peer, PROBING)
        except RuntimeError:  # torch does not count it
            return True
        _num_probes[group] = _num_probes.get(group, 0) + 1
    return False


def _gloo_backend(group: dist.ProcessGroup) -> Any:  # noqa: ANN401
    """Return the backend of a group for the CPU, if it is gloo; else None. Local."""
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # a group written in Python, or one that has no backend for the CPU
        return None
    return backend if "gloo" in backend.name() else None
