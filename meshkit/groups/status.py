"""Read the status of a rank: its collective counts, its collective, its line of user code.

A thread reads its own status from its frames, and the watching thread of a guard reads that of the
guarded thread. A context variable is visible to its own thread or task only. It therefore holds a
tracker that the guard shares with its watching thread, and that ``barrier`` and ``wait`` fill in::

    mesh.guard()          tracker = CollectiveTracker()     the watcher reads tracker.current
    mesh.barrier("dp")    tracker.current = barrier, group  "barrier over dp"
"""

from __future__ import annotations

import dis
import linecache
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..errors import MeshkitError
from ..launch.disagreement import RankStatus, TracedCall
from ..launch.job import current_job
from ..launch.torch_aborts import collective_count, has_lost_connection
from .frame_calls import BatchWait, Frames, batch_wait, traced_calls, traced_message

_PACKAGE = str(Path(__file__).resolve().parents[1])
_TORCH, _STDLIB = os.path.dirname(torch.__file__), sysconfig.get_paths()["stdlib"]
_LOADER = os.path.join(_TORCH, "utils", "data") + os.sep  # waiting for data is no collective
_COLLECTIVES = dist.distributed_c10d.__name__  # torch's public functions, with a group argument
# files and modules that wait for no rank: those of an import, and those that compile
_IMPORTS, _COMPILERS = "<frozen importlib.", ("torch._dynamo.", "torch._inductor.")
# Modules that call a collective in C++ or wait for one, as DDP does in the backward of autograd.
_CALLERS = (
    "meshkit.",
    "torch.distributed.",
    "torch.nn.parallel.",
    "torch.futures.",
    "torch._ops.",
    "torch.autograd.graph.",
)


Message = tuple[dist.P2POp, dist.Work]


class CurrentCollective(NamedTuple):
    """A function of meshkit that waits for other ranks, for example ``"barrier"``."""

    name: str
    group: dist.ProcessGroup
    messages: Sequence[Message] = ()  # the messages that it has begun


@dataclass
class CallProgress:
    """The collectives that a rank had begun last, and since when it has begun no other one."""

    begun: Mapping[str, int] | None = None
    since: float = 0.0

    def waited(self, begun: Mapping[str, int]) -> float:
        """Return how long ago the last of so many collectives has begun, as far as it was seen."""
        now = time.monotonic()
        if begun != self.begun:
            self.begun, self.since = begun, now
        return now - self.since


@dataclass(eq=False)
class CollectiveTracker:
    """The collective of one guarded thread, as one of the guards around it follows it."""

    outer: CollectiveTracker | None = None  # of the guard around this one, which may be over
    is_over: bool = False  # whether its guard has been left
    thread: int = field(default_factory=threading.get_ident)
    current: CurrentCollective | None = None  # the collective that the thread is in; None outside
    limit: timedelta | None = None  # the least timeout of its guard and of those around it
    # the comparisons of calls that no rank has waited for, in their order
    pending: list[Any] = field(default_factory=list)
    pid: int = field(default_factory=os.getpid)
    progress: CallProgress = field(default_factory=CallProgress)
    number: int = 0  # of its guard on this rank, from 1; 0 without a limit
    watched: Any = None  # the guard whose thread watches this one; the outer one of two meshes
    # the collectives begun over groups whose time the guard does not limit, when it was entered
    elsewhere: int = 0
    is_alone: bool = True  # whether no other thread or task was in a guard of the mesh meanwhile
    # when an error came that is on its way through the guards, and out of which collective; without
    # a status as long as it is unknown whether one has failed
    leaving: tuple[float, RankStatus | None] | None = None
    # the last collective that an error left, with the id of that error
    failed: tuple[int, CurrentCollective] | None = None

    def of_error(self, error: BaseException) -> CurrentCollective | None:
        """Return the collective that an error came out of, or None."""
        return self.failed[1] if self.failed is not None and self.failed[0] == id(error) else None

    def around(self) -> list[CollectiveTracker]:
        """Return this tracker and those of the guards around it that are not over."""
        return [self, *(() if (outer := _last_open(self.outer)) is None else outer.around())]

    def check_pending(self, *, wait: bool = False) -> None:
        """Raise if ranks of a group are known to have made different calls. Local.

        With ``wait``, wait until it is known of all calls. A forked child does nothing.
        """
        while self.pid == os.getpid() and self.pending and (wait or self.pending[0].is_done()):
            self.pending.pop(0).check()


_TRACKER: ContextVar[CollectiveTracker | None] = ContextVar("meshkit_tracker", default=None)


def _last_open(tracker: CollectiveTracker | None) -> CollectiveTracker | None:
    while tracker is not None and tracker.is_over:
        tracker = tracker.outer
    return tracker


def current_tracker() -> CollectiveTracker | None:
    """Return the tracker of the innermost guard around this thread or task. Local.

    Guards of tasks and generators may end in any order and in other contexts than they began. So a
    tracker is marked when its guard ends, and no context is set back.
    """
    return _last_open(_TRACKER.get())


@contextmanager
def tracking(limit: timedelta | None = None, number: int = 0) -> Iterator[CollectiveTracker]:
    """Track the collectives of this thread or task for one guard. Local."""
    outer = current_tracker()
    tracker = CollectiveTracker(outer, limit=limit, number=number)
    if outer is not None and outer.limit is not None:
        tracker.limit = min(limit or outer.limit, outer.limit)
    if outer is not None:
        tracker.watched = outer.watched
        if outer.thread == tracker.thread:
            tracker.pending, tracker.progress = outer.pending, outer.progress
    _TRACKER.set(tracker)
    try:
        yield tracker
    finally:
        tracker.is_over = True
        _TRACKER.set(current_tracker())


def is_tracked() -> bool:
    """Return whether a guard is around this thread. Local."""
    return current_tracker() is not None


def compares_calls() -> bool:
    """Return whether a guard with a timeout is around this thread. Local."""
    tracker = current_tracker()
    return tracker is not None and tracker.limit is not None


def within_guard(limit: timedelta) -> timedelta:
    """Return how long ranks wait for each other: no longer than a guard around them lets. Local."""
    tracker = current_tracker()
    return limit if tracker is None or tracker.limit is None else min(limit, tracker.limit)


def pending() -> list[Any]:
    """Return the comparisons of calls in this guard that no rank has waited for. Local."""
    tracker = current_tracker()
    return [] if tracker is None else tracker.pending


def check_pending(*, wait: bool = False) -> None:
    """Raise if ranks are known to have made different calls in this guard; with ``wait``, wait."""
    tracker = current_tracker()
    if tracker is not None:
        tracker.check_pending(wait=wait)


@contextmanager
def in_collective(
    name: str, group: dist.ProcessGroup, messages: Sequence[Message] = ()
) -> Iterator[None]:
    """Announce a collective to the guards around it. Local.

    ``messages`` may grow inside the block.
    """
    tracker = current_tracker()
    around, own = () if tracker is None else tracker.around(), threading.get_ident()
    # a thread that begins with the context of another one has the guards of that one around it
    trackers = [each for each in around if each.thread == own]
    outer = next((each.current for each in trackers), None)
    entered = outer or CurrentCollective(name, group, messages)
    for each in trackers:
        each.current = entered
    try:
        yield
    except BaseException as error:
        for each in trackers:
            each.failed = id(error), entered  # an id: the error would keep its frames alive
        raise
    finally:
        for each in trackers:
            each.current = outer


def wait(work: dist.Work | None, group: dist.ProcessGroup) -> None:
    """Wait for a collective that was started earlier. A guard reports it as ``"wait over dp"``."""
    if work is not None:
        with in_collective("wait", group):
            work.wait()


def frames_of_error(error: BaseException, origin: BaseException) -> Frames:
    """Return the frames that an error, and the one that it was raised from, came through.

    The outermost frame is the first one.
    """
    outer = list(traceback.walk_stack(sys._getframe(1)))[::-1]
    frames = [*outer, *traceback.walk_tb(error.__traceback__)]
    return frames if origin is error else [*frames, *traceback.walk_tb(origin.__traceback__)]


def find_collective_error(error: BaseException | None) -> BaseException | None:
    """Return the error of a collective that an error is, holds, or was raised from; else None.

    torch's pipelines raise an error of their own from it. gloo raises a RuntimeError like any other
    one. It comes out of C++, from a call of torch's or meshkit's modules or from a wait of the
    user, and a connection of a gloo group is lost then. An error of a store is that of a collective
    if it left torch's modules: a user may wait at a store too. An error of meshkit is none: it says
    itself what has failed.

    Cost: nothing for most errors; else a message of some bytes to each peer of each gloo group.
    """
    seen, pending = set[int](), [error]
    while pending:
        error = pending.pop()
        if error is None or isinstance(error, MeshkitError) or id(error) in seen:
            continue
        if isinstance(error, dist.DistBackendError):
            return error
        if isinstance(error, dist.DistError):
            entry = _origin(error)
            if entry is None or _is_of_torch(entry.tb_frame):
                return error
        if type(error) is RuntimeError and _left_a_collective(error) and has_lost_connection():
            return error
        seen.add(id(error))
        pending += [*_errors_in(error)[::-1], error.__cause__]
    return None


def _errors_in(error: BaseException) -> list[BaseException]:
    """Return the errors in an ExceptionGroup, as a TaskGroup raises; none for any other error."""
    try:  # by its tuple, as Python 3.10 has no such class
        parts = getattr(error, "exceptions", ())
    except Exception:  # an attribute of the user may raise anything
        return []
    is_group = isinstance(parts, tuple)
    return [part for part in parts if isinstance(part, BaseException)] if is_group else []


def is_collective_error(error: BaseException) -> bool:
    """Return whether a collective failed or timed out, and an error is or comes from that."""
    return find_collective_error(error) is not None


def _left_a_collective(error: BaseException) -> bool:
    """Return whether an error left a call in C++ that may be a collective, or a wait for one."""
    entry = _origin(error)
    if entry is None:  # nobody has raised it
        return False
    code = entry.tb_frame.f_code
    if not _is_of_torch(entry.tb_frame) and "wait" not in code.co_names:
        return False
    return "CALL" in dis.opname[code.co_code[entry.tb_lasti]]  # not an instruction that raises


def _origin(error: BaseException) -> TracebackType | None:
    """Return the innermost entry of the traceback of an error; None if nobody has raised it."""
    entry = error.__traceback__
    while entry is not None and entry.tb_next is not None:
        entry = entry.tb_next
    return entry


def _is_of_torch(frame: FrameType) -> bool:
    """Return whether a frame is of a module that calls collectives in C++ or waits for them."""
    return f"{frame.f_globals.get('__name__')}.".startswith(_CALLERS)


def rank_status(
    rank: int,
    groups: Mapping[str, dist.ProcessGroup],
    frames: Frames,
    current: CurrentCollective | None = None,
    error: str = "",
    meshkits: Mapping[str, int] | None = None,
    more: Iterable[dist.ProcessGroup | None] = (),
) -> RankStatus:
    """Return the status of this rank, from its groups by their axes as text.

    ``meshkits`` has, by the name of a group, how many collectives meshkit itself has begun there.
    They are not counted. ``more`` has the groups of the views of the mesh.
    """
    counts = {}
    for axes, own in groups.items():
        if axes and (count := collective_count(own)) is not None:
            counts[axes] = count - (meshkits or {}).get(own.group_name, 0)
    function, line = "" if current is None else current.name, ""
    over: object = None if current is None else current.group
    made = [] if current is None else [traced_message(*message) for message in current.messages]
    for frame, number in frames:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if line and file == "<string>" and not line.startswith(file):
            continue  # what a library has generated, such as the __init__ of a dataclass
        if not _is_library(file):
            line = f"{os.path.basename(file)}{f':{number}' if number else ''} ({name})"
            if over is None:
                function = "wait" if ".wait(" in linecache.getline(file, number or 0) else ""
        elif over is None and frame.f_globals.get("__name__") == _COLLECTIVES:
            function, over = name, frame.f_locals.get("group") or dist.group.WORLD
            made = traced_calls(name, frame.f_locals)
    if over is None and not function:
        function, over, made = _wait_of_torch(frames)
    function = function or _torch_function(frames)
    names = [axes for axes, group in groups.items() if group is over]
    description = str(getattr(over, "group_desc", "") or "a group of its own")
    group = "" if over is None else names[0] if names else description
    is_unknown = not names and all(group is not over for group in more)
    job = current_job()
    is_other_mesh = is_unknown and job is not None and over in job.counts.made
    calls = {group: tuple(call._replace(line=line) for call in made)} if names and made else {}
    status = RankStatus(rank, counts, function, group, line, error, is_other_mesh=is_other_mesh)
    return replace(status, calls=calls)


def _wait_of_torch(frames: Frames) -> BatchWait:
    """Return the wait for a batch of messages in which a call of torch is."""
    inner = [*frames][-2:]
    if len(inner) < 2 or not all(f.f_code.co_filename.startswith(_TORCH) for f, _ in inner):
        return BatchWait()
    (caller, number), (frame, _) = inner
    return batch_wait(frame, caller, number)


def _torch_function(frames: Frames) -> str:
    """Return the function of torch that a line of the user is in, ``"torch's backward"``.

    Empty if it loads data, imports or compiles: these wait for no rank.
    """
    found = ""
    for frame, _ in reversed([*frames]):
        file = frame.f_code.co_filename
        module = f"{frame.f_globals.get('__name__')}."
        if file.startswith(_IMPORTS) or module.startswith(_COMPILERS):
            return ""
        if not _is_library(file) and file != "<string>":
            return found
        if file.startswith(_TORCH + os.sep) and not file.startswith(_LOADER):
            found = f"torch's {frame.f_code.co_name}"
    return found


def with_calls(
    status: RankStatus, traced: Mapping[str, tuple[TracedCall, ...]], *, has_failed: bool
) -> RankStatus:
    """Return the status with the calls that torch has recorded, and with that of its frames.

    The last collective over the group in which a rank waits is the one that it waits for. Once one
    ``has_failed``, torch counts it as completed.
    """
    calls = {**traced}
    own, recorded = status.calls.get(status.group, ()), calls.get(status.group, ())
    is_last = any(not call.is_message for call in own)
    is_last |= has_failed and not own and status.function not in ("", "wait")
    if recorded and is_last:
        last = recorded[-1]._replace(line=status.line, root=own[-1].root if own else -1)
        last = last if last.is_open else last._replace(state="begun")
        calls[status.group] = (*recorded[:-1], last)
    elif own:
        calls[status.group] = (*recorded, *own)
    return replace(status, calls=calls)


def _is_library(file: str) -> bool:
    """Return whether a file belongs to torch, meshkit or Python itself.

    Files in site-packages, for example those of torchtitan, count as user code.
    """
    of_python = file.startswith(_STDLIB + os.sep) and "site-packages" not in file
    of_python |= file.startswith(_IMPORTS)
    return of_python or file.startswith((_TORCH + os.sep, _PACKAGE + os.sep))


def may_wait(frame: FrameType) -> bool:
    """Return whether a thread with this innermost frame may wait for other ranks. Local.

    It is in a call of torch or meshkit, of which one in C++ may also compute, or in a line of the
    user that waits for a work.

    Cost: 2 microseconds.
    """
    current: FrameType | None = frame
    while current is not None and _is_library(current.f_code.co_filename):
        if _is_of_torch(current):
            return True
        current = current.f_back
    return current is frame and ".wait(" in linecache.getline(
        frame.f_code.co_filename, frame.f_lineno
    )
