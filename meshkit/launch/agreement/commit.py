"""Make something on all ranks or on none, under a deadline.

Once the ranks have agreed they make a group, and torch waits in there for peers under times of its
own: a rank that dies at that moment would keep the others for half an hour. So the making gets the
time in which ranks wait for each other, and then all meet again::

    rank 0   make ........ made    check in ......................... told: 2 is missing, undo
    rank 1   make ................ failed   check in ................ told: 2 is missing
    rank 2   make .. dies
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

from ...core.errors import DisagreementError, MeshkitError
from ..store.check_in import failure_report
from ..store.deadline import DeadlineExceededError, run_with_deadline
from .consensus import Participants, Proposal, agree, announce_failure

Made = TypeVar("Made")

# gloo connects to each peer up to five times, each under the timeout of the group.
CONNECT_ATTEMPTS = 5
MIN_TIMEOUT = timedelta(seconds=10)  # a busy machine needs two seconds for a try
REPORT_GRACE = timedelta(seconds=3)  # for those whose making failed at the very end to say so


def commit_on_all(
    matter: Proposal,
    party: Participants | None,
    wait: timedelta,
    make: Callable[[timedelta], Made],
    undo: Callable[[Made], None],
    *,
    waits: bool,
) -> Made:
    """What ``make`` returns, once every rank has made it. Collective over the party.

    Five store operations a rank.

    Args:
        matter: what the meeting after it is about.
        party: who meets; None where there is no store: then nobody is waited for.
        wait: how long ranks wait for each other; at least 10 s are taken.
        make: is given the timeout under which a group must connect.
        undo: gives back what ``make`` returned, where another rank has failed.
        waits: whether making waits for peers; where not, only the meeting after it is timed.

    Raises:
        RankTimeoutError: naming the ranks that have gone meanwhile, within ``wait`` plus 8 s.
        DisagreementError: where a rank could not make it and all are there, quoting that rank.
        BaseException: whatever ``make`` raises, on the rank where that is the reason.
    """
    began, limit = time.monotonic(), max(wait, MIN_TIMEOUT)
    work = partial(make, limit / CONNECT_ATTEMPTS)
    if party is None:
        return work()
    try:
        made = _run_bounded(limit, work, undo) if waits else work()
    except RuntimeError as error:  # torch's own: a peer may be the reason
        failure = failure_report(matter.about, party.world.rank, error)
        _explain(replace(matter, failure=failure), party, limit + REPORT_GRACE, began, error)
        raise
    except BaseException as error:  # this rank's alone
        announce_failure(matter, party, error)
        raise
    try:
        # A rank that closed its groups while another still connects would leave it hanging.
        agree(matter, party, limit + REPORT_GRACE, since=began if waits else None)
    except BaseException:
        undo(made)
        raise
    return made


def _explain(
    matter: Proposal, party: Participants, wait: timedelta, began: float, error: RuntimeError
) -> None:
    """Hear why making failed, if this rank is not the reason itself.

    Raises:
        MeshkitError: naming who has gone, or who failed first.
    """
    try:
        agree(matter, party, wait, since=began)
    except DisagreementError as told:
        if party.world.rank not in told.requests:
            raise told from error
    except MeshkitError as told:
        raise told from error


def _run_bounded(limit: timedelta, work: Callable[[], Made], undo: Callable[[Made], None]) -> Made:
    """The work, as long as it may wait for peers; what it makes later is undone.

    Raises:
        RuntimeError: where it took longer: the store answers nothing; or torch, below 2.13, waits
            under the group's own time.
    """
    try:
        return run_with_deadline((limit + REPORT_GRACE / 2).total_seconds(), work, late=undo)
    except DeadlineExceededError:
        seconds = limit.total_seconds()
        raise RuntimeError(f"it did not come to an end within {seconds:g} s") from None
