"""A collective that fails or hangs, told in coordinates.

::

    with mesh.guard(timeout=60):        rank 0 waits in all_reduce ... 60 s: torch gives up
        step()                          rank 2 sleeps in load_batch
                                        its watching thread answers the roll call of rank 0
    CollectiveError, on rank 0:         Behind: rank 2 (dp=1 sp=0) has begun 7 of 8 collectives ...

On gloo the thread that waits gets torch's error, at the group's timeout or at once where a peer has
died. On backends whose calls return before the work is done nobody would: there the watching thread
itself calls the roll once this rank has begun nothing new for the whole time, and where a rank is
behind or does not answer it prints the report and aborts the groups of the mesh.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta

import torch.distributed as dist

from ..core.errors import CollectiveError, MeshkitError
from ..launch.deadline import OverdueError, within
from ..launch.inside import connects_apart, set_timeout, timeout_of
from .place import is_collectives, of_error, of_thread, place
from .rollcall import Site, answer, called, report

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
    with _limited(site, limit), nullcontext() if limit is None else _watched(site, limit):
        try:
            yield
        except BaseException as error:
            translated = _translated(site, error)
            if translated is None:
                raise
            raise translated from error


def _translated(site: Site, error: BaseException) -> MeshkitError | None:
    """The report on a failed collective; None for any other error, of which the others are told."""
    line = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if is_collectives(error):
        mine = place(site.rank, site.groups, of_error(error))
        what = f"{mine.operation or 'a collective'} failed on rank {site.rank}: {line}."
        return report(site, what, mine)
    keys = site.keys
    if keys is not None and not isinstance(error, CollectiveError):
        mine = place(site.rank, site.groups, of_error(error), line)
        with suppress(RuntimeError, OverdueError):  # the error that is under way matters more
            within(TELLING, lambda: answer(keys, mine))
    return None


@contextmanager
def _limited(site: Site, limit: timedelta | None) -> Iterator[None]:
    """Another timeout for the groups whose collectives raise where they wait, and back again."""
    if limit is None or not _raises(site):
        yield
        return
    before = {group: timeout_of(group) for group in site.groups.values()}
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
def _watched(site: Site, limit: timedelta) -> Iterator[None]:
    """A thread beside this one that answers for it."""
    keys = site.keys
    if keys is None:
        yield
        return
    over, me = threading.Event(), threading.get_ident()
    watch = threading.Thread(
        target=_watch, args=(site, keys, limit, me, over), name="meshkit-guard", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join(TELLING)  # a store that answers nothing would keep it


def _watch(
    site: Site, keys: dist.Store, limit: timedelta, thread: int, over: threading.Event
) -> None:
    """Answer a roll call; where a hang raises nothing, call the roll."""
    answered, since, begun = False, time.monotonic(), None
    try:
        while not over.wait(site.look):
            mine = place(site.rank, site.groups, of_thread(thread))
            if not answered and called(keys):
                answer(keys, mine)
                answered = True
            if mine.begun != begun:
                since, begun = time.monotonic(), mine.begun
            if not _raises(site) and time.monotonic() - since > limit.total_seconds():
                return _break(site, limit, thread)
    except RuntimeError:  # the store has gone: nobody is left to be told
        return


def _break(site: Site, limit: timedelta, thread: int) -> None:
    """Report a hang, and abort the groups where a rank is behind or silent."""
    mine = place(site.rank, site.groups, of_thread(thread))
    seconds = limit.total_seconds()
    told = report(site, f"rank {site.rank} has begun no collective for {seconds:g} s.", mine)
    if getattr(told, "behind", ()) or getattr(told, "missing_ranks", ()):
        print(told, file=sys.stderr, flush=True)
        for group in dict.fromkeys(site.groups.values()):
            if hasattr(group, "abort"):
                group.abort()
