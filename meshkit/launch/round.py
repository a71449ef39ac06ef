"""A round: ranks leave a record each, one of them decides, and all follow the first decision.

::

    rank 0   arrive ............................ wait ... reads "ok"
    rank 1   arrive .... wait .................. wait ... reads "ok"
    rank 2   arrive, the last of three: writes "ok"

A round is open until a rank writes the decision, which a judge of :mod:`meshkit.launch.judges`
determines. The last rank to arrive writes it, or the first rank whose deadline has passed. Some
rounds, for example a roll call, may end before all ranks have arrived. In these the first four
ranks that wait look again and again at what has arrived, and one of them writes the decision. In
a round of a job that has begun, a rank that waits writes it as soon as the process of a missing
rank has ended on its machine. A rank whose own call fails writes its error as the decision at once.
A rank that comes later reads the decision. The keys of a round, below its name::

    key            value                                      written by
    first          the facts of one rank, and their digest    the first rank that must be equal
    conflict       two ranks that differ, or an error         the first rank that differs or fails
    unique/<key>   the rank that has this value               the first rank that has it
    arrived        a line for each: process and facts         each rank, before it counts
    count          how many ranks have arrived                each rank
    judging        how many ranks look again and again        each rank that waits, if some look
    deciders       how many ranks are past their deadline     each of these ranks
    decision       the outcome                                the last rank, a judge, a failed one
    read           how many ranks have read an error          each rank; rank 0 leaves last

They go together, once every rank has left the round.

::

    with Round(store, "init", rank, ranks) as round:  # an error that leaves the block is announced
        request = ...
        round.arrive(request, same=True)
        round.decide(all_same(summary), deadline).check(rank)

The start of a job and the roll calls of a guard use rounds of their own. All other calls go through
:mod:`meshkit.launch.agreement`.

A conflict is posted before the rank counts as arrived, so the last rank sees every conflict. If
there is none, it decides without reading what the others have left.

Cost: 4 store operations per rank, one more for each ``unique`` key, and one more for the last rank.
A wait counts as one, however often it looks.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ..errors import MeshkitError, RankTimeoutError
from ..text import group_by
from .judges import Arrival, Arrivals, Decision, Json, Judge, Look, Process, failure_error
from .process import current_process, have_ended
from .store import Store, error_from_json, error_to_json, read_value
from .times import TIMES, Deadline

Result = TypeVar("Result")
Processes = Callable[[], Mapping[int, Process]]  # of ranks, as far as known; in a deadline

JUDGES = 4  # ranks that look again and again in a round that may end early; the others follow
MAX_LOOKED = 1024  # missing ranks whose last process is looked at

UNIQUE = "unique/{}"  # the first rank that has a value which only one rank may have
ARRIVED = "arrived"  # a line for each arrival; in a file a key for each: arrived/<rank>
KEYS = "first", "conflict", "count", "judging", "deciders", "decision", "read"
FIRST, CONFLICT, COUNT, JUDGING, DECIDERS, DECISION, READ = KEYS  # see the table above
ANY = frozenset({ARRIVED, *KEYS})


class Claimant(NamedTuple):
    """A rank that has a value which only one rank may have, and its process."""

    rank: int
    process: Process

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.process})"

    @classmethod
    def from_json(cls, text: str) -> Claimant:
        """Return the claimant that a rank wrote."""
        rank, process = json.loads(text)
        return cls(int(rank), process_from_json(process))


Clash = Callable[[Claimant, Claimant], MeshkitError]  # the error of two ranks with one value


class Round:
    """One question that ranks answer together at a store. The first decision written counts.

    As a context manager it announces an error that leaves the block before this rank has read a
    decision. ``summary`` begins the error that the others then raise. ``look`` returns the last
    processes of missing ranks, for the judge. ``processes`` returns those of all ranks: if one of
    them has ended on the machine of a rank that waits, the round ends. ``clean`` deletes keys of
    earlier rounds before this rank counts as arrived.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        rank: int,
        expected: Sequence[int],
        *,
        summary: str = "",
        look: Look | None = None,
        processes: Processes | None = None,
        clean: Callable[[], object] | None = None,
    ) -> None:
        self.keys: AbstractSet[str] = ANY  # those that its ranks may have written
        self.name, self.rank, self.expected = name, rank, expected
        self.store = store.part(name)
        self.summary, self.look, self.processes, self.clean = summary, look, processes, clean
        # of this rank, from 1 in the order of arrivals; 0 before it arrives
        self.arrival_number = 0
        self.is_over = False  # whether this rank has read a decision, announced a failure, or lost
        self._began = time.monotonic()
        # this rank and the first one that left its facts, if their facts differ
        self.differing: dict[int, Arrival] = {}

    def __enter__(self) -> Round:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(error)

    def arrive(
        self,
        facts: Mapping[str, Json],
        *,
        same: bool = False,
        unique: Mapping[str, Clash] | None = None,
        objection: MeshkitError | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """Leave a record: the process of this rank, and its facts. Local.

        Args:
            facts: the statement of this rank, as JSON.
            same: whether all ranks must state equal facts.
            unique: keys that only one rank may have, with the error of two ranks that have one.
            objection: an error of this rank, which the judge weighs.
            deadline: until then a slow store may answer, 4 s at least.
        """
        own = Arrival(current_process(), facts)

        def post() -> None:
            conflict = {"error": error_to_json(objection)} if objection is not None else {}
            conflict = (self._compare(own) if same else {}) or conflict
            for key, clash in (unique or {}).items():
                conflict = self._claim(key, own.process, clash) or conflict
            if conflict:
                self.store.claim(CONFLICT, json.dumps(conflict))
            line = json.dumps([self.rank, *own])
            if self.store.is_file:
                self.store.set(f"{ARRIVED}/{self.rank}", line)
            else:
                self.store.append(ARRIVED, f"{line}\n")
            self.count()
            self.keys = {ARRIVED, COUNT} | ({CONFLICT} if conflict else set())
            self.keys |= {FIRST} if same else set()

        if deadline is None:
            self._run(post)
        else:
            self._within(TIMES.store + deadline.left, post)

    def fail(self, error: BaseException) -> None:
        """Announce that this rank's own call failed, unless the round is over for it. Local."""
        if self.is_over:
            return
        self.is_over, self.keys = True, ANY
        report = failure_error(self.summary, self.rank, current_process(), error)

        def post() -> None:
            self._say(Decision(report))
            if not self.arrival_number:
                self.count()
            self._leave_last(len(self.expected), TIMES.failure_stays)

        self.store.try_within(TIMES.failure_stays + TIMES.store, post)

    def decide(self, judge: Judge, deadline: Deadline, *, poll: float | None = None) -> Decision:
        """Wait for the decision, and judge if it is this rank's turn. Collective.

        Args:
            judge: returns the decision of what has arrived. All ranks pass an equal one.
            deadline: after it the judge must decide.
            poll: seconds between two looks of the first four ranks, if the round may end before all
                have arrived. None: judge at a conflict or at the deadline.
        """

        def wait() -> Decision:
            decision = self._decision() if self.differing else None
            if decision is not None and decision.error is None and not decision.is_replaced:
                return judge(Arrivals((), self.differing)) or decision  # all others have agreed
            if poll is None and self.arrival_number >= len(self.expected):
                seen = self._see(self._began) if self.store.has(CONFLICT) else None
                return self._say((seen and judge(seen)) or Decision())
            if poll is not None:
                is_first = self.store.add(JUDGING, 1) <= JUDGES
                if is_first or self._hear(Deadline.after(min(deadline.left, TIMES.answer))) is None:
                    # the first ones may be lost too; many judges look less often
                    pause = poll if is_first else min(2.0, poll * len(self.expected) / JUDGES)
                    self._judge_until(judge, deadline, pause)
            watch = partial(self._judge_if_lost, judge)
            return self._hear(deadline, watch) or self._judge_at_deadline(judge)

        keys, self.keys = self.keys, ANY
        decision = self._within(deadline.left + TIMES.store, lambda: self._end(wait(), deadline))
        self.is_over = True
        if decision.error is None:
            self.keys = keys | {DECISION} | (set() if poll is None else {JUDGING})
        return decision

    def follow(self, deadline: Deadline) -> Decision | None:
        """Wait for the decision without judging; return None if there is none in time. Local."""
        self.keys |= {DECISION}
        return self._within(deadline.left + TIMES.store, lambda: self._hear(deadline))

    def object(self, error: MeshkitError, deadline: Deadline) -> None:
        """Post a conflict in a round of other ranks, the decision at the deadline. Local."""

        def post() -> None:
            self.store.claim(CONFLICT, json.dumps({"error": error_to_json(error)}))
            if self._hear(deadline) is None:
                self._say(Decision(error))

        self._within(deadline.left + TIMES.store, post)

    def say(self, decision: Decision) -> Decision:
        """Write a decision, and return the one that counts. Local. Cost: one store operation."""
        self.keys |= {DECISION}
        return self._run(lambda: self._say(decision))

    def decided(self) -> Decision | None:
        """Return the decision, if there is one. Local. Cost: 1 or 2 store operations."""
        return self._run(self._decision)

    def has_failed(self, judge: Judge) -> bool:
        """Return whether a rank has announced a failure, or has ended; a silent store says no.

        Local. Cost: 2 store operations.
        """

        def look() -> bool:
            self._judge_if_lost(judge)
            return self.store.has(CONFLICT) or self.store.has(DECISION)

        return bool(self.store.try_run(look))

    def arrivals(self) -> Arrivals:
        """Return what a judge sees now. Local."""
        return self._run(lambda: self._see(self._began))

    def count(self) -> None:
        """Count that this rank is here, and delete what all have left. Call it in a deadline."""
        clean, self.clean = self.clean, None
        if clean is not None:
            clean()
        self.arrival_number = self.store.add(COUNT, 1)

    def delete(self) -> None:
        """Delete its keys. Call it in a deadline, once every rank has left the round."""
        names = {*self.keys} - {ARRIVED}
        if ARRIVED in self.keys:
            lines = (f"{ARRIVED}/{rank}" for rank in self.expected)
            names |= {*lines} if self.store.is_file else {ARRIVED}
        self.store.delete(*sorted(names))

    def first(self) -> Arrival | None:
        """Return what the first rank left that compared its facts. Local. Call it in a deadline."""
        known = self.store.read(FIRST, _parse_first)
        return None if known is None else known[2]

    def _within(self, seconds: float, work: Callable[[], Result]) -> Result:
        return self._unless_lost(partial(self.store.within, seconds, work))

    def _run(self, work: Callable[[], Result]) -> Result:
        return self._unless_lost(partial(self.store.run, work))

    def _unless_lost(self, call: Callable[[], Result]) -> Result:
        """Return the result of a call of the store; if that is lost, nothing can be announced."""
        try:
            return call()
        except BaseException as error:  # an interrupted wait still holds the client of the store
            self.is_over |= isinstance(error, MeshkitError) or not isinstance(error, Exception)
            raise

    def _see(self, began: float, *, expired: bool = False) -> Arrivals:
        """Return what a judge sees now."""
        arrived = self._arrived()  # first: a rank posts its conflict before it arrives
        conflict = self.store.read(CONFLICT, _parse_conflict) or ([], {})
        arrived, waited = {**conflict[1], **arrived}, time.monotonic() - began
        seen = Arrivals(self.expected, arrived, conflict[0], waited=waited, expired=expired)
        missing = seen.missing
        if not missing or self.look is None:
            return seen
        sightings = self.look(missing[:MAX_LOOKED])
        if not expired:
            return seen._replace(seen=sightings)
        now = self._arrived()  # ranks that came while the missing ones were looked at
        late = tuple(rank for rank in missing if rank in now)
        left = {rank: sight for rank, sight in sightings.items() if rank not in now}
        errors = (self.store.read(CONFLICT, _parse_conflict) or ([], {}))[0]
        arrived = {**arrived, **now}
        return seen._replace(arrived=arrived, objections=errors, seen=left, late=late)

    def _compare(self, own: Arrival) -> dict[str, Any]:
        """Return the conflict of this rank with the first one, if they differ."""
        text = json.dumps(own.facts, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        record = [digest, self.rank, own]
        known = read_value(FIRST, self.store.claim(FIRST, json.dumps(record)), _parse_first)
        if known[0] == digest:
            return {}
        self.differing = {known[1]: known[2], self.rank: own}
        return {"differing": [[rank, *arrival] for rank, arrival in self.differing.items()]}

    def _claim(self, key: str, process: Process, clash: Clash) -> dict[str, Any]:
        """Return the conflict of this rank with another one that has the same value, if any."""
        key, own = UNIQUE.format(key), Claimant(self.rank, process)
        first = read_value(key, self.store.claim(key, json.dumps(own)), Claimant.from_json)
        if first == own:
            return {}
        return {"error": error_to_json(clash(*sorted((own, first))))}

    def _judge_until(self, judge: Judge, deadline: Deadline, poll: float) -> None:
        """Judge again and again, until there is a decision or the deadline has passed."""
        began = time.monotonic()
        while not self.store.has(DECISION):
            expired = deadline.expired
            decision = judge(self._see(began, expired=expired))
            if decision is not None:
                self._say(decision)
            elif expired:
                return
            else:
                time.sleep(min(poll, deadline.left))

    def _judge_if_lost(self, judge: Judge) -> None:
        """Judge before the deadline if the process of a rank has ended on this machine.

        Cost: no store operation if none has.
        """
        if self.processes is None or len(self.expected) > MAX_LOOKED:
            return
        processes = self.processes()
        if have_ended(processes[rank] for rank in self.expected if rank in processes):
            decision = judge(self._see(self._began))
            if decision is not None:
                self._say(decision)

    def _judge_at_deadline(self, judge: Judge) -> Decision:
        """Judge, as the first rank whose deadline has passed; the others wait for it."""
        is_first = self.store.add(DECIDERS, 1) == 1
        decision = None if is_first else self._hear(Deadline.after(TIMES.host_stays))
        return decision or self._say(judge(self._see(self._began, expired=True)) or Decision())

    def _end(self, decision: Decision, deadline: Deadline) -> Decision:
        """Return the decision; rank 0, which may host the store, leaves last if it is an error."""
        error = decision.error
        if isinstance(error, RankTimeoutError) and not deadline.expired:  # others have yet to come
            self._leave_last(len(self.expected) - len(error.missing_ranks), TIMES.failure_stays)
        elif error is not None:
            self._leave_last(self.store.number(COUNT), TIMES.host_stays)
        return decision

    def _leave_last(self, readers: int, seconds: float) -> None:
        """Count this rank as a reader; rank 0, which may host the store, waits for the others."""
        self.store.add(READ, 1)
        self.store.stay(seconds, lambda: self.store.number(READ) >= readers)

    def _hear(
        self, deadline: Deadline, watch: Callable[[], None] = lambda: None
    ) -> Decision | None:
        text = self.store.wait(DECISION, deadline, len(self.expected), watch)
        return None if text is None else read_value(DECISION, text, decision_from_json)

    def _say(self, decision: Decision) -> Decision:
        text = self.store.claim(DECISION, decision_to_json(decision))
        return read_value(DECISION, text, decision_from_json)

    def _decision(self) -> Decision | None:
        return self.store.read(DECISION, decision_from_json)

    def _arrived(self) -> dict[int, Arrival]:
        """Return what each rank has left."""
        if self.store.is_file:
            keys = (f"{ARRIVED}/{rank}" for rank in self.expected)
            arrivals = (self.store.read(key, _parse_arrival) for key in keys)
            return dict(arrival for arrival in arrivals if arrival is not None)
        lines = self.store.read(ARRIVED, lambda text: [*map(_parse_arrival, text.splitlines())])
        arrived = dict(lines or [])
        return {rank: arrived[rank] for rank in sorted(arrived)}


def decision_to_json(decision: Decision) -> str:
    """Return a decision as it stands in the store."""
    record: dict[str, Any] = {"value": decision.value, "is_replaced": decision.is_replaced}
    if decision.error is not None:
        record["error"] = error_to_json(decision.error)
    if decision.members:
        # few lines, since each rank reads them all
        alike = group_by((json.dumps(dict(facts)), r) for r, facts in decision.members.items())
        record["members"] = [[json.loads(text), ranks] for text, ranks in alike.items()]
    return json.dumps(record)


def decision_from_json(text: str) -> Decision:
    """Return the decision that a rank wrote."""
    record = dict(json.loads(text))
    error = record.get("error")
    return Decision(
        None if error is None else error_from_json(error),
        {int(rank): dict(facts) for facts, ranks in record.get("members", []) for rank in ranks},
        record["value"],
        bool(record["is_replaced"]),
    )


def process_from_json(record: Sequence[Any]) -> Process:
    """Return the process that a rank wrote."""
    host, pid, machine, space, start = record
    return Process(str(host), int(pid), str(machine), str(space), str(start))


def _parse_arrival(text: str) -> tuple[int, Arrival]:
    return _read_arrival(json.loads(text))


def _read_arrival(record: Sequence[Any]) -> tuple[int, Arrival]:
    rank, process, facts = record
    return int(rank), Arrival(process_from_json(process), dict(facts.items()))


def _parse_first(text: str) -> tuple[str, int, Arrival]:
    digest, rank, arrival = json.loads(text)
    return (str(digest), *_read_arrival([rank, *arrival]))


def _parse_conflict(text: str) -> tuple[list[MeshkitError], dict[int, Arrival]]:
    record = dict(json.loads(text))
    if "differing" in record:
        return [], dict(map(_read_arrival, record["differing"]))
    return [error_from_json(record["error"])], {}
