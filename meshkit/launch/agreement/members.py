"""Decide which ranks live, once for all: a round in which ranks of an unknown number check in.

A rank that has not checked in is waited for until the deadline, unless its process is known to have
ended. A rank that was silent in the report of the failure is given less time, if the caller says
so. The first rank for which nobody is left to wait for writes the decision, and all follow it::

    rank 0   fails, checks in .......... 1 and 2 are here, 3 has ended: writes "0, 1, 2"
    rank 1   fails ....... checks in ... reads: it lives
    rank 2   fails ... checks in ....... reads: it lives
    rank 4   is stopped ........................................ resumes, reads: it is lost

If no rank knows of a failure, nothing is decided about them: the round is an error on all ranks.
A round that admits newcomers needs no failure. Newcomers check in and follow, but never decide.

Cost: 4 store operations per rank, and 3 more twenty times a second while it waits.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch.distributed as dist

from ...core.errors import DisagreementError, MeshkitError, RankTimeoutError
from ...core.text import count_noun, format_ranks, plural
from ..store import keys
from ..store.check_in import CheckIn, ProcessIdentity, read_check_ins
from ..store.deadline import Deadline, store_wait
from ..store.error_json import error_from_json, error_to_json
from ..store.rank_lease import LeaseHolder

POLL = 0.05  # seconds between two looks at the check-ins, at least
POLL_PER_RANK = 0.001  # the same for each rank, so that all together do not load the store
NEWCOMER_TIME = 5.0  # seconds that newcomers are waited for, which wait at the store already
SAME = ("mesh", "min_ranks")  # values that must be equal on all ranks that pass them
FAILED = "failed"  # present if the rank knows of a failure

Request = Mapping[str, str]


@dataclass(frozen=True)
class Members:
    """The ranks that live, and the request of each."""

    requests: Mapping[int, Request]

    @property
    def ranks(self) -> list[int]:
        """The ranks that live, ascending."""
        return sorted(self.requests)


@dataclass(frozen=True)
class MembershipRound:
    """One round of this rank.

    Attributes:
        store: the store of the round.
        rank: this rank.
        ranks: the ranks that may live, this one among them.
        request: the values that this rank passes to all.
        deadline: the end of the wait for other ranks.
        silent: the ranks that did not answer when the failure was reported.
        silent_time: seconds that silent ranks are waited for.
        holders: the process of each rank, as far as known.
        newcomers: those of the ranks that this round may admit.
        began: when the wait began, in seconds of the monotonic clock.
    """

    store: dist.Store
    rank: int
    ranks: Sequence[int]
    request: Request
    deadline: Deadline
    silent: Collection[int]
    silent_time: float
    holders: Mapping[int, LeaseHolder]
    newcomers: Collection[int] = ()
    began: float = field(default_factory=time.monotonic)

    def decide(self) -> Members | None:
        """Check in, wait, and return the ranks that live.

        None if the round had ended without a failure before this rank came to report one.
        """
        came_late = self.store.check([keys.DECISION])
        if not came_late:
            self._check_in()
        while not self.store.check([keys.DECISION]):
            decision = self._judge()
            if decision is None:
                time.sleep(max(POLL, POLL_PER_RANK * len(self.ranks)))
            else:
                self.store.compare_set(keys.DECISION, "", decision)
        return self._follow(self.store.get(keys.DECISION).decode(), came_late)

    def join(self) -> Members:
        """Check in as a newcomer, and return the ranks that live, as the others have decided."""
        self._check_in()
        if not store_wait(self.store, [keys.DECISION], self.deadline):
            raise RankTimeoutError(
                f"the ranks of the job did not decide within {self.deadline}.",
                fix="look at the logs of the ranks that run.",
            )
        decision = self.store.get(keys.DECISION).decode()
        return cast(Members, self._follow(decision, came_late=False))

    def _check_in(self) -> None:
        CheckIn(ProcessIdentity.current(), self.request).post(self.store, self.rank)
        self.store.set(keys.BEGUN, "")

    def _follow(self, decision: str, came_late: bool) -> Members | None:
        """Return the members that a decision names, or raise its error."""
        record = json.loads(decision)
        if "error" in record:
            if came_late and FAILED in self.request:
                return None
            raise error_from_json(decision)
        requests = {int(rank): request for rank, request in record["members"].items()}
        if self.rank in requests:
            return Members(requests)
        ranks = sorted(requests)
        raise RankTimeoutError(
            f"rank {self.rank} was declared lost, as it did not come in time.",
            f"{plural('Rank', len(ranks))} {format_ranks(ranks)} "
            f"{'goes' if len(ranks) == 1 else 'go'} on without it.",
            fix="end this process.",
        )

    def _judge(self) -> str | None:
        """Return the decision; None while there is a rank to wait for."""
        missing = {*_missing(self.store, self.ranks)}
        ended = {rank for rank in missing if self._has_ended(rank)}
        awaited = missing - ended
        if time.monotonic() - self.began >= self.silent_time:
            awaited -= {*self.silent}
        if time.monotonic() - self.began >= NEWCOMER_TIME:
            awaited -= {*self.newcomers}
        if awaited and not self.deadline.expired:
            return None
        arrived = [rank for rank in self.ranks if rank not in missing]
        check_ins = read_check_ins(self.store, arrived)
        known = bool(ended or self.newcomers)
        error = _objection(check_ins, sorted(missing), known=known, wait=self.deadline)
        if error is not None:
            return error_to_json(error)
        return json.dumps({"members": {rank: check_ins[rank].request for rank in arrived}})

    def _has_ended(self, rank: int) -> bool:
        return rank in self.holders and self.holders[rank].runs() is False


def _missing(store: dist.Store, ranks: Sequence[int]) -> list[int]:
    """Return the ranks that have not checked in, by bisection: one check covers many keys."""
    if store.check([keys.CHECK_IN.format(rank) for rank in ranks]):
        return []
    middle = len(ranks) // 2
    if not middle:
        return [*ranks]
    return _missing(store, ranks[:middle]) + _missing(store, ranks[middle:])


def _objection(
    check_ins: Mapping[int, CheckIn], missing: list[int], *, known: bool, wait: Deadline
) -> MeshkitError | None:
    """Return the error of a round that has nothing to recover from, or whose ranks differ."""
    for name in SAME:
        requests = {r: c.request[name] for r, c in check_ins.items() if name in c.request}
        if len({*requests.values()}) > 1:
            lines = (f"Rank {rank}: {name} {text}." for rank, text in sorted(requests.items())[:8])
            return DisagreementError(
                "ranks recover different meshes.",
                *lines,
                fix="call recover on the same mesh, with the same min_ranks, on all ranks.",
                requests=requests,
            )
    if known or any(FAILED in check_in.request for check_in in check_ins.values()):
        return None
    fix = "call it after a CollectiveError, for example of mesh.guard(timeout=60)."
    if not missing:
        summary = f"the mesh is healthy: all {count_noun(len(check_ins), 'rank')} are here."
        return MeshkitError(summary, "No rank has seen a collective fail.", fix=fix)
    return RankTimeoutError(
        f"{plural('rank', len(missing))} {format_ranks(missing)} did not call it within {wait}.",
        "No rank has seen a collective fail, so the mesh is unchanged.",
        fix=fix,
        missing_ranks=tuple(missing),
    )


def own_request(
    mesh: str, *, failed: bool, step: int | None, holds_state: bool, **same: str
) -> dict[str, str]:
    """Return the request of a rank, with more values that must be the same on all ranks."""
    request = {"mesh": mesh, **same}
    if failed:
        request[FAILED] = "yes"
    if holds_state:
        request["step"] = "" if step is None else str(step)
    return request


def held_steps(members: Members) -> dict[int, int | None]:
    """Return the completed steps of each rank that holds a state; None if it gives no step."""
    return {
        rank: int(request["step"]) if request["step"] else None
        for rank, request in members.requests.items()
        if "step" in request
    }
