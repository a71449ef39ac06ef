"""Look at a running job from outside, by its store alone: its ranks, and where they are.

A client that is no rank reads the keys of the job. Over TCP it also asks: each rank in a guard with
a timeout has a thread that reads the question twice a second, and answers also if the rank hangs::

    meshkit status    ask ............... reads the answers, deletes them and the question
    rank 0            guard: answers
    rank 1            hangs in a guard: its watching thread answers
    rank 2            is in no guard: its process is known from the start of the job

    key, in the store of the job     written by               goes
    ask                              the client: an id        with the client, or the next one
    answer/<rank>                    the ranks in guards      likewise

No rank waits for a client. A file is read without torch's store, which would count one more user,
and so nobody is asked there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast
from uuid import uuid4

import torch
import torch.distributed as dist

from ..errors import LaunchError, MeshkitError
from ..layout.layout import Layout
from ..text import count_noun, name_ranks
from .disagreement import RankStatus, describe_coordinate
from .file_store import read_values
from .generation import ATTEMPT_PART, GENERATION, INIT, NEWEST
from .job import LEFT, MEMBERSHIP, RECOVERED, REJOIN
from .judges import Process, RankState
from .open_store import open_store
from .process import state_of
from .round import ARRIVED, DECISION, process_from_json
from .store import ATTEMPT, read_value
from .times import Deadline, DeadlineExceededError, run_with_deadline
from .world import World

Result = TypeVar("Result")

ASK = "ask"  # in the store of a job: the id of the question of a client outside
ANSWER = "answer/{}"  # rank: the id of the question, the process, the coordinate and the status
LOOK = 0.1  # seconds between two looks for answers
ANSWERS = 2.0  # seconds that the ranks have, or half of the time: they look twice a second
STATES = {state: state.name.lower() for state in RankState} | {RankState.BUSY: "runs"}


class Answer(NamedTuple):
    """The answer of a rank in a guard."""

    layout: Layout  # of the mesh whose guard answers
    process: Process
    status: RankStatus


class RankView(NamedTuple):
    """A rank of a job, as far as it is known outside."""

    rank: int
    process: Process | None  # None if it has not come yet
    state: str  # "runs", "stopped", "ended", "left", "missing"; "unknown" on another machine
    coordinate: str = ""  # empty if it is unknown, as all that follows
    where: str = ""  # the collective and the line of user code
    seconds: float | None = None  # since it began its last collective

    def as_dict(self) -> dict[str, Any]:
        """Return the rank in JSON types."""
        host, pid = (self.process.host, self.process.pid) if self.process else (None, None)
        fields = self._asdict()
        del fields["process"]
        return {"rank": fields.pop("rank"), "host": host, "pid": pid, **fields}


@dataclass(frozen=True)
class JobView:
    """A job, as far as it is known outside."""

    ranks: Sequence[RankView]
    waits: Sequence[str]  # a line for each round of all ranks that is not decided
    is_asked: bool  # whether the ranks could be asked


class Keys:
    """The keys of a job in the store at a URL, for a client that is no rank."""

    def __init__(self, url: str, seconds: float) -> None:
        self.url, self.deadline = url, Deadline.after(seconds)
        self.path: Path | None = None
        self.store: dist.Store | None = None
        if url.startswith("file://"):
            self.path = Path(url.removeprefix("file://"))
        else:
            world = World(1, 2, None, None, None, None, None, None, "status", init_method=url)
            self.store = self.within(partial(open_store, world, self.deadline))

    def within(self, work: Callable[[], Result]) -> Result:
        """Return the result of some work at the store, within the time of the client."""
        try:
            return run_with_deadline(max(self.deadline.left, LOOK), work)
        except (RuntimeError, OSError, DeadlineExceededError) as error:
            if isinstance(error, LaunchError):
                raise
            raise LaunchError(
                f"no store answers at {self.url} within {self.deadline}.",
                *([error.summary] if isinstance(error, MeshkitError) else []),
                fix="the address of the store of a job that runs: its MASTER_ADDR and MASTER_PORT, "
                "or its init_method.",
            ) from error

    def read(self) -> dict[str, str]:
        """Return all keys of the job with their values, without those of groups and meshes."""
        if self.path is not None:
            return self.within(partial(read_values, self.path))
        return self.within(self._read)

    def _read(self) -> dict[str, str]:
        base, prefix = cast(Any, self.store), ""
        while hasattr(base, "underlying_store"):
            prefix, base = f"{base.prefix}/{prefix}", base.underlying_store
        if not hasattr(base, "list_keys"):
            raise LaunchError(
                f"torch {torch.__version__} cannot list the keys of a store.",
                fix="run this command with torch 2.13 or newer; that of the job may be older.",
            )
        names = [key.removeprefix(prefix) for key in base.list_keys() if key.startswith(prefix)]
        own = [key for key in names if not ("/default_group/" in key or "/mesh/" in key)]
        values = {}
        for key in own:
            if cast(Any, self.store).check([key]):  # a get of a deleted key would wait
                values[key] = bytes(cast(Any, self.store).get(key)).decode(errors="replace")
        return values

    def ask(self, path: str, ranks: Sequence[int]) -> dict[int, Answer]:
        """Return the answers of the ranks in guards, and delete the question and the answers."""
        store, id = dist.PrefixStore(path, cast(dist.Store, self.store)), uuid4().hex
        keys = {rank: ANSWER.format(rank) for rank in ranks}

        def answers() -> dict[int, Answer]:
            known = dict[int, Answer]()
            for rank, key in keys.items():
                if store.check([key]):
                    asked, answer = read_value(key, bytes(store.get(key)), _parse_answer)
                    known |= {rank: answer} if asked == id else {}
            return known

        def run() -> dict[int, Answer]:
            limit = Deadline.after(min(ANSWERS, self.deadline.left / 4))
            while bytes(store.compare_set(ASK, "", id)) != id.encode():  # another client asks
                if not limit.sleep(LOOK):  # it has left its question behind
                    store.set(ASK, id)
                    break
            limit = Deadline.after(min(ANSWERS, self.deadline.left / 2))
            try:
                while not store.check([*keys.values()]) and limit.sleep(LOOK):
                    pass
                store.delete_key(ASK)
                time.sleep(LOOK)  # of a rank that has read the question just now
                return answers()
            finally:
                for key in (ASK, *keys.values()):
                    store.delete_key(key)

        return self.within(run)


def look_at_job(url: str, seconds: float) -> JobView:
    """Return what is known about the job whose store is at a URL. Local; it leaves no key.

    Raises:
        LaunchError: if no store answers in time, or holds no job of meshkit.
    """
    keys = Keys(url, seconds)
    values = keys.read()
    path = find_job(values)
    if path is None:
        raise LaunchError(
            f"the store at {url} holds no job of meshkit.",
            f"It has {count_noun(len(values), 'key')}.",
            fix="the address of the store in which meshkit.init() met; its log has it.",
        )
    job, start = _below(path, values), path.partition("membership/")[0]
    first = _below(start, values)
    processes = arrived(job, REJOIN) or arrived(first, INIT)
    size = max([world_size(first), *(rank + 1 for rank in processes)])
    ranks = range(len(processes) if path != start else size)
    answers, can_ask = dict[int, Answer](), keys.store is not None
    if can_ask and f"{INIT}/{DECISION}" in first:
        answers = keys.ask(path.rstrip("/"), ranks)
        job = _below(path, keys.read())  # rounds may have ended meanwhile
    views = [_view(rank, processes.get(rank), answers, job) for rank in ranks]
    return JobView(views, waiting_rounds(job, ranks), can_ask)


def _below(path: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return the keys below a path, without it."""
    return {key.removeprefix(path): text for key, text in values.items() if key.startswith(path)}


def find_job(values: Mapping[str, str]) -> str | None:
    """Return the path of the newest membership of the newest start; None without a job."""
    attempt = f"{ATTEMPT_PART.format(values.get(ATTEMPT, '0'))}/"
    newest = [key for key in values if key.startswith(attempt) and key.endswith(f"/{NEWEST}")]
    if not newest:
        return None
    base = max(newest, key=len).removesuffix(NEWEST)  # under torchrun the world size is in between
    start = f"{base}{GENERATION.format(values[f'{base}{NEWEST}'])}/"
    number = values.get(f"{start}{RECOVERED}", "0")
    return f"{start}{MEMBERSHIP.format(number)}/" if number != "0" else start


def arrived(job: Mapping[str, str], round: str) -> dict[int, Process]:
    """Return the processes of the ranks that have come to a round."""
    texts = [text for key, text in job.items() if key.startswith(f"{round}/{ARRIVED}")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return {int(rank): process_from_json(process) for rank, process, _ in sorted(lines)}


def world_size(job: Mapping[str, str]) -> int:
    """Return the number of ranks that the first one has stated; 0 if none has come."""
    first = job.get(f"{INIT}/first")
    return 0 if first is None else int(json.loads(first)[2][1]["world_size"])


def waiting_rounds(job: Mapping[str, str], ranks: Sequence[int]) -> list[str]:
    """Return a line for each round of all ranks in which some wait for others."""
    rounds = [INIT, *{key.rpartition(f"/{ARRIVED}")[0] for key in job if key.startswith("round/")}]
    lines = []
    for round in rounds:
        here = arrived(job, round)
        missing = [rank for rank in ranks if rank not in here]
        if here and missing and f"{round}/{DECISION}" not in job:
            texts = [text for key, text in job.items() if key.startswith(f"{round}/{ARRIVED}")]
            call = json.loads(texts[0].splitlines()[0])[2].get("call", "a call of all ranks")
            verb = "waits" if len(here) == 1 else "wait"
            who = name_ranks(sorted(here)).capitalize()
            lines.append(f"{who} {verb} in {call} for {name_ranks(missing)}.")
    return lines


def _view(
    rank: int, process: Process | None, answers: Mapping[int, Answer], job: Mapping[str, str]
) -> RankView:
    """Return the view of one rank."""
    layout = next((answer.layout for answer in answers.values() if rank in answer.layout), None)
    coordinate = "" if layout is None else describe_coordinate(layout, rank)
    if rank in answers:
        _, process, status = answers[rank]
        state = state_of(process)
        text = STATES[state] if state.is_certain else STATES[RankState.BUSY]  # it has answered
        return RankView(rank, process, text, coordinate, str(status), round(status.waited, 1))
    if process is None:
        return RankView(rank, None, "missing", coordinate)
    text = "left" if LEFT.format(rank) in job else STATES[state_of(process)]
    return RankView(rank, process, text, coordinate)


def answer_to_json(id: str, answer: Answer) -> str:
    """Return an answer as a rank posts it."""
    layout, process, status = answer
    ranks = layout.grid.ravel().tolist()
    record = {"id": id, "process": process, "rank": status.rank, "status": status.to_facts()}
    record |= {"sizes": dict(layout.sizes)}
    record |= {"ranks": None if ranks == [*range(len(ranks))] else ranks}  # few bytes for most
    return json.dumps(record)


def _parse_answer(text: str) -> tuple[str, Answer]:
    record = dict(json.loads(text))
    layout = Layout(ranks=record["ranks"], **record["sizes"])
    status = RankStatus.from_facts(int(record["rank"]), record["status"])
    return str(record["id"]), Answer(layout, process_from_json(record["process"]), status)
