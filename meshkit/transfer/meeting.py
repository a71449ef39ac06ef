"""Let two jobs meet at a store that is theirs together.

Each side has a number, one more at each start: the newest counts, so a job that is started again
takes the place of its last start. The first rank of a side leads: it acts at the store, and the
others follow what it writes. The keys, below the name of the bridge::

    sides/<side>/number              the newest number of a side
    sides/<side>/<n>/replaced        the process of start n, which found that a newer one has joined
    sides/<side>/<n>/call/<c>/       the outcome of a call of the leader of start n
    transfers/<t>/<side>/newest <n.c>   the statement of each call of bridge.transfer by start n
    transfers/<t>/<side>/failed      why a side has left no statement
    transfers/<t>/refused/<n.c> <n.c>   two statements that do not fit
    transfers/<t>/waiting            the side that waits for the other one
    transfers/<t>/met/<attempt>      the answer of the other one
    transfers/<t>/version            the number of the last exchange
    transfers/<t>/exchanges/<v>/     the rounds of all ranks of both sides in an exchange
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import DisagreementError, LaunchError, MeshkitError, RankTimeoutError
from ..launch.judges import Decision, Json, Process, RankState
from ..launch.process import current_process, sight
from ..launch.round import Round
from ..launch.store import Store, read_value
from ..launch.times import TIMES, Deadline
from .bridge_plan import CALL, SIDES, BridgePlan, Statement, plan_bridge

NEWEST = "newest"
GAVE_UP = "failed"
WAITING = "waiting"
VERSION = "version"


class Met(NamedTuple):
    """Two sides that have met: the number of their exchange, and the statement of the other one."""

    version: int
    other: str


@dataclass(eq=False)
class Side:
    """One start of a side of a bridge, as one of its ranks sees it."""

    store: Store  # the part of the bridge
    name: str  # trainer or sampler
    number: int  # of this start
    rank: int  # the position in the mesh of this side
    calls: int = 0  # how often the leader of this start has acted
    attempts: int = 0  # how often this start has called bridge.transfer
    # statements of the other side to the one of this side that they did not fit
    misfits: dict[str, Statement] = field(default_factory=dict)

    @property
    def other(self) -> str:
        """The name of the other side."""
        return SIDES[SIDES.index(self.name) - 1]

    @property
    def label(self) -> str:
        """The name of the statement of this start."""
        return f"{self.number}.{self.attempts}"

    @property
    def where(self) -> str:
        """The address of the bridge."""
        return str(self.store.world.init_method)

    def lead(self, act: Callable[[], Json], deadline: Deadline) -> Json:
        """Return what the leader returns, or raise its error, on each rank of this side.

        The caller has made sure that all ranks of this side are here.
        """
        part = self.store.part(f"sides/{self.name}/{self.number}")
        self.calls += 1
        summary = f"the first rank of the {self.name} failed."
        round = Round(part, f"call/{self.calls}", self.rank, (), summary=summary)
        if self.rank:
            # the leader may need a moment more than the deadline
            decision = round.follow(deadline) or round.follow(Deadline.after(TIMES.store))
            if decision is None:
                line = f"the first rank of the {self.name} did not act at {self.where}."
                fix = "look at its log first."
                raise RankTimeoutError(line, fix=fix, missing_ranks=(0,))
            return decision.check(self.rank).value
        Round(part, f"call/{self.calls - 1}", self.rank, ()).forget()
        with round:  # an error of another class is announced by the round
            try:
                decision = Decision(value=act())
            except MeshkitError as error:
                round.is_over = True
                round.try_say(Decision(error), TIMES.host_stays)  # the store may be what is lost
                raise
            return round.say(decision).value

    # ------------------------------------------------------------- statements

    def state(self, transfer: Store, statement: Statement) -> None:
        """Write the statement of this start. Local."""
        label, text = self.label, statement.to_json()

        def post() -> None:
            transfer.set(f"{self.name}/{label}", text)
            transfer.set(f"{self.name}/{NEWEST}", label)

        transfer.within(TIMES.store, post)

    def give_up(self, transfer: Store, error: MeshkitError) -> None:
        """Let the other side know why this one leaves no statement. Local, on the leader."""
        key, text = f"{self.name}/{GAVE_UP}", f"{type(error).__name__}: {error.headline}"
        if not self.rank:
            transfer.try_within(TIMES.store, lambda: transfer.set(key, f"{self.label} {text}"))

    def read(self, transfer: Store, label: str) -> Statement:
        """Return a statement of the other side. Local."""
        key = f"{self.other}/{label}"
        statement = transfer.within(TIMES.store, lambda: transfer.read(key, Statement.from_json))
        if statement is None:
            line = f"the {self.other} has left no statement at {self.where}."
            raise LaunchError(line, fix="bridge.transfer() as often on both sides.")
        return statement

    def plan(self, own: Statement, other: Statement) -> BridgePlan:
        """Return what moves between the two sides. Local."""
        return plan_bridge(*((own, other) if self.name == SIDES[0] else (other, own)))

    def find_other(self, transfer: Store, own: Statement, deadline: Deadline) -> str:
        """Wait for a statement of the other side that fits; return its label. Local.

        A statement that does not fit may be of a start that has ended. Unless the other side is
        known to be there, this waits for a newer one.
        """
        (first, failed), label = self._look(transfer), ""
        while True:
            self._check_alone()
            label, failure = self._look(transfer)
            if label and self.misfits.get(label) != own:
                other = self.read(transfer, label)
                try:
                    self.plan(own, other)
                    return label
                except MeshkitError:
                    labels = {self.name: self.label, self.other: label}
                    key = f"refused/{' '.join(labels[side] for side in SIDES)}"
                    is_there = label != first or sight(other.process).state is RankState.BUSY
                    refused = transfer.within(TIMES.store, lambda: transfer.has(key))  # noqa: B023
                    if is_there or refused or deadline.expired:
                        self.misfits[label] = own
                        transfer.try_within(TIMES.store, lambda: transfer.set(key, "1"))  # noqa: B023
                        raise
            if failure != failed or (failure and deadline.expired):
                line = f"the {self.other} failed in {CALL}(): {failure.partition(' ')[2]}"
                raise DisagreementError(line, fix=f"look at the log of the {self.other} first.")
            if deadline.expired:
                raise self._missing_error(None, deadline, f"call {CALL}()")
            time.sleep(min(TIMES.poll, deadline.left))

    def _look(self, transfer: Store) -> tuple[str, str]:
        """Return the label of the newest statement of the other side, and its last failure."""
        keys = f"{self.other}/{NEWEST}", f"{self.other}/{GAVE_UP}"
        texts = transfer.within(TIMES.store, lambda: [transfer.read(key, str) for key in keys])
        label, failure = (text or "" for text in texts)
        return label, failure

    def _check_alone(self) -> None:
        """Raise if two jobs have joined as this side, on both if none is the other side. Local."""
        own, before = (f"sides/{self.name}/{n}/replaced" for n in (self.number, self.number - 1))

        def look() -> tuple[bool, bool]:
            is_replaced = self._number_of(self.name) != self.number
            if is_replaced:
                self.store.set(own, str(current_process()))
            is_lonely = not self._number_of(self.other)
            return is_replaced, is_lonely and (is_replaced or self.store.has(before))

        is_replaced, are_two = self.store.within(TIMES.store, look)
        if are_two:
            line = f"two jobs have joined {self.where} as {self.name}, and none as {self.other}."
            raise LaunchError(line, fix=f"side={self.other!r} in one of them.")
        if is_replaced:
            raise self._replaced_error()

    def _replaced_error(self) -> LaunchError:
        line = f"another job has joined {self.where} as {self.name} since."
        return LaunchError(line, fix="one job a side, or another name at the store.")

    def _missing_error(
        self, process: Process | None, deadline: Deadline, deed: str
    ) -> RankTimeoutError:
        """Return the error of a side that does not come."""
        other = self.other
        lines = [f"The bridge is {self.where}, and this is the {self.name}."]
        fix = f"mesh.bridge({self.where!r}, side={other!r}) in the other job."
        if process is not None:
            ended = {RankState.ENDED: ", has ended", RankState.STOPPED: ", is stopped"}
            text = ended.get(sight(process).state, "")
            lines.append(f"The first rank of the {other} was {process}{text}.")
            fix = f"look at the log of the {other}; it can be started again."
        elif self.store.try_within(TIMES.host_stays, lambda: self._number_of(other)):
            fix = f"{CALL}() in the {other}, which has joined; if it has ended, start it again."
        return RankTimeoutError(f"the {other} did not {deed} within {deadline}.", *lines, fix=fix)

    # ------------------------------------------------------------- meetings

    def meet(self, transfer: Store, own: str, other: Process, deadline: Deadline, deed: str) -> Met:
        """Wait for the other side in a transfer. Local, on the leader.

        ``own`` is the label of the statement of this side, and the number of its exchange. The
        first side to come leaves its name with it. The second one takes it away, counts a version
        and answers. A name of a side that has been started again since is taken away too.
        """
        seconds = TIMES.store - TIMES.host_stays  # the rest is for the error
        name = f"{self.name} {own}"
        met = transfer.within(deadline.left + seconds, lambda: self._meet(transfer, name, deadline))
        if met is None:
            raise self._missing_error(other, deadline, deed)
        return met

    def _meet(self, transfer: Store, own: str, deadline: Deadline) -> Met | None:
        while True:
            if self._number_of(self.name) != self.number:
                raise self._replaced_error()
            waiting = transfer.claim(WAITING, own).decode(errors="replace")
            if waiting == own:
                break
            side, _, rest = waiting.partition(" ")
            label = rest.partition(" ")[0]
            number = label.partition(".")[0]
            if side == self.other and number == str(self._number_of(self.other)):
                if transfer.claim(WAITING, "", waiting) == b"":
                    version = transfer.add(VERSION, 1)
                    transfer.set(f"met/{waiting}", json.dumps([version, own.split()[1]]))
                    return Met(version, label)
            else:  # of an earlier start
                transfer.claim(WAITING, "", waiting)
        answer = transfer.wait(f"met/{own}", deadline)
        if answer is None and transfer.claim(WAITING, "", own) != b"":  # it was taken just now
            answer = transfer.wait(f"met/{own}", Deadline.after(TIMES.host_stays))
        if answer is None:
            return None
        transfer.delete(f"met/{own}")
        return read_value(f"met/{own}", answer, _read_met)

    def _number_of(self, side: str) -> int:
        return self.store.add(f"sides/{side}/number", 0)


def _read_met(text: str) -> Met:
    version, other = json.loads(text)
    return Met(int(version), str(other))
