"""The start of a job: its attempt, its generation, and the process that holds each rank.

A store may serve many starts of a job, one after the other. Each uses keys of its own: those of
its *attempt*, if torchrun restarts workers, and of its *generation*, since a process may join,
leave and join again. All ranks that join together find the same generation by themselves:
a rank that never joined begins with the first, the newest one stands in the store, and a rank whose
last start is decided goes on to the next.

A *lease* says which process holds a rank, and in which generation it took the rank. If that
process has exited, a second one may take the rank, and ends the start in which the first one was.
If the first holder waits for the other ranks, or is still alive, the second process is rejected as
a duplicate. Under torchrun the second process may belong to a node that replaces a lost one. Then
it waits until ranks that started anew have ended the old start.

torchrun's agent counts only the restarts that failures of its own workers caused, so the counts of
two agents differ within one attempt, and the store numbers the attempts::

    agent a    attempt 0, count 0    its worker dies    attempt 1, count 1
    agent b    attempt 0, count 0    restarts with a    attempt 1, count 0
    agent c                          joins              attempt 1, count 0

An attempt ends when an agent comes back with a higher count. Ranks that wait in it then retry.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import NamedTuple
from uuid import uuid4

import torch.distributed as dist

from ..errors import LaunchError
from .endpoint import Env, is_digits
from .judges import Decision, Process, RankState, Sighting
from .open_store import open_store
from .process import current_process, sight, state_of
from .round import DECISION, Round, decision_from_json, decision_to_json, process_from_json
from .store import ATTEMPT, Store, lost_error, read_number, read_value
from .times import TIMES, Deadline, DeadlineExceededError, run_with_deadline
from .world import World

COUNT = "TORCHELASTIC_RESTART_COUNT"
ATTEMPT_PART = "attempt/{}"  # number of an attempt
AGENT = "agent/{}"  # in an attempt without world size: the first worker of an agent, with its count
ENDED, PAST = "ended", "past"  # in an attempt: a counter of those who end it, and a mark
LEASE = "meshkit/lease/{}"  # rank, in an attempt
NEWEST = "meshkit/newest"  # the number of the newest generation, in an attempt
GENERATION = "meshkit/{}"  # number, in an attempt
OVER, FAILED = "over", "failed"  # in a generation: it is over; a call failed before its rank joined
INIT, END = "init", "init/end"  # the rounds of a start: requests, and the default group

DISAGREEMENT = "ranks disagree about init(); no process group was created."
PAUSE = 0.2  # seconds between two attempts to join
MAX_SEEN = 8  # missing ranks whose last process an error names


class Lease(NamedTuple):
    """The process that holds a rank; each claim has an id, and the generation that it joins."""

    process: Process
    claim: str
    generation: int


def check_attempt(environ: Env) -> None:
    """Raise if the count of restarts that torchrun sets is no number."""
    text = environ.get(COUNT, "0")
    if not is_digits(text):
        line = f"{COUNT}={text!r} is not 0 or more."
        raise LaunchError(line, fix=f"unset {COUNT}, which torchrun sets.", variables={COUNT: text})


def enter_attempt(world: World, deadline: Deadline, *, fails: bool = False) -> tuple[Store, Lease]:
    """Take this rank, also if it ``fails``; return the store of the attempt, and the lease."""

    def take() -> tuple[Store, Lease]:
        while True:
            base = attempt_part(Store(open_store(world, deadline, keep_file=fails), world))
            lease = take_rank(base, fails=fails)
            # else the next attempt has begun meanwhile, and has not seen this rank
            if COUNT not in os.environ or not base.has(PAST):
                return base, lease

    try:
        return run_with_deadline(deadline.left + TIMES.store, take)
    except DeadlineExceededError:
        raise lost_error(world, silent=True) from None


def generation_part(base: Store, generation: int) -> Store:
    """Return the part of a store that belongs to one generation."""
    return base.part(GENERATION.format(generation))


def init_round(
    base: Store, generation: int, ranks: Sequence[int] = (), *, summary: str = DISAGREEMENT
) -> Round:
    """Return the round in which the ranks of a start compare their requests."""
    store, look = generation_part(base, generation), partial(last_seen, base, generation)
    return Round(store, INIT, base.world.rank, ranks, summary=summary, look=look)


def take_rank(base: Store, *, fails: bool = False) -> Lease:
    """Take this rank, and return the lease. In a deadline; 3 or 4 store operations."""
    key, process, claim = LEASE.format(base.world.rank), current_process(), uuid4().hex
    own = Lease(process, claim, _next_generation(base, 0))
    known = base.claim(key, json.dumps(own))
    while known != json.dumps(own).encode():
        holder = read_value(key, known, _parse_lease)
        again = holder.process == process
        waits = _decision(base, holder.generation, INIT) is None
        if not again:
            state = state_of(holder.process)
            runs = state in (RankState.BUSY, RankState.STOPPED)
            if waits and state is RankState.UNKNOWN and COUNT in os.environ:
                waits = not _is_replaced(base, holder)
            if runs or (waits and state is RankState.UNKNOWN):
                raise _duplicate_error(base, holder, waits)
        if not again or _is_unfinished(base, holder.generation):  # an error ended its last call
            end_generation(base, holder.generation)
        own = Lease(process, claim, _next_generation(base, holder.generation, again=again))
        known = base.claim(key, json.dumps(own), known.decode())
    if fails:
        generation_part(base, own.generation).set(FAILED, "")
        return own
    first = init_round(base, own.generation).first()  # its arrival would count for this start's
    has_ended = first is not None and state_of(first.process) is RankState.ENDED
    if has_ended and _decision(base, own.generation, INIT) is None:
        end_generation(base, own.generation)
    return own


def _is_replaced(base: Store, holder: Lease) -> bool:
    """Wait for the end of a start, in which a process of another host holds this rank.

    torchrun replaces a node that is gone, and starts the ranks of the other nodes anew with the
    same count. The first of those finds its own earlier process ended, and ends that start.
    """
    limit = Deadline.after(TIMES.replaced)
    while _decision(base, holder.generation, INIT) is None:
        if not limit.sleep(PAUSE):
            return False
    return True


def _next_generation(base: Store, last: int, *, again: bool = False) -> int:
    """Return the generation in which a rank joins that has last joined in another, 0 for none.

    If calls fail, the n-th call of a process meets the n-th call of the others, however far they
    are ahead. Else a failure that all have caught would meet a later, valid call.
    """
    text = base.claim(NEWEST, "1")
    if text == b"1" and not last:
        return 1
    newest = read_number(NEWEST, text)
    if not last:  # it came late to the first start, unless that was given up
        return newest if generation_part(base, 1).has(OVER) else 1
    for number in range(last + 1, newest + 1) if again else ():
        part = generation_part(base, number)
        if part.has(FAILED) and not part.has(OVER):
            return number
    if newest > last and _decision(base, newest, INIT) is None:
        return newest
    generation = max(newest, last) + 1
    while newest < generation:
        newest = read_number(NEWEST, base.claim(NEWEST, str(generation), str(newest)))
    return generation


def _decision(base: Store, generation: int, name: str) -> Decision | None:
    """Return the decision of a round of the start of a job, if there is one."""
    return generation_part(base, generation).part(name).read(DECISION, decision_from_json)


def _is_unfinished(base: Store, generation: int) -> bool:
    """Return whether ranks may still wait in the start of a generation."""
    first = _decision(base, generation, INIT)
    has_agreed = first is not None and first.error is None and not first.is_replaced
    return first is None or (has_agreed and _decision(base, generation, END) is None)


def end_generation(base: Store, generation: int) -> None:
    """Report to all ranks that wait in a start that it is over. Call it in a deadline."""
    part = generation_part(base, generation)
    part.set(OVER, "")
    for name in (INIT, END):
        part.part(name).claim(DECISION, decision_to_json(Decision(is_replaced=True)))


def is_over(base: Store, generation: int) -> bool:
    """Return whether another start of the job has replaced this one; False if unknown. Local."""
    part = generation_part(base, generation)
    return bool(part.try_within(1.0, lambda: part.has(OVER)))


def leases(base: Store, ranks: Sequence[int]) -> dict[int, Lease]:
    """Return who holds these ranks now, as far as known. Call it in a deadline."""
    held = {rank: base.read(LEASE.format(rank), _parse_lease) for rank in ranks}
    return {rank: lease for rank, lease in held.items() if lease is not None}


def last_seen(base: Store, generation: int, ranks: Sequence[int]) -> dict[int, Sighting]:
    """Return the last processes of missing ranks. Ranks that were never seen are left out."""
    sightings: dict[int, Sighting] = {}
    for rank, lease in leases(base, ranks).items():
        note = f" (in init {lease.generation}, this rank is in init {generation})"
        note *= lease.generation != generation
        seen = sight(lease.process, note)
        sightings[rank] = seen if len(sightings) < MAX_SEEN else seen._replace(text="")
    return sightings


def attempt_part(store: Store) -> Store:
    """Return the part of the store of this attempt and world size. Call it in a deadline."""
    world = store.world
    if world.world_size == 1 and isinstance(store.root, dist.HashStore):
        return store
    if COUNT not in os.environ:
        if world.rank == 0:
            store.claim(ATTEMPT, "0")  # for a second rank 0 to see
        return store.part(ATTEMPT_PART.format(0))
    count = int(os.environ[COUNT])
    own = f"{count} rank {world.rank} on {current_process()}"
    number = read_number(ATTEMPT, store.claim(ATTEMPT, "0"))
    while True:
        part = store.part(ATTEMPT_PART.format(number))
        base = part.part(str(world.world_size))
        key = AGENT.format(_agent())
        first, _, process = read_value(key, part.claim(key, own), str).partition(" ")
        newest = read_number(key, first)
        if newest == count:
            return base
        if newest > count:
            own_process = current_process()
            raise LaunchError(
                f"rank {world.rank} is of attempt {count} of the job, which is over.",
                f"Attempt {newest} has begun, with {process}; this is pid {own_process.pid}.",
                fix=f"end this process (kill {own_process.pid} on host {own_process.host}).",
                variables={COUNT: str(count)},
            )
        number = read_number(ATTEMPT, store.claim(ATTEMPT, str(number + 1), str(number)))
        if part.add(ENDED, 1) == 1:  # a process that takes a rank after that sees the mark
            base.set(PAST, "")
            held = leases(base, range(world.world_size)).values()
            for generation in {lease.generation for lease in held}:
                end_generation(base, generation)


def _agent() -> str:
    """Return the name of this process' agent: its host, and its folder for worker errors."""
    error = PurePath(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))  # agent/attempt/rank/error.json
    folders = [folder.name for folder in error.parents]
    return "/".join([current_process().host, *folders[2:3]])


def _duplicate_error(base: Store, holder: Lease, waits: bool) -> LaunchError:
    """Return the error of a rank that another process holds; a job that waits raises it too."""
    world = base.world
    source = world.sources.get("rank", "rank")
    state = "waits for the others" if waits else "has joined already, and runs"
    place = f"{world.master_addr}:{world.master_port}"
    if world.init_method not in (None, "env://"):
        place = str(world.init_method)
    error = LaunchError(
        f"two processes claim rank {world.rank} at {place}.",
        f"{holder.process} came first and {state}; {current_process()} came after it.",
        f"The second has rank {world.rank} from {source} ({world.launcher}).",
        fix="give every process its own rank, and every job its own MASTER_PORT (or init_method); "
        "end the processes of an earlier job.",
        variables={source: str(world.rank)},
    )
    if waits:
        with suppress(RuntimeError):  # the store ends with the first rank of its job that raises
            init_round(base, holder.generation).object(error, Deadline.after(2.0))
    return error


def _parse_lease(text: str) -> Lease:
    process, claim, generation = json.loads(text)
    return Lease(process_from_json(process), str(claim), int(generation))
