"""Report a collective that fails or hangs, with the coordinates of the ranks that cause it.

::

    with mesh.guard(timeout=60):        rank 0 waits in all_reduce ... after 60 s torch raises
        step()                          rank 2 sleeps in load_batch
                                        its watching thread answers the roll call of rank 0
    CollectiveError, on rank 0:         Behind: rank 2 (dp=1 sp=0) has begun 7 of 8 collectives ...

A rank that leaves a guard posts how it left: with counts of its collectives, which the last rank to
leave compares, or with an error of its own, which the roll calls of other ranks report.

A guard inside that of another mesh, for example of its view, has no roll call of its own, and its
groups are part of the outer report. So all ranks raise one report, whichever group they wait in.

With a timeout, a collective of the mesh may take that long inside. A thread on each rank reads the
store twice a second, so that ranks that hang answer too. Other errors
pass unchanged, and the other ranks quote them at the timeout. The DisagreementError of a first
batch is raised by all ranks. Without a timeout a guard costs nothing until a collective fails. The
seconds of each case are in the docs, on "Promises about failures".

On leaving a guard with a timeout, a rank posts how many collectives it has begun over each group,
and waits for nobody. The last rank to leave compares them, and raises if they differ: a rank has
skipped a collective, so sums may be wrong. On gloo sends and receives count too: there groups along
a pipeline are left out; over others, use a group of your own for them. A rank that had guards of
the mesh open in two threads or tasks at once is not compared.

A guard may be entered again, by several threads and asyncio tasks at once. As a decorator it lasts
as long as the body of a function, a coroutine or a generator.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist

from ..call import quotes_call
from ..errors import CollectiveError, DisagreementError, MeshkitError, RankTimeoutError, text_of
from ..groups.close_mesh import EXIT, OVER, OWN, STATUS
from ..groups.registry import MeshGroups
from ..groups.status import (
    CollectiveTracker,
    find_collective_error,
    frames_of_error,
    tracking,
)
from ..launch.disagreement import RankStatus
from ..launch.job import Job
from ..launch.judges import MAX_NAMES, Decision
from ..launch.store import Store, error_to_json, read_value
from ..launch.times import TIMES, Time, parse_timeout
from ..launch.torch_groups import backend_of, is_nccl, knows_group
from ..layout.axes import has_pipeline
from .hang import hang_error, lagging_ranks
from .reentrant import ReentrantGuard
from .roll_call import quote_guard, read_disagreement, report_failure
from .sampling import StepSampler
from .state import Guard, GuardedMesh, GuardState, last_report, parse_facts
from .watch import watching

EXITS = "exits/{}"  # how many ranks have left the guard of this number; the last one deletes it
MAX_TEXT = 1000  # characters of the error of a rank that a report shows
MESSAGES = "Sends and receives count too: make those of some ranks alone over a group of their own."
UNEQUAL = "ranks have begun different numbers of collectives in their groups."


@quotes_call("mesh.guard")
def guard(
    self: GuardedMesh, *, timeout: Time | None = None, stragglers: bool = False
) -> AbstractContextManager[None]:
    """Report a failed collective inside with coordinates: the ranks behind, the ranks gone.

    Enter it on every rank. Run on gloo, and with NCCL on one GPU that several ranks share. A
    collective inside may take as long as ``timeout``; on other backends than gloo, so long may
    a rank start none. Other errors pass unchanged. :mod:`meshkit.guard.guard` says how, and
    what is compared at the end. A guard may be entered again, by several threads and tasks at
    once, and decorate a function.

    Raises:
        CollectiveError: the same on every rank, within 3 s of torch's own error on the first
            one, which is the cause. It ends the waits of all ranks, also over groups of the
            user, within a second more. Call :meth:`recover` then; or close the mesh, shut down
            and build again. Also on leaving, if ranks have begun different numbers of
            collectives.

    With ``stragglers=True`` and a guard around each step, the log of the first rank names ranks
    that are late of their own, by how much and since which step, counted from 1; at most once a
    minute. :mod:`meshkit.guard.sampling` says how. Run on gloo with a store over TCP; else nothing
    is measured, and the log says so.

    Cost: none without a timeout; with one, two store operations on leaving, which waits for
    nobody, and a thread that reads the store twice a second. With ``stragglers=True`` a thread that
    takes 0.1 to 0.5 ms a step, and a store operation in 6 steps.

    Example:
        ``with mesh.guard(timeout=60): loss.backward()``
    """
    job, state = self._proposal.job, self._guard_state
    return guard_mesh(self._groups, job, state, timeout, stragglers=stragglers)


def guard_mesh(
    mesh: MeshGroups,
    job: Job,
    state: GuardState,
    timeout: Time | None,
    *,
    stragglers: bool = False,
) -> AbstractContextManager[None]:
    """Check the arguments, and return a guard."""
    mesh.check_can_communicate()
    limit = parse_timeout("timeout", timeout)

    @quotes_call("mesh.guard")
    def begin() -> AbstractContextManager[None]:  # at each entry: the mesh may be closed meanwhile
        mesh.check_can_communicate()
        # the user may have destroyed some
        groups = {axes: group for axes, group in mesh.groups.by_key.items() if knows_group(group)}
        own = mesh.plan.layout, job, groups, mesh.round_id, state
        limited = [group for _, group in mesh.held if knows_group(group)]
        guard = Guard(*own, mesh.edges, mesh.registry.groups)
        if stragglers and state.sampler is None:
            sees_waits = _raises_in_caller(guard)
            state.sampler = StepSampler(guard.layout, job, guard.store if sees_waits else None)
            mesh.posted.add(f"guard/{OWN.format(mesh.rank)}")
        sampler = state.sampler if stragglers else None
        return _guard(guard, limited, limit, sampler)

    return ReentrantGuard(begin)


def post_end(mesh: MeshGroups, job: Job, state: GuardState, call: str) -> None:
    """Post the call by which this rank stops using a mesh. Local. Cost: one store operation.

    A rank that left a guard with an error of its own has posted that.
    """
    if state.sampler is not None:
        state.sampler.stop()
    layout = mesh.plan.layout
    is_read = layout.num_ranks > 1 and mesh.rank in layout  # by the roll calls of the other ranks
    if is_read and not (mesh.is_closed or state.has_left):
        guard = Guard(layout, job, {}, mesh.round_id, state)
        guard.post(RankStatus(mesh.rank, ended_by=call))


@contextmanager
def _guard(
    guard: Guard,
    limited: Sequence[dist.ProcessGroup],
    limit: timedelta | None,
    sampler: StepSampler | None,
) -> Iterator[None]:
    """Translate the errors of collectives inside; with a limit, also turn a hang into an error."""
    store = guard.store
    if guard.state.has_left and store is not None:
        store.run(lambda: store.set(STATUS.format(guard.rank), ""))
        guard.state.has_left = False
    raises = _raises_in_caller(guard)
    number = None if limit is None else next(guard.state.numbers)
    with (
        tracking(limit, number or 0) as tracker,
        guard.job.counts.timeouts.lower(limited, limit),
        guard.state.opened(tracker, number),
        nullcontext() if sampler is None else sampler.measure(),
        watching(guard, tracker, limit, raises) as reporter,
    ):
        try:
            yield
            tracker.check_pending(wait=limit is not None)
        except BaseException as error:
            if guard.job.pid != os.getpid():  # a forked child leaves the block of its parent
                raise
            translated = None
            if reporter is guard or find_collective_error(error):
                translated = _translate(reporter, tracker, error)
            _end_by_error(guard, number)
            of_torch = type(error) is RuntimeError or isinstance(error, dist.DistError)
            if translated is None or not (of_torch or isinstance(error, MeshkitError)):
                raise  # an error of the user passes, also one raised from a failure
            raise quote_guard(translated, limit) from error
        if guard.job.pid != os.getpid():
            return
        failure = _report_of_abort(reporter)
        if failure is not None:
            _end_by_error(guard, number)
        elif number is not None:
            failure = _leave(guard, number, name_of_thread() if tracker.is_alone else "")
        if failure is not None:
            raise quote_guard(failure, limit)


def _raises_in_caller(guard: Guard) -> bool:
    """Return whether each collective raises in the thread that waits for it, at its timeout."""
    groups = guard.groups.values()
    return all("gloo" in backend_of(group) and not is_nccl(group) for group in groups)


def name_of_thread() -> str:
    """Return the name of this thread, and of the task that runs in it. Local."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs
        task = None
    return threading.current_thread().name + (f" {task.get_name()}" if task is not None else "")


def _translate(
    guard: Guard, tracker: CollectiveTracker, error: BaseException
) -> MeshkitError | None:
    """Return the report on a failed collective; for any other error, post it and return None."""
    for each in tracker.around():
        each.leaving = time.monotonic(), None
    failure = find_collective_error(error)
    origin = failure or error
    first_line = text_of(origin).partition("\n")[0][:MAX_TEXT]
    line = ": ".join(filter(None, (type(origin).__name__, first_line)))
    arguments = frames_of_error(error, origin), tracker.of_error(origin)
    if failure is not None:
        guard.state.has_failed = True
        status = guard.status(tracker, *arguments)
        for each in tracker.around():
            each.leaving = time.monotonic(), status
        if status.is_other_mesh:
            return None  # the guard of that mesh reports it, if there is one
        summary = f"{status.operation or 'a collective'} failed on rank {guard.rank}: {line}."
        return report_failure(guard, guard.store, summary, status)
    if isinstance(error, RankTimeoutError):
        if disagreement := read_disagreement(guard):
            return disagreement  # why ranks did not come to a barrier
        error.evidence = (*error.evidence, *_how_left(guard, error.missing_ranks))
    if not isinstance(error, CollectiveError):
        status = guard.status(tracker, *arguments, line)
        guard.post(status)
        guard.state.has_left = True
        if isinstance(error, DisagreementError) and error.for_all:
            decision = Decision(value=error_to_json(error))
            report_failure(guard, guard.store, "", status, lambda _: decision)
    for each in tracker.around()[1:]:  # the block around this guard may go on
        each.leaving = None
    return None


def _how_left(guard: Guard, ranks: Sequence[int]) -> list[str]:
    """Return with which errors ranks have left the guard, as lines. Local."""
    if (store := guard.store) is None:
        return []
    named = [rank for rank in ranks if rank in guard.layout][:MAX_NAMES]
    left = store.try_within(TIMES.answer, lambda: guard.left(store, named)) or {}
    return [f"Rank {rank} {str(s).rstrip('.')}." for rank, s in left.items() if s.has_left]


def _report_of_abort(guard: Guard) -> MeshkitError | None:
    """Return the report after which this rank has aborted the groups, if it has."""
    on_nccl = guard.job.counts.is_aborted and any(map(is_nccl, guard.groups.values()))
    return last_report(guard.state) if on_nccl or guard.state.is_aborted else None


def _count_exit(guard: Guard, store: Store, number: int) -> bool:
    """Count that this rank has left a guard; return whether it is the last one. Local.

    Each rank counts once for each guard, also if an error ends it, so that no key stays. A recovery
    deletes those of the guards in which ranks were lost.
    """
    key = EXITS.format(number)
    is_last = store.add(key, 1) == guard.layout.num_ranks
    if is_last:
        store.delete(key)
    else:
        guard.state.exits.append(key)
    return is_last


def _end_by_error(guard: Guard, number: int | None) -> None:
    """Count that an error ends a guard with a timeout on this rank; the store may be lost. Local.

    ``number`` is None in a guard without a timeout, which is not counted.
    """
    if number is not None and (store := guard.store) is not None and not guard.state.is_lost:
        store.try_within(TIMES.host_stays, partial(_count_exit, guard, store, number))


def _leave(guard: Guard, number: int, thread: str) -> MeshkitError | None:
    """Post how many collectives this rank has begun, and end a false alarm. Nobody waits.

    The last rank to leave a guard of this number returns the error of ranks whose counts differ.
    Collectives are counted for all threads together. So only ranks are compared that were in guards
    of the mesh in one thread, of the same name; else ``thread`` is empty.
    On other backends than nccl sends and receives count too, so groups along a pipeline are left
    out there. Local.

    Cost: two store operations; on the last rank three more, or two per rank in a file.
    """
    store, layout = guard.store, guard.layout
    if store is None or layout.num_ranks == 1:
        return None
    begun = guard.status(None).begun
    messages = {name for name, group in guard.named().items() if not is_nccl(group)}
    uncounted = {name for name in messages if has_pipeline(name.split())}
    facts = json.dumps(RankStatus(guard.rank, begun, left_guard=number, thread=thread).to_facts())

    def post() -> bool:
        if alarm := guard.state.alarm:
            store.set(OVER.format(alarm), "")
            guard.state.alarm, guard.state.reports[alarm] = 0, None
        store.set(EXIT.format(guard.rank), facts)
        return _count_exit(guard, store, number)

    def compare() -> MeshkitError | None:
        statuses = {}
        for rank, facts in read_exits(store, [*map(int, layout.grid.flat)]).items():
            status = RankStatus.from_facts(rank, facts)
            counts = {name: n for name, n in status.begun.items() if name not in uncounted}
            if thread and (status.left_guard, status.thread) == (number, thread):
                statuses[rank] = replace(status, begun=counts)
        differs = bool(lagging_ranks(layout, statuses))
        return hang_error(UNEQUAL, layout, statuses, {}) if differs else None

    seconds = TIMES.host_stays if store.is_file else TIMES.store  # a file system may hang for ever
    is_last = store.try_within(seconds, post, store.time_for_names)
    guard.state.is_lost = is_last is None
    if not is_last:
        return None
    error = store.try_run(compare)
    if error is not None:
        if messages:
            error = error.but(evidence=(*error.evidence, MESSAGES))
        guard.post(RankStatus(guard.rank, begun, error=f"CollectiveError: {error.summary}"))
        guard.state.has_left = True
    return error


def read_exits(store: Store, ranks: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return what ranks have posted as they left their last guard; empty for those that have not.

    Cost: two store operations; two per rank in a file, or if a rank has not.
    """
    keys = [EXIT.format(rank) for rank in ranks]
    if texts := [] if store.is_file else store.get_all(keys):
        read = partial(read_value, parse=parse_facts)
        return dict(zip(ranks, map(read, keys, texts), strict=True))
    facts = (store.read(key, parse_facts) or {} for key in keys)
    return dict(zip(ranks, facts, strict=True))
