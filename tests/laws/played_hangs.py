"""Play small programs on meshes until nothing moves, and state what each rank knows then.

A rank runs its operations in order: user code for some milliseconds, then a collective of a group,
or a message along pp. A fault is planted. :func:`play` returns the state of each rank,
:meth:`Played.truth` the root of the hang from these states (by the closure of a matrix of waits),
and :meth:`Played.statuses` what the ranks report. Nothing here uses the judge.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshkit import Layout
from meshkit.launch.disagreement import RankStatus, TracedCall, TracedTensor
from meshkit.launch.judges import RankState, Sighting

SIZES = {"dp": 8, "cp": 4, "tp": 4, "pp": 2}  # at most; pp may have four stages
FAULTS = ("dead", "stopped", "left", "busy", "behind", "mismatch", "order", "message", "wedge")
GONE = ("dead", "stopped", "left")
RING = 24  # collectives, and messages, that a trace keeps for each group
NAMES = ("all_reduce", "all_gather", "reduce_scatter", "barrier")


@dataclass(frozen=True)
class Op:
    """An operation of a rank: a collective of its group, or a message to or from a peer."""

    axes: str
    group: tuple[int, ...]
    name: str
    tensors: tuple[TracedTensor, ...]
    line: str
    peer: int = -1
    is_eager: bool = False  # a send that completes before its receive

    @property
    def is_message(self) -> bool:
        return self.peer >= 0


Programs = dict[int, list[Op]]


def draw_layout(rng: random.Random, most: int) -> Layout:
    """Return a mesh of two ranks at least."""
    while True:
        sizes = {axis: rng.choice([1, 1, 2, size]) for axis, size in SIZES.items()}
        sizes["pp"] = rng.choice([sizes["pp"], 4])
        sizes = {axis: size for axis, size in sizes.items() if size > 1}
        if 2 <= np.prod([*sizes.values(), 1]) <= most:
            return Layout(**sizes)  # type: ignore[arg-type]


def draw_programs(rng: random.Random, layout: Layout, steps: int) -> Programs:
    """Return a program that all ranks run in the same order, each over its own groups."""
    axes = [*layout.axes]
    names = [*axes, " ".join(axes[:2]), " ".join(axes)]
    rows = {
        name: {r: tuple(g) for g in layout.groups(name.split()).tolist() for r in g}
        for name in names
    }
    ranks = [int(rank) for rank in layout.grid.flat]
    programs: Programs = {rank: [] for rank in ranks}
    eager = rng.random() < 0.3
    for number in range(steps):
        line = f"train.py:{10 + number} (step)"
        if "pp" in axes and rng.random() < 0.35:
            tensors, forward = (((rng.randint(2, 9),), "float32"),), rng.random() < 0.7
            for rank in ranks:
                stages = rows["pp"][rank]
                stages = stages if forward else stages[::-1]
                at = stages.index(rank)
                if at > 0:
                    programs[rank].append(
                        Op("pp", rows["pp"][rank], "recv", tensors, line, stages[at - 1])
                    )
                if at + 1 < len(stages):
                    programs[rank].append(
                        Op("pp", rows["pp"][rank], "send", tensors, line, stages[at + 1], eager)
                    )
            continue
        name, over = rng.choice(NAMES), rng.choice(names)
        tensors = ()
        if name != "barrier":
            tensors = (((rng.randint(2, 9),), rng.choice(["float32", "bfloat16"])),)
        for rank in ranks:
            programs[rank].append(Op(over, rows[over][rank], name, tensors, line))
    return programs


@dataclass
class Plan:
    """A planted fault: where ranks stop, and which collective never completes."""

    kind: str = ""
    stops: dict[int, int] = field(default_factory=dict)  # rank to the operation it does not reach
    inside: bool = False  # whether it stops after it has begun that operation
    wedged: tuple[str, tuple[int, ...], int] | None = None  # axes, group, number of the collective


def plant(rng: random.Random, kind: str, layout: Layout, programs: Programs) -> Plan:
    """Change the programs, and return where the fault is."""
    rank = rng.choice([*programs])
    own = programs[rank]
    at = rng.randrange(len(own))
    if kind in (*GONE, "busy"):
        inside = kind in ("dead", "stopped") and rng.random() < 0.3
        return Plan(kind, {rank: at}, inside)
    collectives = [i for i, op in enumerate(own) if not op.is_message]
    if kind == "message":
        places = [i for i, op in enumerate(own) if op.is_message]
    elif kind == "order":
        places = [i for i in collectives if i + 1 in collectives and own[i + 1].axes != own[i].axes]
    else:
        places = [*collectives, *collectives[-1:]]
    if not places:
        return Plan(kind)
    at = rng.choice(places)
    if kind in ("message", "behind"):
        del own[at]
    elif kind == "wedge":
        number = sum(not op.is_message and op.axes == own[at].axes for op in own[: at + 1])
        return Plan(kind, wedged=(own[at].axes, own[at].group, number))
    elif kind == "mismatch":
        change_call(rng, programs, own[at])
    else:
        odd = [r for r in programs if r == rank or sum(layout.coordinate(r).values()) % 2]
        for r in odd:
            swap(programs[r], own[at].line, own[at + 1].line)
    return Plan(kind)


def change_call(rng: random.Random, programs: Programs, op: Op) -> None:
    """Let some ranks of a group make another call."""
    odd = rng.sample(op.group, rng.choice([1, 1, max(1, len(op.group) // 2)]))
    is_resized = bool(op.tensors) and rng.random() < 0.6
    resized = (((77,), "float32"),)
    other = replace(op, tensors=resized) if is_resized else replace(op, name="broadcast")
    for rank in odd:
        place = next(i for i, each in enumerate(programs[rank]) if each.line == op.line)
        programs[rank][place] = other


def swap(program: list[Op], *lines: str) -> None:
    """Exchange the first operations of two lines, if one follows the other."""
    i, j = (next(k for k, op in enumerate(program) if op.line == line) for line in lines)
    if j == i + 1:
        program[i], program[j] = program[j], program[i]


Key = tuple[object, ...]
Truth = dict[str, set[int]]  # the kind of a hang to the ranks at its root


@dataclass
class Played:
    """The history of each rank: its operations, and when it began and completed each."""

    layout: Layout
    programs: Programs
    plan: Plan
    # rank to the times at which it began, or completed, its operations
    begun: dict[int, list[float]]
    completed: dict[int, list[float]]
    end: float = 0.0
    arrived: dict[Key, dict[int, int]] = field(default_factory=dict)  # to ranks: place of the op
    keys: dict[int, list[Key]] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """The axes of all groups that some rank uses."""
        return {op.axes for program in self.programs.values() for op in program}

    def places(self) -> dict[int, tuple[int, bool]]:
        """Return the operation of each rank at the end, and whether it has begun it."""
        done = {rank: len(times) for rank, times in self.completed.items()}
        return {rank: (at, len(self.begun[rank]) > at) for rank, at in done.items()}

    def is_gone(self, rank: int) -> bool:
        """Return whether the fault has ended or stopped the rank."""
        done, stop = len(self.completed[rank]), self.plan.stops.get(rank)
        is_inside = len(self.begun[rank]) > done
        return self.plan.kind in GONE and stop == done and is_inside == self.plan.inside

    def host(self, rank: int, begun: int, ahead: dict[int, int]) -> int:
        """Return how many operations the host of a rank has begun, ahead of its device."""
        limit = max(begun, self.plan.stops.get(rank, len(self.programs[rank])))
        return min(begun + ahead.get(rank, 0), len(self.programs[rank]), limit)

    def truth(self, ahead: dict[int, int] | None = None) -> Truth:
        """Return the kinds of hang that the states show, each with its ranks."""
        is_in = {r: self.keys[r][at] for r, (at, begun) in self.places().items() if begun}
        is_in = {rank: key for rank, key in is_in.items() if not self.is_gone(rank)}
        waits, collective = self._waits(is_in)
        reach, cycles = closure(waits), closure(collective).diagonal()
        truth: Truth = {}
        if cycles.any():
            truth["order"] = {rank for i, rank in enumerate(self.programs) if cycles[i]}
        for i, rank in enumerate(self.programs):
            if (reach[i] & ~reach[:, i]).any():
                continue  # it waits for a rank that does not wait for it
            if waits[i].any():
                if not (reach[i] & cycles).any():
                    ends = (waits & ~collective)[np.ix_(reach[i], reach[i])]
                    together = [r for r, has in zip(self.programs, reach[i], strict=True) if has]
                    odd = ends.any(0) | ends.any(1)
                    note(truth, "message", (r for r, has in zip(together, odd, strict=True) if has))
            elif rank in is_in:
                ops = [self.programs[r][at] for r, at in self.arrived[is_in[rank]].items()]
                if are_equal(ops):
                    note(truth, "wedge", self.arrived[is_in[rank]])
            elif waits[:, i].any():
                passed = "behind" if collective[:, i].any() else "message"
                is_over = len(self.completed[rank]) == len(self.programs[rank])
                kind = self.plan.kind if self.is_gone(rank) else passed if is_over else "busy"
                note(truth, kind, {rank})
        for key in set(is_in.values()):
            note(truth, "mismatch", self._odd(key, ahead or {}))
        return truth

    def _waits(self, is_in: dict[int, Key]) -> tuple[np.ndarray, np.ndarray]:
        """Return which rank waits for which, and the same for collectives alone."""
        index = {rank: i for i, rank in enumerate(self.programs)}
        waits, collective = np.zeros((2, len(index), len(index)), bool)
        for rank, key in is_in.items():
            op = self.programs[rank][len(self.completed[rank])]
            for peer in (op.peer,) if op.is_message else op.group:
                if peer != rank and (peer not in self.arrived[key] or self.is_gone(peer)):
                    waits[index[rank], index[peer]] = True
                    collective[index[rank], index[peer]] |= not op.is_message
        return waits, collective

    def _odd(self, key: Key, ahead: dict[int, int]) -> set[int]:
        """Return the ranks that have begun another operation than most; all without a majority."""
        contents: dict[object, set[int]] = {}
        size = 2
        for rank in self.programs:
            last = self.host(rank, len(self.begun[rank]), ahead)
            for op, other in zip(self.programs[rank][:last], self.keys[rank], strict=False):
                if other == key:
                    name = "" if op.is_message else op.name
                    size = 2 if op.is_message else len(op.group)
                    contents.setdefault((name, op.tensors), set()).add(rank)
        most = max(contents.values(), key=len)
        everyone = set().union(*contents.values())
        is_odd = len(contents) == 1 or len(most) * 2 > size
        return everyone - most if is_odd else everyone

    def statuses(
        self, rng: random.Random, *, on_nccl: bool, ahead: dict[int, int], jitter: float = 0.0
    ) -> tuple[dict[int, RankStatus], dict[int, Sighting]]:
        """Return what the ranks report at the end, each some time before it."""
        found: dict[int, RankStatus] = {}
        silent: dict[int, Sighting] = {}
        states = {"dead": RankState.ENDED, "stopped": RankState.STOPPED}
        for rank, program in self.programs.items():
            now = self.end - rng.random() * jitter
            begun = bisect_right(self.begun[rank], now)
            done = bisect_right(self.completed[rank], now)
            if self.is_gone(rank) and self.plan.kind in states:
                silent[rank] = Sighting(states[self.plan.kind], "host b, pid 3")
                continue
            host = self.host(rank, begun, ahead if begun > done else {})
            counts: Counter[str] = Counter(dict.fromkeys(self.names, 0))
            counts.update(op.axes for op in program[:host] if not (on_nccl and op.is_message))
            calls = self._traced(rank, done, begun, host, on_nccl=on_nccl)
            is_in = begun > done
            op = program[done] if is_in else None
            since = self.begun[rank][done] if is_in else now
            status = RankStatus(
                rank,
                dict(counts),
                line=op.line if op else f"data.py:{done + 3} (load)",
                waited=now - since,
                sees_waits=not on_nccl,
                calls=calls,
            )
            if self.is_gone(rank):
                status = replace(status, error="ValueError: bad sample 17")
            elif done == len(program):
                status = replace(status, left_guard=1)
            elif op and not on_nccl:
                status = replace(status, function=op.name, group=op.axes)
            found[rank] = status
        return found, silent

    def _traced(
        self, rank: int, done: int, begun: int, host: int, *, on_nccl: bool
    ) -> dict[str, tuple[TracedCall, ...]]:
        """Return the last calls of a rank over each of its groups."""
        counts: Counter[object] = Counter()
        traced: dict[str, list[TracedCall]] = {axes: [] for axes in self.names}
        for order, op in enumerate(self.programs[rank][:host], 1):
            kind = (op.axes, op.name, op.peer) if op.is_message else op.axes
            counts[kind] += 1
            state = "completed" if order <= done else "begun"
            if on_nccl and done < order <= begun:
                state = "started"
            call = TracedCall(counts[kind], op.name, op.tensors, op.line, op.peer, state, order)
            traced[op.axes].append(call)
        return {axes: last_of(calls) for axes, calls in traced.items()}


def last_of(calls: Sequence[TracedCall], number: int = RING) -> tuple[TracedCall, ...]:
    """Return the last collectives and the last messages, in their order."""
    collectives = [call for call in calls if not call.is_message][-number:]
    messages = [call for call in calls if call.is_message][-number:]
    return tuple(sorted([*collectives, *messages], key=lambda call: call.order))


def note(truth: Truth, kind: str, ranks: Iterable[int]) -> None:
    """Add ranks to those of a kind, if there are any."""
    if found := {*ranks}:
        truth.setdefault(kind, set()).update(found)


def are_equal(ops: Iterable[Op]) -> bool:
    """Return whether ranks make one call: a collective, or the two ends of a message."""
    return len({("" if op.is_message else op.name, op.tensors) for op in ops}) == 1


def closure(edges: np.ndarray) -> np.ndarray:
    """Return which ranks are reached from which by one edge or more."""
    reach = edges
    while True:
        steps = reach.astype(np.float32)
        more: np.ndarray = reach | (steps @ steps > 0)
        if (more == reach).all():
            return reach
        reach = more


def keys_of(rank: int, program: Sequence[Op]) -> list[Key]:
    """Return what each operation of a rank meets: the collective of a group, or a message."""
    counts: Counter[Key] = Counter()
    keys: list[Key] = []
    for op in program:
        ends = (rank, op.peer) if op.name == "send" else (op.peer, rank)
        kind: Key = (op.axes, "message", ends) if op.is_message else (op.axes, op.group)
        own = (*kind, op.name) if op.is_message else kind  # a send and a receive count apart
        counts[own] += 1
        keys.append((*kind, counts[own]))
    return keys


def play(
    rng: random.Random,
    layout: Layout,
    programs: Programs,
    plan: Plan,
    *,
    until: float = float("inf"),
    slow: float = 0.0,
) -> Played:
    """Run the programs until nothing moves, or until a time in seconds."""
    played = Played(layout, programs, plan, {r: [] for r in programs}, {r: [] for r in programs})
    played.keys = {rank: keys_of(rank, program) for rank, program in programs.items()}

    def user_time() -> float:
        return rng.uniform(1, 30) if rng.random() < slow else rng.uniform(0.001, 0.03)

    events = [(user_time(), rank, False) for rank in programs]
    heapq.heapify(events)
    now = 0.0
    while events and events[0][0] <= until:
        now, rank, is_end = heapq.heappop(events)
        if is_end:
            played.completed[rank].append(now)
            heapq.heappush(events, (now + user_time(), rank, False))
            continue
        at = len(played.begun[rank])
        stops = plan.stops.get(rank) == at
        if at == len(programs[rank]) or (stops and not plan.inside):
            continue
        played.begun[rank].append(now)
        op, key = programs[rank][at], played.keys[rank][at]
        there = played.arrived.setdefault(key, {})
        there[rank] = at
        if op.is_eager and not stops:
            heapq.heappush(events, (now + rng.uniform(0.001, 0.03), rank, True))
        if len(there) < (2 if op.is_message else len(op.group)):
            continue
        ops = {r: programs[r][i] for r, i in there.items()}
        wedged = plan.wedged is not None and key == (*plan.wedged[:2], plan.wedged[2])
        if not are_equal(ops.values()) or wedged or any(played.is_gone(r) for r in ops):
            continue
        for r, o in ops.items():
            if not o.is_eager:
                heapq.heappush(events, (now + rng.uniform(0.001, 0.03), r, True))
    played.end = min(until, now + rng.uniform(5, 8))
    return played
