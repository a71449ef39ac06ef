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
from ..torch_internals import CONNECT_ATTEMPTS
from .consensus import Participants, Proposal, agree, announce_failure
from .errors import failure_report

Created = TypeVar("Created")

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
    """Find out why creation failed, unless this rank is the reason."""
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
    """Return the result of the work, or undo it if it comes too late."""
    try:
        return run_with_deadline((limit + REPORT_GRACE / 2).total_seconds(), work, late=undo)
    except DeadlineExceededError:
        seconds = limit.total_seconds()
        raise RuntimeError(f"it did not finish within {seconds:g} s") from None
