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

from ..core.errors import MeshkitError, RankTimeoutError
from .deadline import OverdueError, within
from .inside import connects
from .meet import Matter, Party, arrive, refuse
from .verdict import refusal

Made = TypeVar("Made")

# gloo connects to each peer up to five times, each under the timeout of the group.
TRIES = 5
LEAST = timedelta(seconds=10)  # a busy machine needs two seconds for a try
REST = timedelta(seconds=3)  # for those whose making failed at the very end to say so


def together(
    matter: Matter,
    party: Party | None,
    wait: timedelta,
    make: Callable[[timedelta], Made],
    undo: Callable[[Made], None],
) -> Made:
    """What ``make`` returns, once every rank has made it. Collective over the party.

    Args:
        matter: what the meeting after it is about.
        party: who meets; None where there is no store: then nobody is waited for.
        wait: how long ranks wait for each other; at least 10 s are taken.
        make: is given the timeout under which a group must connect.
        undo: gives back what ``make`` returned, where another rank has failed.

    Raises:
        RankTimeoutError: naming the ranks that have gone meanwhile, within ``wait`` plus 6 s.
        DisagreementError: on the others, where a rank could not make it and all are there.
        BaseException: whatever ``make`` raises on this rank, where nobody is missing.
    """
    began, limit = time.monotonic(), max(wait, LEAST)
    work = partial(make, limit / TRIES)
    if party is None:
        return work()
    meeting = partial(arrive, party=party, wait=limit + REST, since=began)
    try:
        made = _bounded(party, limit, work)
    except RuntimeError as error:  # torch's own: a peer may be the reason
        failure = refusal(matter.about, party.world.rank, error)
        try:
            meeting(replace(matter, failure=failure))
        except RankTimeoutError as gone:
            raise gone from error
        except MeshkitError:  # all are there: what went wrong here is the reason
            pass
        raise
    except BaseException as error:  # this rank's alone
        refuse(matter, party, error)
        raise
    try:
        # A rank that closed its groups while another still connects would leave it hanging.
        meeting(matter)
    except BaseException:
        undo(made)
        raise
    return made


def _bounded(party: Party, limit: timedelta, work: Callable[[], Made]) -> Made:
    """The work; where it waits for peers at a store, only as long as it may."""
    if not connects(str(party.world.backend)):
        return work()
    try:
        return within((limit + REST / 2).total_seconds(), work)
    except OverdueError:  # the store answers nothing; or torch below 2.13 waits on its own time
        raise RuntimeError(
            f"it did not come to an end within {limit.total_seconds():g} s"
        ) from None
