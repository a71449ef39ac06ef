"""A collective that fails or hangs, told in coordinates.

::

    with mesh.guard(timeout=60):        rank 0 waits in all_reduce ... 60 s: torch gives up
        step()                          rank 2 sleeps in load_batch
                                        its watching thread answers the roll call of rank 0
    CollectiveError, on rank 0:         Behind: rank 2 (dp=1 sp=0) has begun 7 of 8 collectives ...

On gloo the thread that waits gets torch's error, at the group's timeout or at once where a peer has
died. On backends whose calls return before the work is done nobody would: there the watching thread
itself calls the roll once this rank has begun nothing new for the whole time, and where a rank is
behind or does not answer it prints the report and aborts the groups of the mesh. On gloo it does so
for a collective of a group that is not the mesh's, which has a time of its own.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from ..core.errors import CollectiveError, MeshkitError
from ..launch.deadline import OverdueError, within
from ..launch.inside import connects_apart, set_timeout, timeout_of
from ..launch.store import asked
from .create import abort
from .place import is_collectives, is_of_another_mesh, of_error, of_thread, place
from .rollcall import Site, answer, attend, report, take_back

TELLING = 1.0  # seconds for a rank that leaves to say so


@contextmanager
def guarded(site: Site, limit: timedelta | None) -> Iterator[None]:
    """Translate the errors of collectives inside; with a limit, also turn a hang into one.

    Args:
        site: the mesh.
        limit: how long one collective of the mesh's groups may take inside; None leaves each group
            its own time, and starts no thread.

    Raises:
        CollectiveError: in place of torch's own error, which is the cause.
    """
    if site.rank in site.left and site.keys is not None:
        asked(site.call, site.record.world, TELLING, partial(take_back, site.keys, site.rank))
        site.left.clear()
    raises = _raises(site)
    with (
        _limited(site, limit if raises else None),
        nullcontext() if limit is None else _watched(site, limit, raises),
    ):
        try:
            yield
        except BaseException as error:
            translated = _translated(site, error)
            if translated is None:
                raise
            raise translated from error


def _translated(site: Site, error: BaseException) -> MeshkitError | None:
    """The report on a failed collective; None for any other error, of which the others are told."""
    line = ": ".join(filter(None, (type(error).__name__, str(error).partition("\n")[0])))
    if is_collectives(error):
        mine = place(site.rank, site.groups, of_error(error))
        if is_of_another_mesh(mine):
            return None  # whose guard is around this one, or nowhere
        what = f"{mine.operation or 'a collective'} failed on rank {site.rank}: {line}."
        return report(site, what, mine)
    keys = site.keys
    if keys is not None and not isinstance(error, CollectiveError):
        mine = place(site.rank, site.groups, of_error(error), line)
        with suppress(RuntimeError, OverdueError):  # the error that is under way matters more
            within(TELLING, lambda: answer(keys, mine))
            site.left.add(site.rank)
    return None


@contextmanager
def _limited(site: Site, limit: timedelta | None) -> Iterator[None]:
    """Another timeout for the mesh's groups, and back again."""
    before = {} if limit is None else {group: timeout_of(group) for group in site.groups.values()}
    for group in before:
        set_timeout(group, limit)
    try:
        yield
    finally:
        for group, timeout in before.items():
            set_timeout(group, timeout)


def _raises(site: Site) -> bool:
    """Whether a collective raises in the thread that waits for it, at a time that can be set."""
    return all(connects_apart(str(dist.get_backend(group))) for group in site.groups.values())


@contextmanager
def _watched(site: Site, limit: timedelta, raises: bool) -> Iterator[None]:
    """A thread beside this one that answers for it."""
    keys = site.keys
    if keys is None:
        yield
        return
    over, me = threading.Event(), threading.get_ident()
    # a collective of a group that is not the mesh's has its own time, and raises nothing then
    patience = limit.total_seconds() + (site.answer if raises else 0)
    given = site, keys, patience, raises, me, over
    watch = threading.Thread(target=_watch, args=given, name="meshkit-guard", daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join(TELLING)  # a store that answers nothing would keep it


def _watch(
    site: Site,
    keys: dist.Store,
    patience: float,
    raises: bool,
    thread: int,
    over: threading.Event,
) -> None:
    """Answer roll calls; where a hang raises nothing, call the roll after so many seconds."""
    since, begun = time.monotonic(), None
    with suppress(RuntimeError):  # the store has gone: nobody is left to be told
        while not over.wait(site.look):
            mine = place(site.rank, site.groups, of_thread(thread))
            attend(site, keys, mine)
            if mine.begun != begun or (raises and not mine.operation):
                since, begun = time.monotonic(), mine.begun
            if time.monotonic() - since > patience:
                waits = f"rank {site.rank} waits in {mine.operation}." if raises else ""
                told = report(site, waits, mine)
                if told is not None:
                    print(told, file=sys.stderr, flush=True)
                    return abort(site.groups.values())
                since = time.monotonic()
