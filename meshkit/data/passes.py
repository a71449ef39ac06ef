"""Count the passes over a stream in memory that the workers of a DataLoader share.

The process of the trainer does not learn when its workers begin or end a pass. Each pass has a
number. Worker 0, or a process without workers, begins it and writes where it reads; the others wait
for this. The worker that hands out the last micro batch writes that the pass has ended::

    trainer                worker 0                    worker 1
    load_state_dict   1    epoch 0 from sample 12
    iter              2    begins: epoch 0 from 12     follows pass 2
                                                       hands out the last micro batch: 2 has ended
    iter              3    begins: epoch 1 from 0      follows pass 3

Workers of one pass have one base seed. Workers that live on take turns, one for each pass. A
trainer may repeat its seeds, so each worker has a cell with the last pass that it followed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils.data import get_worker_info

from ..errors import LaunchError
from ..launch.times import TIMES

# the cells of the current pass; the number of the last pass that has ended, and of its micro
# batches; the pass of which the trainer counts those that it gets, and their number
NUMBER, EPOCH, BEGIN, HAS_BEGUN, SEED, TURN, ENDED, TOTAL, COUNTED, COUNT, NUM_CELLS = range(11)
MAX_WORKERS = 1024
LOOK = 0.001  # seconds between two looks of a worker that waits for worker 0

Batch = TypeVar("Batch")


class Pass(NamedTuple):
    """A pass that this process reads."""

    number: int  # 0 in a worker that is behind: the trainer has begun a later pass
    begin: int  # samples of the stream that are skipped
    worker: int  # from 0
    workers: int  # 1 without workers


class Passes:
    """The current pass over one stream, equal in all workers of a DataLoader."""

    def __init__(self, epoch: int) -> None:
        cells = torch.zeros(NUM_CELLS + MAX_WORKERS, dtype=torch.int64)
        self._cells: torch.Tensor = cells.share_memory_()  # type: ignore[no-untyped-call]
        self._turn = 0  # passes that this process has begun or followed
        self.set(epoch, 0)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._cells.share_memory_()  # type: ignore[no-untyped-call]  # those of a copy, too

    def __getitem__(self, cell: int) -> int:
        return int(self._cells[cell])

    def set(self, epoch: int, begin: int) -> None:
        """Let the next pass read an epoch from a sample on. The process of the trainer calls it."""
        self._write(epoch, begin, has_begun=False)

    def begin(self) -> Pass:
        """Begin a pass in this process: the current one, or the next epoch if that has ended."""
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._turn += 1
        seed = 0 if info is None else info.seed - worker
        if worker:
            number = self._follow(worker, seed)
            return Pass(number, self[BEGIN], worker, workers)
        was_read = self[COUNTED] != self[NUMBER] or self[COUNT] >= self[TOTAL]
        has_ended = self[HAS_BEGUN] and self[ENDED] == self[NUMBER] and was_read
        epoch, begin = (self[EPOCH] + 1, 0) if has_ended else (self[EPOCH], self[BEGIN])
        self._write(epoch, begin, has_begun=True)
        self._cells[SEED], self._cells[TURN] = seed, self._turn  # last: the others look for them
        return Pass(self[NUMBER], begin, worker, workers)

    def end(self, current: Pass, total: int) -> None:
        """Record that the last one of all micro batches of a pass is handed out."""
        if current.number >= self[ENDED]:
            self._cells[TOTAL], self._cells[ENDED] = total, current.number

    def count(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Count the batches of the current pass that the trainer gets.

        Workers read ahead, so a pass that is left early ends only for them.
        """
        self._cells[COUNTED], self._cells[COUNT] = self[NUMBER], 0
        return self._count(self[NUMBER], batches)

    def _count(self, number: int, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            if self[COUNTED] == number:
                self._cells[COUNT] += 1
            yield batch

    def _write(self, epoch: int, begin: int, has_begun: bool) -> None:
        self._cells[EPOCH], self._cells[BEGIN], self._cells[HAS_BEGUN] = epoch, begin, has_begun
        self._cells[NUMBER] = self[NUMBER] + 1

    def _follow(self, worker: int, seed: int) -> int:
        """Wait until worker 0 has begun the pass of this turn; return its number."""
        deadline, followed = time.monotonic() + TIMES.arrival, NUM_CELLS + worker
        while time.monotonic() < deadline:
            number = self[NUMBER]
            if self[SEED] == seed and self[TURN] > self._turn:
                return 0
            if self[SEED] == seed and self[TURN] == self._turn and number > self[followed]:
                self._cells[followed] = number
                return number
            time.sleep(LOOK)
        raise LaunchError(
            f"worker 0 has not begun to read within {TIMES.arrival:g} s.",
            f"Worker {worker} of the DataLoader waits for it.",
            fix="look for the error of worker 0 in its log, or read with num_workers=0.",
        )
