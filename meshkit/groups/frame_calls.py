"""The frames of another thread, and the calls of torch in which it is, from their variables.

::

    dist.recv(x, 0, group=g)              the arguments of the function
    dist.batch_isend_irecv(operations)    each of its operations
    schedule.step(x)                      torch waits for a work of a batch: its operation
"""

from __future__ import annotations

import gc
import linecache
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..launch.default_group import default_group
from ..launch.disagreement import TracedCall
from ..launch.torch_groups import is_nccl

Frames = Iterable[tuple[FrameType, int | None]]  # outermost first, each with its line number

_no_collection = threading.Lock()  # held while collections are paused


def _resume_in_child() -> None:
    """End a pause of the parent, whose thread does not exist in a forked child."""
    if _no_collection.locked():
        gc.enable()
        _no_collection.release()


os.register_at_fork(after_in_child=_resume_in_child)


class BatchWait(NamedTuple):
    """A wait of torch's code for a batch of messages, as in its pipelines."""

    name: str = ""  # of the message, ``"irecv"``; ``"wait"`` if it is unknown; empty without a wait
    group: dist.ProcessGroup | None = None  # None if it is unknown
    calls: list[TracedCall] = []  # noqa: RUF012  # nobody changes it


@contextmanager
def no_collection() -> Iterator[None]:
    """Let no collection of garbage begin while frames of another thread are read. Local.

    Python 3.11 makes the object of a frame when that is asked for, and a collection may begin
    there. It runs finalizers, which let the other thread go on and leave its frames: Python then
    crashes. Other versions need nothing.
    """
    if sys.version_info[:2] == (3, 11):
        with _no_collection:
            if gc.isenabled():  # else the user has disabled it
                gc.disable()
                try:
                    yield
                finally:
                    gc.enable()
                return
    yield


def frame_of_thread(ident: int) -> FrameType | None:
    """Return the innermost frame of a thread; None if the thread has ended."""
    return sys._current_frames().get(ident)


def frames_of_thread(ident: int) -> Frames:
    """Return the current frames of a thread; empty if the thread has ended."""
    frame = frame_of_thread(ident)
    return list(traceback.walk_stack(frame))[::-1] if frame is not None else []


def traced_calls(name: str, arguments: Mapping[str, Any]) -> list[TracedCall]:
    """Return the calls of a public function of torch in which a thread is, from its arguments.

    Between ranks the tensors of some collectives may differ, so only messages have theirs.
    """
    if operations := arguments.get("p2p_op_list"):
        return [traced_message(each) for each in operations]
    call = TracedCall(name=name, state="begun")
    end = next((each for each in ("src", "dst") if each in arguments), "")
    if not end:
        return [call]
    group, other, own = arguments.get("group"), arguments[end], arguments.get(f"group_{end}")
    if other is None and own is not None:
        other = dist.get_global_rank(group or default_group(), own)
    other = -1 if other is None else other
    if not call.is_message:
        return [call._replace(root=other)]
    call = call._replace(peer=other)
    return [_with_tensor(call, arguments.get("tensor"), arguments.get("tag"), group)]


def traced_message(operation: dist.P2POp, work: dist.Work | None = None) -> TracedCall:
    """Return a message, which may be part of a batch."""
    is_done = work is not None and work.is_completed()
    state = "completed" if is_done else "begun"
    call = TracedCall(name=operation.op.__name__, peer=operation.peer, state=state)
    return _with_tensor(call, operation.tensor, operation.tag, operation.group)


def _with_tensor(
    call: TracedCall, tensor: object, tag: int | None, group: dist.ProcessGroup | None
) -> TracedCall:
    """Return a message with its tensor and its tag; as it is with anything but a tensor.

    nccl matches messages by their order, and ignores tags.
    """
    if not isinstance(tensor, torch.Tensor):
        return call
    own = tuple(map(int, tensor.shape)), str(tensor.dtype).partition(".")[2]
    tag = tag if tag and not is_nccl(group or default_group()) else 0
    return call._replace(tensors=(own,), tag=tag)


def batch_wait(frame: FrameType, caller: FrameType, number: int | None) -> BatchWait:
    """Return the wait for a work of a list in which a frame of torch is.

    The messages of the list are in a variable on the line of the caller, or else in the only one
    that has messages. If these are not as many as the works, it is unknown for which one it waits.
    ``frame`` is the innermost one of its thread, and ``caller`` has called it at line ``number``.
    """
    variables = frame.f_locals
    work = next((each for each in variables.values() if isinstance(each, dist.Work)), None)
    works = next(iter(_lists_of(dist.Work, variables).values()), [])
    if work is None or work not in works or "wait" not in frame.f_code.co_names:
        return BatchWait()
    batches = _lists_of(dist.P2POp, caller.f_locals)
    words = re.findall(r"\w+", linecache.getline(caller.f_code.co_filename, number or 0))
    named = [word for word in words if word in batches] or [*batches]
    operations = [each for name in named for each in batches[name]]
    if len(operations) != len(works):
        return BatchWait("wait")
    own = operations[works.index(work)]
    call = traced_message(own)
    return BatchWait(call.name, own.group or default_group(), [call])


def _lists_of(kind: type, variables: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the variables that are lists of objects of one type alone."""
    lists = {name: value for name, value in variables.items() if isinstance(value, list) and value}
    return {name: own for name, own in lists.items() if all(isinstance(x, kind) for x in own)}
