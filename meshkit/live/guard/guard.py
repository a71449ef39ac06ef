"""Report a collective that fails or hangs, with the coordinates of the ranks that cause it.

::

    with mesh.guard(timeout=60):        rank 0 waits in all_reduce ... after 60 s torch raises
        step()                          rank 2 sleeps in load_batch
                                        its watching thread answers the roll call of rank 0
    CollectiveError, on rank 0:         Behind: rank 2 (dp=1 sp=0) has begun 7 of 8 collectives ...

On gloo the waiting thread gets torch's error, at the group's timeout or as soon as a peer dies.
Other backends return from a call before its work is done, so no thread would get an error. There
the watching thread starts the roll call itself, once this rank has begun nothing new for the
timeout. If a rank is behind or silent, it prints the report and aborts the groups of the mesh. On
gloo it does so for collectives on a foreign group, which keeps its own timeout.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from ...core.call import Call, Verbatim, drop_none
from ...core.errors import CollectiveError, MeshkitError
from ...launch.store.deadline import DeadlineExceededError, run_with_deadline, store_call
from ...launch.torch_internals import connects_at_creation, set_timeout, timeout_of
from ..groups.break_off import break_off, break_off_soon, know_addresses
from ..groups import abort_groups
from .current import CollectiveTracker, tracking
from .read_report import ReadReport
from .roll_call import (
    STATUS_TIMEOUT,
    GuardContext,
    all_have_left,
    leave_last,
    post_status,
    report_failure,
    respond,
    withdraw_status,
)
from .stack import (
    frames_of_error,
    frames_of_thread,
    is_collective_error,
    is_other_mesh,
    rank_status,
)


@contextmanager
def guard_collectives(context: GuardContext, limit: timedelta | None) -> Iterator[None]:
    """Translate the errors of collectives inside; with a limit, also turn a hang into an error."""
    keys, state = context.keys, context.state
    if state.has_left and keys is not None:
        withdraw = partial(withdraw_status, keys, context.rank)
        store_call(context.record.world, STATUS_TIMEOUT, withdraw)
        state.has_left = False
        state.answered.clear()
    raises = _raises_in_caller(context)
    with (
        tracking() as tracker,
        _with_timeout(context, limit if raises else None),
        nullcontext() if limit is None else _watching(context, tracker, limit, raises),
    ):
        try:
            yield
        except BaseException as error:
            translated = _translate(context, tracker, error)
            if translated is None:
                raise
            raise _quote(translated, limit) from error


def _quote(error: MeshkitError, limit: timedelta | None) -> MeshkitError:
    """Return the error with the call of the guard, whose block or watching thread reports it."""
    timeout = None if limit is None else f"{limit.total_seconds():g}"
    return error.quote(Call("mesh.guard", kwargs=drop_none(timeout=timeout and Verbatim(timeout))))


def _translate(
    context: GuardContext, tracker: CollectiveTracker, error: BaseException
) -> MeshkitError | None:
    """Return the report on a failed collective; for any other error, post it and return None."""
    line = ": ".join(filter(None, (type(error).__name__, str(error).partition("\n")[0])))
    rank, groups, frames = context.rank, context.groups, frames_of_error(error)
    if is_collective_error(error):
        status = rank_status(rank, groups, frames, tracker.of_error(error))
        if is_other_mesh(status):
            return None  # the guard of that mesh reports it, if there is one
        summary = f"{status.operation or 'a collective'} failed on rank {rank}: {line}."
        report = report_failure(context, summary, status)
        break_off(groups.values())
        leave_last(context)
        return report
    if isinstance(error, CollectiveError):
        break_off(groups.values())
        return None
    keys = context.keys
    if keys is not None:
        status = rank_status(rank, groups, frames, tracker.of_error(error), line)
        with suppress(RuntimeError, DeadlineExceededError):  # the original error matters more
            run_with_deadline(STATUS_TIMEOUT, lambda: post_status(keys, status))
            context.state.has_left = True
            break_off_soon(groups.values(), partial(_is_handled, replace(context, groups={})))
    return None


def _is_handled(context: GuardContext) -> bool:
    """Return whether no rank waits for this one, though it left a guard with an error.

    It has entered a guard again, or all ranks have left with an error, for example to stop early.
    """
    return not context.state.has_left or all_have_left(context)


@contextmanager
def _with_timeout(context: GuardContext, limit: timedelta | None) -> Iterator[None]:
    """Set the timeout of the mesh's groups inside the block, and restore it afterwards."""
    before = (
        {} if limit is None else {group: timeout_of(group) for group in context.groups.values()}
    )
    for group in before:
        set_timeout(group, limit)
    try:
        yield
    finally:
        for group, timeout in before.items():
            set_timeout(group, timeout)


def _raises_in_caller(context: GuardContext) -> bool:
    """Return whether a collective raises in the thread that waits for it, at a settable timeout."""
    return all(
        connects_at_creation(str(dist.get_backend(group))) for group in context.groups.values()
    )


@contextmanager
def _watching(
    context: GuardContext, tracker: CollectiveTracker, limit: timedelta, raises: bool
) -> Iterator[None]:
    """Run a thread beside this one that answers roll calls for it."""
    keys = context.keys
    if keys is None:
        yield
        return
    over, thread = threading.Event(), threading.get_ident()
    arguments = context, keys, tracker, limit, raises, thread, over
    watcher = threading.Thread(target=_watch, args=arguments, name="meshkit-guard", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(STATUS_TIMEOUT)  # a store that does not answer would block it


def _watch(
    context: GuardContext,
    keys: dist.Store,
    tracker: CollectiveTracker,
    limit: timedelta,
    raises: bool,
    thread: int,
    over: threading.Event,
) -> None:
    """Answer roll calls; start one if the thread begins no collective for too long."""
    # a collective on a foreign group has its own timeout, and raises nothing at this one
    patience = limit.total_seconds() + (context.answer_time if raises else 0)
    since, begun, read_report = time.monotonic(), None, ReadReport(context)
    with suppress(RuntimeError):  # the store is gone, so no rank can read a report
        if raises:
            know_addresses(context.groups.values())
        while not over.wait(context.poll_interval):
            frames = frames_of_thread(thread)
            status = rank_status(context.rank, context.groups, frames, tracker.current)
            respond(context, keys, status)
            if raises and status.operation:
                read_report.break_off_waiting_rank()
            if status.begun != begun or (raises and not status.operation):
                since, begun = time.monotonic(), status.begun
            if time.monotonic() - since > patience:
                summary = f"rank {context.rank} waits in {status.operation}." if raises else ""
                report = report_failure(context, summary, status)
                leave_last(context)
                if report is not None:
                    print(_quote(report, limit), file=sys.stderr, flush=True)
                    return abort_groups(context.groups.values())
                since = time.monotonic()
