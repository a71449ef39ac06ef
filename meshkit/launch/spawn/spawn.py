"""Start a job of local processes from Python, on a laptop or in tests.

Children are forked from multiprocessing's forkserver with torch already imported, so eight of them
start within a second. Ranks of a function typed into a notebook are forked from the notebook. Ranks
meet through a file, so no port is used. This process only waits::

    parent  -- fn, args -->  child 0 .. n-1     run fn(*args), as under any launcher
            <-- outcome --                      a result, or the error with its traceback
"""

from __future__ import annotations

import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

from ...core.call import quotes_call
from ...core.errors import RankTimeoutError, SpawnError, SpecError
from ...core.text import count_noun, format_ranks, name_ranks
from ...core.validate import parse_integer
from ..launchers.completed import free_port
from ..output.progress import Progress, show_progress
from ..times import Time, parse_timeout
from .habits import check_arguments_fit, check_no_launcher
from .start_method import Context, context_for, inherited_pipe_ends, start_process
from .worker import Failure, Outcome, Success, child_environment, run_rank

Result = TypeVar("Result")

# Time that the other ranks have to notice the failure of a rank before they are killed.
GRACE = timedelta(seconds=10)
# Seconds. A rank may raise because a peer died before the parent sees that death. The parent
# therefore dates the death back.
NOTICE = 1.0
LONGEST = 86400.0  # seconds of one wait; poll(2) overflows after 24.8 days


@quotes_call("spawn")
def spawn(
    fn: Callable[..., Result],
    world_size: int,
    args: Sequence[object] = (),
    *,
    timeout: Time | None = None,
    progress: bool = False,
) -> list[Result]:
    """Run ``fn(*args)`` in ``world_size`` local processes that form one job.

    In each, ``meshkit.init()``, ``meshkit.build_mesh()`` and torch's ``init_process_group()`` work
    as under torchrun. ``fn`` gets no rank: ``meshkit.detect().rank`` returns it. A rank that
    does not call ``shutdown()`` is shut down at its end. A rank uses OMP_NUM_THREADS threads, one
    if the variable is unset. A forked rank always uses one. No rank is left when this function
    returns or raises. If this process dies, the ranks end as well. A rank that has returned is
    killed if its process does not end within 10 s. (multiprocessing keeps its forkserver for the
    next call.)

    Args:
        fn: a function that another process can import: at the top level of a module, a script or
            a notebook. If it was typed into a session, the ranks are forked from the session.
        world_size: the number of processes.
        args: the arguments of ``fn``, the same on every rank; they are pickled.
        timeout: how long the whole job may take, in seconds or as a timedelta; None waits as long
            as every rank is alive and none has failed.
        progress: show the number of ranks that run on stderr: in a line that is redrawn on a
            terminal, in a line every 30 s elsewhere.

    Returns:
        The results of ``fn`` in rank order; None for a rank that called ``sys.exit(0)``.

    Raises:
        SpawnError: if a rank raised, died or ran out of time. It names the rank that failed first
            and holds the error of every failed rank. An error that pickle cannot rebuild becomes
            a RuntimeError with its text. The other ranks have 10 s to end.
        SpecError: if ``fn`` cannot be sent to another process or does not take ``args``, if
            ``world_size`` is not a positive int, or if the session cannot be forked: it uses an
            accelerator or has joined a job.
        LaunchError: if a launcher has started this process as one rank of several.

    Example:
        >>> import operator
        >>> spawn(operator.add, 2, (40, 2))
        [42, 42]
    """
    check_no_launcher(fn)
    return start_ranks(fn, world_size, args, timeout=timeout, title="spawn" if progress else "")


@quotes_call("spawn")
def start_ranks(
    fn: Callable[..., Result],
    world_size: int,
    args: Sequence[object] = (),
    *,
    timeout: Time | None = None,
    title: str = "",
) -> list[Result]:
    """Run ``fn(*args)`` as :func:`spawn` does, also under a launcher: for commands that say so.

    The title begins the lines of progress; without one there are none.
    """
    count = parse_integer(world_size)
    if count is None or count < 1:
        raise SpecError(f"world_size is {world_size!r}.", fix="an int of 1 or more.")
    limit = parse_timeout("timeout", timeout)
    check_arguments_fit(fn, args)
    context = context_for(fn)
    job = _pickled(fn, args)
    folder = Path(tempfile.mkdtemp(prefix="meshkit-"))
    progress = Progress(title, sys.stderr if title else None)
    is_forked = isinstance(context, ForkContext)  # a fork copies the lock of another thread
    try:
        with closing(progress) if is_forked or not title else show_progress(progress):
            outcomes = _outcomes(_start(context, job, count, folder, progress), limit, progress)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failures = {rank: out for rank, out in enumerate(outcomes) if isinstance(out, Failure)}
    if failures:
        raise _spawn_error(failures) from failures[_first_failure(failures)].error
    return [outcome.result for outcome in outcomes if isinstance(outcome, Success)]


def _pickled(fn: Callable[..., object], args: Sequence[object]) -> bytes:
    """Return fn and its arguments as bytes."""
    try:
        return pickle.dumps((fn, tuple(args)))
    except Exception as error:  # a foreign __reduce__ may raise anything
        raise SpecError(
            "fn and args cannot be sent to another process.",
            str(error),
            fix="define fn at the top level of a module, script or notebook, with picklable args.",
        ) from error


def _start(
    context: Context, job: bytes, count: int, folder: Path, progress: Progress
) -> list[tuple[BaseProcess, Connection]]:
    """Start all processes; return each with the pipe on which it will send its outcome."""
    init_method, port = f"file://{folder}/store", free_port()
    started: list[tuple[BaseProcess, Connection]] = []
    try:
        for rank in range(count):
            progress.show(f"{rank} of {count_noun(count, 'rank')} started")
            pipe, child_end = context.Pipe()
            args = job, child_environment(rank, count, init_method, port), child_end
            inherited = inherited_pipe_ends(context, started, pipe)
            process = context.Process(target=run_rank, args=(*args, *inherited))
            start_process(process)
            child_end.close()
            started.append((process, pipe))
    except BaseException:
        _end(started, finished=())
        raise
    return started


def _outcomes(
    started: list[tuple[BaseProcess, Connection]], limit: timedelta | None, progress: Progress
) -> list[Outcome]:
    """Return the outcome of each rank. All processes have ended when this returns or raises."""
    start = time.monotonic()
    deadline = start + limit.total_seconds() if limit else float("inf")
    outcomes: dict[int, Outcome] = {}
    try:
        while len(outcomes) < len(started) and time.monotonic() < deadline:
            open_pipes = {p: r for r, (_, p) in enumerate(started) if r not in outcomes}
            progress.show(f"{len(open_pipes)} of {count_noun(len(started), 'rank')} running")
            left = min(max(0.0, deadline - time.monotonic()), progress.seconds_left, LONGEST)
            for pipe in wait(list(open_pipes), left):
                rank = open_pipes[pipe]  # type: ignore[index]
                outcomes[rank] = _outcome(*started[rank])
                if isinstance(outcomes[rank], Failure):
                    deadline = min(deadline, time.monotonic() + GRACE.total_seconds())
        seconds = time.monotonic() - start
    finally:
        _end(started, finished=outcomes.keys())
    return [outcomes.get(rank) or _timed_out(rank, seconds) for rank in range(len(started))]


def _outcome(process: BaseProcess, pipe: Connection) -> Outcome:
    """Return the outcome that a rank sent; if it died before, describe how."""
    try:
        outcome = pickle.loads(pipe.recv_bytes())  # sent by our own child on a private pipe
    except (EOFError, OSError):  # OSError: it died while sending
        died = time.monotonic() - NOTICE
        process.join(5)
        code = process.exitcode
        cause = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        return Failure(RuntimeError(f"the process ended by itself, with {cause}"), "", died)
    return outcome  # type: ignore[no-any-return]


def _timed_out(rank: int, seconds: float) -> Failure:
    """Return the outcome of a rank that had to be killed."""
    error = RankTimeoutError(f"still running after {seconds:.1f} s, killed", missing_ranks=(rank,))
    return Failure(error, "", time.monotonic())


def _end(started: list[tuple[BaseProcess, Connection]], finished: Collection[int]) -> None:
    """Wait for the finished ranks, kill the others, and return when all processes have ended."""
    for rank, (process, pipe) in enumerate(started):
        pipe.close()
        if rank not in finished:
            process.kill()
    deadline = time.monotonic() + GRACE.total_seconds()
    for process, _ in started:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.join()


def _first_failure(failures: dict[int, Failure]) -> int:
    """Return the rank that failed first."""
    return min(failures, key=lambda rank: failures[rank].when)


def _was_killed(failure: Failure) -> bool:
    """Return whether the rank still ran at the deadline."""
    return isinstance(failure.error, RankTimeoutError) and not failure.traceback


def _all_killed_error(failures: dict[int, Failure]) -> SpawnError:
    """Return the error of ranks of which none failed before the deadline."""
    return SpawnError(
        f"{name_ranks(sorted(failures))}: {failures[min(failures)].error}.",
        fix="timeout=<more seconds>, if the work takes longer; if it hangs, run it inside `with "
        "mesh.guard(timeout=<seconds>):`, which reports where each rank waits.",
        errors={rank: failure.error for rank, failure in failures.items()},
    )


def _advice(first: int, failure: Failure) -> str:
    """Return the fix; a child that exits before its first line usually lacks a main guard."""
    if failure.summary.endswith("with exit code 1") and not failure.traceback:
        return "write if __name__ == '__main__': before the lines of the script that call spawn."
    return f"look at rank {first} first; the others may have failed because it did."


def _spawn_error(failures: dict[int, Failure]) -> SpawnError:
    """Return the error that names the rank that failed first, and the outcomes of the others."""
    first = _first_failure(failures)
    if all(_was_killed(failure) for failure in failures.values()):
        return _all_killed_error(failures)
    ranks_by_summary: dict[str, list[int]] = {}
    for rank in sorted(failures.keys() - {first}):
        ranks_by_summary.setdefault(failures[rank].summary, []).append(rank)
    return SpawnError(
        f"rank {first} failed first, with {failures[first].summary}",
        *failures[first].traceback.splitlines(),
        *(
            f"{'Rank' if len(ranks) == 1 else 'Ranks'} {format_ranks(ranks)}: {summary}"
            for summary, ranks in ranks_by_summary.items()
        ),
        fix=_advice(first, failures[first]),
        errors={rank: failure.error for rank, failure in failures.items()},
        tracebacks={r: failure.traceback for r, failure in failures.items() if failure.traceback},
    )
