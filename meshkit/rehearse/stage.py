"""The process that forks the ranks of a rehearsal, and how the caller speaks with it.

::

    caller    -- fn, args, ranks -->   stage (torch is loaded)   fork -->   rank 0, then the others
              <-- trace or error --                              <------

The libraries that rank 0 imports are loaded once for all. The sizes and objects that it sends are
received by ranks played later. A rank that lacks a message is played again once it was sent.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import cast

import torch

from ..errors import RankTimeoutError
from ..launch.log import Progress
from ..launch.worker import DEATH, Context, EndedError, Worker, end_workers, start_worker
from ..text import count_noun
from .mismatches import differs_from
from .rank import PlayedRank, RehearsalRequest, play_rank, processes
from .record import Names, Trace
from .recorder import Key, Payloads, Shared


class Stage:
    """The process that forks ranks, as the caller sees it."""

    def __init__(
        self, context: Context, request: RehearsalRequest, deadline: float, progress: Progress
    ) -> None:
        self.request, self.deadline, self.progress = request, deadline, progress
        self.traces: dict[int, Trace] = {}
        self.raised: dict[int, BaseException] = {}
        self.lines: dict[int, str] = {}
        self.lacking: set[int] = set()  # raised for lack of a message of a rank not yet played
        self.wanted: set[int] = set()  # the ranks that would send it
        self.worker = start_worker(context, request.surroundings, _run_stage, request)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.close()
        with suppress(ProcessLookupError, PermissionError):
            group = cast(int, self.worker.process.pid)  # the ranks and what they started
            os.killpg(group, signal.SIGKILL)
        end_workers([self.worker])

    def differ(self, rank: int, corner: int, names: Names) -> str:
        """Return where a rank differs from its corner; empty if one of them has not ended."""
        traces = self.traces.get(rank), self.traces.get(corner)
        if not (traces[0] and traces[1] and traces[0].has_ended and traces[1].has_ended):
            return ""
        return differs_from(traces[0], traces[1], names)

    def start_again(self, is_ok: bool) -> bool:
        """Forget all ranks if another pass would receive other values; return whether it would.

        Without a mismatch, only other sizes and objects are worth another pass.
        """
        try:
            self.worker.pipe.send(is_ok)
            would_differ = bool(self.worker.receive())
        except (EndedError, OSError):
            return False
        if would_differ:
            for kept in (self.traces, self.raised, self.lines, self.lacking, self.wanted):
                kept.clear()
        return would_differ

    def play(self, ranks: Iterable[int]) -> None:
        """Play those of the ranks that were not played yet, and again those that lack a message."""
        left = [rank for rank in dict.fromkeys(ranks) if rank not in {*self.traces, *self.raised}]
        if not left:
            return
        left += sorted(self.lacking, reverse=True)
        for rank in self.lacking:
            del self.traces[rank], self.raised[rank], self.lines[rank]
        self.lacking.clear()
        began = time.monotonic()
        with suppress(BrokenPipeError):
            self.worker.pipe.send(left)
        missing = {*left}
        while missing and time.monotonic() < self.deadline:
            number = len(self.traces) + len(self.raised)
            self.progress.show(f"{count_noun(number, 'rank')} played, {len(missing)} to play")
            most = min(self.progress.seconds_left, self.deadline - time.monotonic(), 3600.0)
            if not self.worker.pipe.poll(max(0.0, most)):
                continue
            try:
                rank, played = self.worker.receive()
            except EndedError:
                break
            missing.discard(rank)
            if isinstance(played, BaseException):
                self.raised[rank] = played
                continue
            self.traces[rank] = played.trace
            if played.error is not None:
                self.raised[rank], self.lines[rank] = played.error, played.line
                self.lacking |= {rank} if played.missing else set()
                self.wanted |= played.wanted
        seconds = time.monotonic() - began
        for rank in sorted(missing):
            text = f"it had not ended after {seconds:.1f} s, and was killed"
            self.raised[rank] = RankTimeoutError(text, missing_ranks=(rank,))


def _run_stage(pipe: Connection, request: RehearsalRequest) -> None:
    """Fork the ranks that the caller asks for."""
    with suppress(PermissionError):
        os.setsid()  # the caller ends this process and its ranks together
    torch.set_num_threads(1)  # threads do not survive the forks
    known: Payloads = {}
    shared: tuple[Shared, Shared] = {}, {}  # of the last pass, and of this one
    lacked: set[Key] = set()  # messages that a rank of this pass has not received
    processes(request.world_size, request.world_size // request.nodes)
    with suppress(EOFError, OSError):  # the caller has ended
        while True:
            modules: set[str] = set()
            asked = pipe.recv()
            if isinstance(asked, bool):
                would_differ = bool(lacked & known.keys())
                would_differ |= _have_changed(*shared, only_sizes=asked)
                shared = (shared[1], {}) if would_differ else shared
                lacked.clear()
                pipe.send(would_differ)
                continue
            for rank, outcome in play_ranks(request, asked, known, shared[0]):
                if isinstance(outcome, PlayedRank):
                    modules.update(outcome.modules)
                    lacked |= outcome.missing
                    for key, value in outcome.shared.items():
                        shared[1].setdefault(key, {})[rank] = value
                    outcome = outcome._replace(sent={}, shared={}, modules=[])
                pipe.send((rank, outcome))
            for name in sorted(modules - {*sys.modules}):
                with suppress(Exception):  # a library may need what a rank has set up
                    __import__(name)
            gc.collect()
            gc.freeze()


def _have_changed(last: Shared, new: Shared, *, only_sizes: bool) -> bool:
    """Return whether ranks have passed other values than those that they received.

    In the first pass each rank received its own.
    """
    for key, values in new.items():
        if only_sizes and "float" in str(key):
            continue
        if (last[key] != values) if key in last else len({*values.values()}) > 1:
            return True
    return False


def play_ranks(
    request: RehearsalRequest, ranks: list[int], known: Payloads, shared: Shared
) -> Iterator[tuple[int, PlayedRank | BaseException]]:
    """Fork as many ranks at a time as there are cores, and yield the outcome of each.

    A rank that raised for lack of a message is played again once another one has sent it.
    """
    slots = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    running: dict[Connection, tuple[int, Worker]] = {}
    lacking: dict[int, PlayedRank] = {}
    supplied: dict[int, set[tuple[object, ...]]] = defaultdict(set)  # messages for another try
    while ranks or running or lacking:
        for rank in [*lacking]:
            new = (lacking[rank].missing & known.keys()) - supplied[rank]
            if new:
                supplied[rank] |= new
                ranks.insert(0, rank)
                del lacking[rank]
        while ranks and len(running) < (slots or 1):
            played = request, ranks[0], known, shared
            worker = start_worker(get_context("fork"), request.surroundings, play_rank, *played)
            running[worker.pipe] = ranks.pop(0), worker
        if not running:
            yield from lacking.items()
            return
        for end in cast(list[Connection], wait([*running])):
            rank, worker = running.pop(end)
            outcome = _receive(worker)
            if isinstance(outcome, PlayedRank):
                known.update(outcome.sent)
                if outcome.error is not None and outcome.missing:
                    lacking[rank] = outcome
                    continue
            yield rank, outcome


def _receive(worker: Worker) -> PlayedRank | BaseException:
    try:
        outcome: PlayedRank | BaseException = worker.receive()
    except EndedError as error:
        outcome = RuntimeError(f"its process {error}")
    end_workers([worker], [0], DEATH)
    return outcome
