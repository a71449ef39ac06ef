"""Measure the own time of this rank in each step, by samples, and compare it with the other ranks.

A thread looks some times a step where the guarded thread is: in a call of torch or of meshkit that
waits for other ranks, or anywhere else. It needs no hook in torch, and sees waits in C++ too, such
as those of DDP in a backward: there Linux says whether the thread sleeps. It begins at the first
guard with ``stragglers=True``, and goes on between two guards, where a loop loads its data::

    guarded thread   load ....... forward, all_reduce ........ backward, wait ... | next step
    this thread       own   own    own      waits    waits       own     waits    | posts 6 steps

    key                   written by                  read by                      goes
    mesh/<id>/guard/      each rank: its last steps,  the first rank of the mesh,  after the end of
      own/<rank>          once in 6 steps at most     which logs who is late       the mesh

On NCCL a call returns before its work is done, so the host does not see the waits: there nothing is
measured.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import cast

import numpy as np

from ..errors import MeshkitError
from ..groups.close_mesh import OWN
from ..groups.frame_calls import frame_of_thread, no_collection
from ..groups.status import may_wait
from ..launch.job import Job
from ..launch.log import LOGGER
from ..launch.of_one_process import OfOneProcess
from ..launch.store import Store, read_value
from ..layout.layout import Layout
from .stragglers import OwnTime, StragglerFinder

LOOKS = 3  # samples a step
MIN_PAUSE, MAX_PAUSE = 0.003, 0.1  # seconds between two samples
PAUSES = 20  # samples at least in a step that is longer than the last one, whatever it takes
IDLE = 60.0  # seconds without a guard, or 10 steps if they are longer, after which the thread ends
BATCH = 6  # steps a post, unless many ranks post
KEPT = 16  # steps in a post; those before are known
MAX_NAMES = 8  # ranks in a report
POSTS_PER_SECOND = 1000  # posts of all ranks, at most; a store serves 85,000 operations/s
NOT_MEASURED = (
    "mesh.guard(stragglers=True) measures nothing: it needs groups of gloo, whose waits the host "
    "sees, and a store over TCP"
)


class StepSampler(OfOneProcess):
    """The own times of this rank in the steps of one mesh, and the thread that measures them."""

    def __init__(self, layout: Layout, job: Job, store: Store | None) -> None:
        """Measure the steps of a mesh, unless the store cannot be used."""
        self.layout, self.job, self.rank = layout, job, job.world.rank
        self.ranks = [int(rank) for rank in layout.grid.flat]
        self.store = None if store is None or store.is_file else store
        self.times, self.finder = OwnTime(), StragglerFinder(self.ranks)
        self.step, self.length = 0, 0.0  # the number of the current step, seconds of the last one
        self.steps = dict[int, tuple[float, float]]()  # the last steps
        self.posted = 0  # the last step that was posted
        self.thread, self.state = 0, -1  # the guarded thread, and its file in /proc
        self.open = 0  # guards in which this rank is
        self.is_mixed = False  # whether two threads were in guards in this step
        self.ended, self.lock = 0.0, threading.Lock()
        self.worker: threading.Thread | None = None
        if self.store is None and self.rank == self.ranks[0] and len(self.ranks) > 1:
            LOGGER.warning(NOT_MEASURED)

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure the step that ends with this block. Local."""
        if self.store is None or len(self.ranks) == 1:
            yield
            return
        with self.lock:
            self.open += 1
            self.is_mixed |= self.open > 1
            self._follow()
        try:
            yield
        finally:
            if self.job.pid == os.getpid():  # a forked child leaves the block of its parent
                with self.lock:
                    self.open -= 1
                    if not self.open:
                        self._end_step()

    def stop(self) -> None:
        """End the thread, as the mesh is closed."""
        self.worker = None

    def _follow(self) -> None:
        """Sample this thread, from now on if nothing was sampled before."""
        self.ended = now = time.perf_counter()
        if self.thread != threading.get_ident():
            self.thread = threading.get_ident()
            self._close_state()
            with suppress(OSError):
                path = f"/proc/self/task/{threading.get_native_id()}/stat"
                self.state = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if self.worker is None:
            self.times = OwnTime()
            self.times.end_step(now)
            self.worker = threading.Thread(target=self._run, name="meshkit-steps", daemon=True)
            self.worker.start()

    def _end_step(self) -> None:
        self.step += 1
        self.ended = time.perf_counter()
        times, is_mixed, self.is_mixed = self.times.end_step(self.ended), self.is_mixed, False
        if times is not None and not is_mixed:
            self.length, self.steps[self.step] = times[0], times
            self.steps.pop(self.step - KEPT, None)

    def _run(self) -> None:
        """Sample and post until the mesh is closed, no guard comes, or the store is lost."""
        is_first = self.rank == self.ranks[0]
        while self._sample():
            step = self.step - is_first  # the first rank reads once the others have posted
            interval = steps_between_posts(len(self.ranks), self.length)
            if step // interval == self.posted // interval:
                continue
            self.posted = step
            try:
                answers = self._compare() if is_first else self._post()
            except MeshkitError as error:
                LOGGER.warning("the steps of ranks are measured no more: %s", error)
                answers = False
            if not answers:
                with self.lock:
                    self.store = None
                    self._end()

    def _sample(self) -> bool:
        """Wait, and count a sample; return whether more are to come."""
        elapsed = time.perf_counter() - self.ended
        pause = max(self.length / LOOKS, elapsed / PAUSES)
        time.sleep(min(max(pause, MIN_PAUSE), MAX_PAUSE) * random.uniform(0.7, 1.3))
        with no_collection():
            frame = frame_of_thread(self.thread)
            has_ended, waits = frame is None, frame is not None and may_wait(frame)
            del frame
        with self.lock:
            if self.worker is threading.current_thread():
                now = time.perf_counter()
                is_idle = not self.open and now - self.ended > max(IDLE, 10 * self.length)
                if not (has_ended or is_idle):
                    self.times.sample(now, is_own=not (waits and self._sleeps()))
                    return True
            self._end()
        return False

    def _end(self) -> None:
        """End the thread that samples; the next guard starts another one. Call it with the lock."""
        self._close_state()
        self.thread, self.worker = 0, None

    def _close_state(self) -> None:
        if self.state >= 0:
            os.close(self.state)
            self.state = -1

    def _sleeps(self) -> bool:
        """Return whether the guarded thread sleeps; True if that is unknown."""
        if self.state < 0:
            return True
        with suppress(OSError):
            return os.pread(self.state, 256, 0).rpartition(b")")[2][1:2] == b"S"
        return True

    def _text(self) -> str:
        """Return the last steps of this rank as JSON: the number, the seconds, its own seconds."""
        with self.lock:
            steps = [*self.steps.items()]
        return json.dumps([[step, round(whole, 5), round(own, 5)] for step, (whole, own) in steps])

    def _post(self) -> bool:
        """Post the last steps of this rank; return whether the store answers."""
        store, text = cast(Store, self.store), self._text()

        def post() -> bool:
            store.set(OWN.format(self.rank), text)
            return True

        return bool(store.try_run(post))

    def _compare(self) -> bool:
        """Compare the steps of all ranks, and log who is late; return whether the store answers.

        Cost: two operations of the store.
        """
        store, keys = cast(Store, self.store), [OWN.format(rank) for rank in self.ranks[1:]]
        texts = store.try_run(lambda: store.get_all(keys))
        if texts:
            read = partial(read_value, parse=parse_steps)
            rows = [parse_steps(self._text()), *map(read, keys, texts)]
            common = {*rows[0]}.intersection(*rows[1:])
            last = self.finder.steps[-1] if len(self.finder.steps) else 0
            if steps := sorted(step for step in common if step > last):
                times = np.array([[row[step] for row in rows] for step in steps])
                seconds = times[..., 0].max(axis=1)  # (num_steps, num_ranks, 2)
                self.finder.add(np.array(steps), times[..., 1], seconds)
        if late := self.finder.report(time.monotonic()):
            hosts = self.job.processes()
            for each in late[:MAX_NAMES]:
                host = hosts[each.rank].host if each.rank in hosts else ""
                LOGGER.warning("%s", each.describe(self.layout, host))
        return texts is not None


def steps_between_posts(num_ranks: int, seconds: float) -> int:
    """Return how many steps lie between two posts of a rank, if a step takes so many seconds.

    They are doubled until all ranks together post seldom enough. A rank posts after multiples of
    them, so all ranks post the same steps, also if they disagree on the seconds.
    """
    steps = BATCH
    while steps * max(seconds, MIN_PAUSE) < num_ranks / POSTS_PER_SECOND:
        steps *= 2
    return steps


def parse_steps(text: str) -> dict[int, tuple[float, float]]:
    """Return the steps that a rank has posted: by their number, seconds and own seconds."""
    return {int(step): (float(whole), float(own)) for step, whole, own in json.loads(text)}
