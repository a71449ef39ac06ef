"""Print an uncaught error once, if several ranks of torchrun raise the same one.

The rank that claims the text at the store prints it. The others print one line, after that rank has
printed. A text is the traceback with its causes, so an error that differs in a number or in a line
of the program is printed in full. So is every error if the store does not answer. The store of a
torchrun agent outlives the ranks, other stores end with rank 0.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from contextlib import suppress
from functools import cache, partial
from types import TracebackType
from typing import TYPE_CHECKING

import torch.distributed as dist

from ..core.errors import MeshkitError
from .current_job import Job, current_job
from .output.brief_error import print_repeated_errors_in_one_line
from .store.client import hosted_by_agent
from .store.deadline import Deadline, DeadlineExceededError, run_with_deadline, store_wait
from .store.foreign_value import read_number
from .store.keys import PRINTED, PRINTER, UNCAUGHT

if TYPE_CHECKING:
    from .output.brief_error import Hook

PRINT_TIME = 1.0  # seconds that a rank has for printing, and the store for an answer


@cache
def print_equal_errors_once() -> None:
    """Let one rank print an uncaught error that others raise too. Local; harmless to repeat."""
    print_repeated_errors_in_one_line()
    sys.excepthook = partial(_print_uncaught, sys.excepthook)


def _print_uncaught(
    others: Hook,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    job = current_job()
    shared = job.store if job is not None and _outlives_ranks(job) else None
    if job is None or shared is None or not isinstance(error, MeshkitError):
        others(kind, error, trace)
        return
    text = "".join(traceback.format_exception(kind, error, trace))
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    store, rank = dist.PrefixStore(UNCAUGHT.format(digest), shared), job.world.rank
    printer = find_printer(store, rank)
    if printer != rank and error.printed_by is None:
        error.printed_by = printer
    others(kind, error, trace)
    if printer == rank:
        post_printed(store)


def _outlives_ranks(job: Job) -> bool:
    """Return whether the store of this process's job outlives its ranks."""
    return job.pid == os.getpid() and hosted_by_agent(job.world)


def find_printer(store: dist.Store, rank: int, seconds: float = PRINT_TIME) -> int | None:
    """Return the rank that has printed a text, or this rank if it is the first one.

    None if the first rank does not print it in time, or if the store does not answer.

    Cost: one store operation, on a later rank two.
    """

    def claim() -> int | None:
        first = read_number(PRINTER, store.compare_set(PRINTER, "", str(rank)))
        is_printed = first == rank or store_wait(store, [PRINTED], Deadline.after(seconds))
        return first if is_printed else None

    with suppress(RuntimeError, MeshkitError, DeadlineExceededError):
        return run_with_deadline(2 * seconds, claim)
    return None


def post_printed(store: dist.Store) -> None:
    """Post that this rank has printed the text. Local; nothing happens if the store is gone."""
    with suppress(RuntimeError, DeadlineExceededError):
        run_with_deadline(PRINT_TIME, lambda: store.set(PRINTED, ""))
