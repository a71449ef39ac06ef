"""Start a job of local processes from Python, for a laptop and for tests alike.

Children come from multiprocessing's forkserver with torch already imported, so eight of them are
there within a second; those of a notebook are forked from it. They meet through a file: no ports.
This process only waits::

    parent  -- fn, args -->  child 0 .. n-1     run fn(*args), as under any launcher
            <-- outcome --                      a result, or the error with its traceback
"""

from __future__ import annotations

import pickle
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

from ..core.call import Call, given
from ..core.errors import RankTimeoutError, SpawnError, SpecError, told
from ..core.integers import integer
from ..core.runs import format_ranks
from .child import Failure, Outcome, Success, environment, run
from .processes import Context, begin, context_for, inherited
from .times import Time, duration

Result = TypeVar("Result")

# Once a rank has failed, how long the others may take to notice before they are ended.
GRACE = timedelta(seconds=10)
# A death is noticed later than its victims raise: it counts as having come this much earlier.
NOTICE = 1.0
LONGEST = 86400.0  # seconds of one wait; more than a month would overflow poll(2)


def spawn(
    fn: Callable[..., Result],
    world_size: int,
    args: Sequence[object] = (),
    *,
    timeout: Time | None = None,
) -> list[Result]:
    """Run ``fn(*args)`` in ``world_size`` local processes that form one job.

    In each, ``meshkit.init()`` and ``meshkit.build_mesh()`` work as under torchrun; whoever does
    not call ``shutdown()`` is shut down at the end. A rank computes with one thread unless
    OMP_NUM_THREADS says otherwise (in a fork always with one). Whatever happens, no rank is left
    when this returns; if this process dies, its ranks end themselves. A rank that has returned and
    does not end within 10 s is ended. (multiprocessing keeps its forkserver for the next call.)

    Args:
        fn: a function that another process can find: at the top level of a module, a script or a
            notebook. What was typed into a session is forked from it, as no file holds it.
        world_size: how many processes.
        args: arguments for every rank alike; they are pickled.
        timeout: how long all of it may take, in seconds or as a timedelta; None means as long as
            every rank is alive and none has failed.

    Returns:
        What ``fn`` returned, by rank; None for a rank that left with ``sys.exit(0)``.

    Raises:
        SpawnError: where a rank raised, died or ran out of time. It names the one that failed
            first and holds the error of every one, a RuntimeError with its words where pickle
            cannot rebuild it; the others are given 10 s to end.
        SpecError: where ``fn`` cannot be sent to another process or ``world_size`` is no count; or
            where a session that has used an accelerator, or has joined a job, cannot be forked.

    Example:
        >>> import operator
        >>> spawn(operator.add, 2, (40, 2))
        [42, 42]
    """
    name = getattr(fn, "__qualname__", repr(fn))
    call = Call("spawn", (Name(name), world_size), given(timeout=timeout))
    count = integer(world_size)
    if count is None or count < 1:
        raise SpecError(told(f"{call}: not a number of processes.", fix="1 or more."))
    limit = duration(call, "timeout", timeout)
    context = context_for(call, fn)
    job = _pickled(call, fn, args)
    folder = Path(tempfile.mkdtemp(prefix="meshkit-"))
    try:
        outcomes = _outcomes(_start(context, job, count, folder), limit)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failures = {rank: out for rank, out in enumerate(outcomes) if isinstance(out, Failure)}
    if failures:
        raise _failed(call, failures)
    return [outcome.result for outcome in outcomes if isinstance(outcome, Success)]


class Name(str):
    """A name that is printed as it is, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _pickled(call: Call, fn: Callable[..., object], args: Sequence[object]) -> bytes:
    try:
        return pickle.dumps((fn, tuple(args)))
    except Exception as error:  # a foreign __reduce__ may raise anything
        text = told(
            f"{call}: fn and args cannot be sent to another process.",
            str(error),
            fix="define fn at the top level of a module, script or notebook, with picklable args.",
        )
        raise SpecError(text) from error


def _start(
    context: Context, job: bytes, count: int, folder: Path
) -> list[tuple[BaseProcess, Connection]]:
    """All processes, each with the pipe on which it will tell its outcome."""
    meeting = f"file://{folder}/store"
    started: list[tuple[BaseProcess, Connection]] = []
    try:
        for rank in range(count):
            ours, theirs = context.Pipe()
            given = job, environment(rank, count, meeting), theirs
            process = context.Process(target=run, args=(*given, *inherited(context, started, ours)))
            begin(process)
            theirs.close()
            started.append((process, ours))
    except BaseException:
        _end(started, finished=())
        raise
    return started


def _outcomes(
    started: list[tuple[BaseProcess, Connection]], limit: timedelta | None
) -> list[Outcome]:
    """What became of each rank. All processes have ended when this returns or raises."""
    began = time.monotonic()
    deadline = began + limit.total_seconds() if limit else float("inf")
    outcomes: dict[int, Outcome] = {}
    try:
        while len(outcomes) < len(started) and time.monotonic() < deadline:
            open_pipes = {p: r for r, (_, p) in enumerate(started) if r not in outcomes}
            left = min(max(0.0, deadline - time.monotonic()), LONGEST)
            for pipe in wait(list(open_pipes), left):
                rank = open_pipes[pipe]  # type: ignore[index]
                outcomes[rank] = _outcome(*started[rank])
                if isinstance(outcomes[rank], Failure):
                    deadline = min(deadline, time.monotonic() + GRACE.total_seconds())
        seconds = time.monotonic() - began
    finally:
        _end(started, finished=outcomes.keys())
    return [outcomes.get(rank) or _overdue(rank, seconds) for rank in range(len(started))]


def _outcome(process: BaseProcess, pipe: Connection) -> Outcome:
    """What a rank says; or, where it died without a word, how."""
    try:
        outcome = pickle.loads(pipe.recv_bytes())  # our own child's, through a private pipe
    except (EOFError, OSError):  # OSError: it died while it was sending
        noticed = time.monotonic() - NOTICE
        process.join(5)
        code = process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        return Failure(RuntimeError(f"the process ended by itself, with {how}"), "", noticed)
    return outcome  # type: ignore[no-any-return]


def _overdue(rank: int, seconds: float) -> Failure:
    error = RankTimeoutError(f"still running after {seconds:.1f} s, ended", missing_ranks=(rank,))
    return Failure(error, "", time.monotonic())


def _end(started: list[tuple[BaseProcess, Connection]], finished: Collection[int]) -> None:
    """Wait for the ranks that have finished, end the others, and return when all are gone."""
    for rank, (process, pipe) in enumerate(started):
        pipe.close()
        if rank not in finished:
            process.kill()
    deadline = time.monotonic() + GRACE.total_seconds()
    for process, _ in started:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()


def _advice(first: int, failure: Failure) -> str:
    """What to do; a child that ends before it begins mostly comes of a script without a guard."""
    if failure.summary.endswith("with exit code 1") and not failure.traceback:
        return "write if __name__ == '__main__': before the lines of the script that call spawn."
    return f"look at rank {first} first; the others may have failed because it did."


def _failed(call: Call, failures: dict[int, Failure]) -> SpawnError:
    """The error that tells which rank failed first, with what, and what became of the others."""
    first = min(failures, key=lambda rank: failures[rank].when)
    alike: dict[str, list[int]] = {}
    for rank in failures.keys() - {first}:
        alike.setdefault(failures[rank].summary, []).append(rank)
    lines = [
        f"{'Rank' if len(ranks) == 1 else 'Ranks'} {format_ranks(sorted(ranks))}: {summary}"
        for summary, ranks in alike.items()
    ]
    text = told(
        f"{call}: rank {first} failed first, with {failures[first].summary}",
        *failures[first].traceback.splitlines(),
        *lines,
        fix=_advice(first, failures[first]),
    )
    errors = {rank: out.error for rank, out in failures.items()}
    tracebacks = {rank: out.traceback for rank, out in failures.items() if out.traceback}
    error = SpawnError(text, errors=errors, tracebacks=tracebacks)
    error.__cause__ = errors[first]
    return error
