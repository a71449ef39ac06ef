"""Create something on all ranks or on none, before a deadline.

After agreement, ranks create groups. torch waits for peers there, with its own timeouts: a rank
that dies at that moment would block the others for half an hour. Creation therefore gets the time
that ranks wait for each other, and a second round follows::

    rank 0   create ........ created   check in ............... reads: 2 is missing, undo
    rank 1   create ................ failed   check in ........ reads: 2 is missing
    rank 2   create .. dies
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

from ...core.errors import DisagreementError, MeshkitError
from ..store.deadline import Deadline, DeadlineExceededError, run_with_deadline
from .consensus import Participants, Proposal, agree, announce_failure
from .errors import failure_report

Created = TypeVar("Created")

# gloo connects to each peer up to five times, each under the timeout of the group.
CONNECT_ATTEMPTS = 5
MIN_TIMEOUT = timedelta(seconds=10)  # a busy machine needs two seconds per attempt
REPORT_GRACE = timedelta(seconds=3)  # for ranks that fail just before the deadline


def commit(
    proposal: Proposal,
    participants: Participants | None,
    timeout: timedelta,
    create: Callable[[timedelta], Created],
    undo: Callable[[Created], None],
    *,
    connects: bool,
) -> Created:
    """Return the result of ``create``, once every rank has created it. Collective.

    Cost: 5 store operations per rank.

    Args:
        proposal: the request of the round that follows creation.
        participants: the ranks and their store; None if there is no store. Then no rank waits.
        timeout: how long ranks wait for each other; at least 10 s are used.
        create: receives the timeout under which a group must connect.
        undo: destroys the result of ``create`` after another rank has failed.
        connects: whether creation waits for peers. If not, only the round has a deadline.

    Raises:
        RankTimeoutError: if ranks died meanwhile, with their numbers, within ``timeout`` plus 8 s.
        DisagreementError: if another rank could not create it, with the error of that rank.
        BaseException: the error of ``create``, on the rank that is the reason.
    """
    limit = max(timeout, MIN_TIMEOUT)
    deadline = Deadline.after(limit + REPORT_GRACE)
    work = partial(create, limit / CONNECT_ATTEMPTS)
    if participants is None:
        return work()
    try:
        created = _run_bounded(limit, work, undo) if connects else work()
    except RuntimeError as error:  # torch's own: a peer may be the reason
        _find_reason(proposal, participants, deadline, error)
        raise
    except BaseException as error:  # this rank's own
        announce_failure(proposal, participants, error)
        raise
    try:
        # A rank that closed its groups while another still connects would leave that one hanging.
        agree(
            proposal,
            participants,
            deadline if connects else Deadline.after(limit + REPORT_GRACE),
        )
    except BaseException:
        undo(created)
        raise
    return created


def _find_reason(
    proposal: Proposal, participants: Participants, deadline: Deadline, error: RuntimeError
) -> None:
    """Find out why creation failed, unless this rank is the reason.

    Raises:
        MeshkitError: with the ranks that died, or the rank that failed first.
    """
    rank = participants.world.rank
    failure = failure_report(proposal.conflict_summary, rank, error)
    try:
        agree(replace(proposal, failure=failure), participants, deadline)
    except DisagreementError as reason:
        if rank not in reason.requests:
            raise reason from error
    except MeshkitError as reason:
        raise reason from error


def _run_bounded(
    limit: timedelta, work: Callable[[], Created], undo: Callable[[Created], None]
) -> Created:
    """Return the result of the work, or undo it if it comes too late.

    Raises:
        RuntimeError: if the work took too long: the store does not answer, or torch below 2.13
            waits under the group's own timeout.
    """
    try:
        return run_with_deadline((limit + REPORT_GRACE / 2).total_seconds(), work, late=undo)
    except DeadlineExceededError:
        seconds = limit.total_seconds()
        raise RuntimeError(f"it did not finish within {seconds:g} s") from None
