"""Start a job of local processes from Python, on a laptop or in tests.

Ranks meet through a file, so no port is used. This process only waits::

    parent  -- fn, args -->  child 0 .. n-1     run fn(*args), as under any launcher
            <-- outcome --                      a result, or the error with its traceback
"""

from __future__ import annotations

import inspect
import os
import pickle
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext
from pathlib import Path
from typing import Any, TypeVar, cast

from ..call import HIDDEN, Call, changes, format_value, parse_integer, quotes_call
from ..errors import LaunchError, MeshkitError, RankTimeoutError, SpawnError, SpecError
from ..text import count_noun, format_ranks, group_by, name_ranks
from .command import program_arguments, propose_function
from .detect import detect
from .job import current_job
from .log import Progress, report_uncaught_error, show_progress
from .times import Time, parse_timeout
from .worker import (
    LONGEST,
    Context,
    EndedError,
    Surroundings,
    Worker,
    context_for,
    end_workers,
    exit_if_imported_by_child,
    sendable_error,
    start_worker,
)
from .world import World, free_port

# Time that the other ranks have to notice the failure of a rank before they are killed.
GRACE = 10.0  # seconds
# Seconds. A rank may raise because a peer died before the parent sees that death. The parent
# therefore dates the death back.
NOTICE = 1.0
MAX_RANKS = 4096  # of one machine; a larger number is a slip of the keyboard
Result = TypeVar("Result")


@dataclass(frozen=True)
class Failure:
    """The outcome of a rank that failed; a rank that returned sends its result in a tuple."""

    error: BaseException  # raised, or describes how the process ended
    traceback: str
    when: float  # seconds of the machine's monotonic clock
    exit_code: int | None = None  # of a process that ended without an outcome
    frames: str = ""  # of an error of meshkit: the lines of the user in its traceback

    @property
    def summary(self) -> str:
        """The type and the first line of the error."""
        line = str(self.error).partition("\n")[0]
        return f"{type(self.error).__name__}: {line}"


Outcome = tuple[Any] | Failure


@quotes_call("spawn")
def spawn(
    fn: Callable[..., Result],
    world_size: int,
    args: Sequence[object] = (),
    *,
    timeout: Time | None = None,
) -> list[Result]:
    """Run ``fn(*args)`` in ``world_size`` local processes that form one job.

    In each, ``meshkit.init()``, ``meshkit.build_mesh()`` and torch's ``init_process_group()`` work
    as under torchrun. ``fn`` gets no rank: ``meshkit.detect().rank`` returns it. A rank that
    does not call ``shutdown()`` is shut down at its end. A rank uses OMP_NUM_THREADS threads, one
    if the variable is unset or the rank is forked from a session. No rank is left when this
    function returns or raises, or when this process dies. A rank that has returned is killed if its
    process does not end within 10 s.

    Args:
        fn: a function that another process can import: at the top level of a module, a script or
            a notebook. If it was typed into a session, the ranks are forked from the session.
        world_size: the number of processes.
        args: the arguments of ``fn``, the same on every rank; they are pickled.
        timeout: how long the whole job may take, in seconds or as a timedelta; None waits as long
            as every rank is alive and none has failed.

    Returns:
        The results of ``fn`` in rank order; None for a rank that called ``sys.exit(0)``.

    Raises:
        SpawnError: if a rank raised, died or ran out of time. It names the rank that failed first
            and holds the error of every failed rank. An error that pickle cannot rebuild becomes
            a RuntimeError with its text. The other ranks have 10 s to end.
        SpecError: if ``fn`` cannot be sent to another process or does not take ``args``, if
            ``world_size`` is not an int from 1 to 4,096, or if the session cannot be forked: it
            uses an accelerator or has joined a job.
        LaunchError: if a launcher has started this process as one rank of several.

    Example:
        >>> import operator
        >>> spawn(operator.add, 2, (40, 2))
        [42, 42]
    """
    __tracebackhide__ = True
    _check_no_launcher(fn)
    return start_ranks(fn, world_size, args, timeout=timeout)


@quotes_call("spawn")
def start_ranks(
    fn: Callable[..., Result],
    world_size: int,
    args: Sequence[object] = (),
    *,
    timeout: Time | None = None,
    title: str = "",
) -> list[Result]:
    """Run ``fn(*args)`` as :func:`spawn` does, also under a launcher. A title shows progress."""
    __tracebackhide__ = True  # a notebook and pytest show the line of the caller alone
    exit_if_imported_by_child()
    count = parse_integer(world_size)
    if count is None and parse_integer(args) is not None:  # as torch.multiprocessing orders them
        given = [fn, args, world_size] if world_size else [fn, args]
        line = f"world_size is {format_value(world_size)} and args is {args!r}."
        line_of_order = "spawn takes the number of ranks before the arguments of fn."
        raise SpecError(line, line_of_order, fix=f"{Call('spawn', given)}.")
    if callable(world_size):
        has_args = isinstance(args, Sequence) and len(args) > 0
        call = Call("spawn", (world_size, fn, args) if has_args else (world_size, fn))
        raise SpecError("world_size is a function.", "fn comes first.", fix=f"{call}.")
    if count is None or count < 1:
        raise SpecError(f"world_size is {world_size!r}.", fix="an int of 1 or more.")
    if count > MAX_RANKS:
        line = f"A machine starts at most {MAX_RANKS} ranks."
        raise SpecError(f"{count} ranks are too many.", line, fix="fewer ranks.")
    limit = parse_timeout("timeout", timeout)
    check_arguments_fit(fn, args, count)
    context = context_for(fn)
    job = pickle_job(fn, args)
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
        first = min(failures, key=lambda rank: failures[rank].when)
        raise _spawn_error(failures, first) from failures[first].error
    return [outcome[0] for outcome in outcomes if isinstance(outcome, tuple)]


def _check_no_launcher(fn: Callable[..., object]) -> None:
    """Check that this process is not already one rank of several."""
    report_uncaught_error()
    world: World | None = None
    with suppress(LaunchError):  # malformed variables are no launcher of several ranks
        world = detect(os.environ)
    if world is None or world.world_size == 1:
        return
    program = program_arguments()
    alone = f"; or start one process, with python {program}" if program else ""
    raise LaunchError(
        f"{world.launcher} has started this process as rank {world.rank} of {world.world_size}.",
        "spawn would start another job in each of these ranks.",
        fix=f"call {format_value(fn, 'fn')} without spawn: meshkit.build_mesh() in it uses the "
        f"{world.world_size} ranks of {world.launcher}{alone}.",
    )


def check_arguments_fit(fn: Callable[..., object], args: Sequence[object], count: int) -> None:
    """Check that ``fn(*args)`` is a valid call. A function may expect a rank before ``args``."""
    if not callable(fn):
        called = "Each rank calls it, so pass the function itself, without brackets."
        fix = propose_function(count) or "the name of a function, without brackets."
        raise SpecError(f"fn is {format_value(fn)}, no function.", called, fix=fix)
    if isinstance(args, str) or not isinstance(args, Sequence):
        raise SpecError(f"args is {args!r}, no tuple.", fix=f"{changes(args=(args,))}.")
    signature = None
    with suppress(TypeError, ValueError):  # a builtin without a signature
        signature = inspect.signature(fn)
    if signature is None or _binds(signature, args):
        return
    name = format_value(fn, "fn")
    first = next(iter(signature.parameters), "")
    if not _binds(signature, (0, *args)):
        no_rank = "spawn passes no rank: meshkit.detect() has the rank and the world_size."
        raise SpecError(
            f"{name} does not take the {count_noun(len(args), 'argument')} of args.",
            f"Its parameters are {', '.join(signature.parameters) or 'none'}.",
            *([no_rank] if "rank" in first else []),
            fix=f"spawn({name}, world_size, args) with a tuple of arguments that fits them.",
        )
    raise SpecError(
        f"{name} takes one argument more than args has: {first}.",
        "torch.multiprocessing.spawn passes the rank first; meshkit.spawn passes args alone.",
        fix=f"remove {first} from the parameters of {name}; meshkit.detect().rank is the rank.",
    )


def pickle_job(fn: Callable[..., object], args: Sequence[object]) -> bytes:
    """Return a function and its arguments, for another process."""
    try:
        return pickle.dumps((fn, tuple(args)))
    except Exception as error:  # a foreign __reduce__ may raise anything
        raise SpecError(
            "fn and args cannot be sent to another process.",
            str(error),
            fix="define fn at the top level of a module, script or notebook, with picklable args.",
        ) from error


def _binds(signature: inspect.Signature, args: Sequence[object]) -> bool:
    try:
        signature.bind(*args)
    except TypeError:
        return False
    return True


def _start(
    context: Context, job: bytes, count: int, folder: Path, progress: Progress
) -> list[Worker]:
    """Start all processes."""
    init_method, port = f"file://{folder}/store", free_port()
    started: list[Worker] = []
    try:
        for rank in range(count):
            progress.show(f"{rank} of {count_noun(count, 'rank')} started")
            own = Surroundings.of_rank(rank, count, init_method, port)
            started.append(start_worker(context, own, run_rank, job, siblings=started))
    except BaseException:
        end_workers(started)
        raise
    return started


def _outcomes(started: list[Worker], limit: timedelta | None, progress: Progress) -> list[Outcome]:
    """Return the outcome of each rank. All processes have ended when this returns or raises."""
    start = time.monotonic()
    deadline = start + limit.total_seconds() if limit else float("inf")
    outcomes: dict[int, Outcome] = {}
    try:
        while len(outcomes) < len(started) and time.monotonic() < deadline:
            open_pipes = {worker.pipe: r for r, worker in enumerate(started) if r not in outcomes}
            progress.show(f"{len(open_pipes)} of {count_noun(len(started), 'rank')} running")
            left = min(max(0.0, deadline - time.monotonic()), progress.seconds_left, LONGEST)
            for pipe in wait(list(open_pipes), left):
                rank = open_pipes[pipe]  # type: ignore[index]
                outcomes[rank] = _receive(started[rank])
                if isinstance(outcomes[rank], Failure):
                    deadline = min(deadline, time.monotonic() + GRACE)
        seconds = time.monotonic() - start
    finally:
        end_workers(started, outcomes.keys(), GRACE)
    text = f"still running after {seconds:.1f} s, killed"
    for rank in range(len(started)):
        error = RankTimeoutError(text, missing_ranks=(rank,))
        outcomes.setdefault(rank, Failure(error, "", time.monotonic()))
    return [outcomes[rank] for rank in range(len(started))]


def _receive(worker: Worker) -> Outcome:
    """Return the outcome that a rank sent; if it died before, describe how."""
    try:
        outcome: Outcome = worker.receive()
        return outcome
    except EndedError as error:
        failed = RuntimeError(f"the process {error}")
        return Failure(failed, "", error.noticed - NOTICE, exit_code=error.code)


def run_rank(pipe: Connection, job: bytes) -> None:
    """Run one rank of a spawned job and send its outcome."""
    rank = os.getpid()
    outcome = _outcome(job)
    if os.getpid() != rank:  # a child that fn has forked returns here, too, and is no rank
        sys.stderr.write(outcome.traceback if isinstance(outcome, Failure) else "")
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(isinstance(outcome, Failure))
    pipe.send_bytes(_serialize(outcome))
    if isinstance(outcome, Failure):  # a failed rank exits at once, so that the others notice
        return
    with suppress(EOFError, OSError):  # an early exit could break a rank that still connects
        pipe.recv_bytes()  # until the parent closes the pipe
    pipe.close()
    record = current_job()
    if record is not None and record.leave is not None:
        record.leave()


def _spawn_error(failures: dict[int, Failure], first: int) -> SpawnError:
    """Return the error that names the rank that failed first, and the outcomes of the others."""
    errors = {rank: failure.error for rank, failure in failures.items()}
    cause = errors[first]
    tracebacks = {r: failure.traceback for r, failure in failures.items() if failure.traceback}
    if not tracebacks and all(isinstance(error, RankTimeoutError) for error in errors.values()):
        return SpawnError(  # each of them still ran at the deadline
            f"{name_ranks(sorted(failures))}: {errors[first]}.",
            fix="timeout=<more seconds>, if the work takes longer; if it hangs, run it inside "
            "`with mesh.guard(timeout=<seconds>):`, which reports where each rank waits.",
            errors=errors,
        )
    others = sorted(failures.keys() - {first})
    ranks_by_summary = group_by((failures[rank].summary, rank) for rank in others)
    lines = failures[first].traceback.splitlines()
    fix = f"look at rank {first} first; the others may have failed because it did."
    if isinstance(cause, MeshkitError):
        lines = [*failures[first].frames.splitlines(), *cause.evidence_text]
        fix = cause.fix_text or fix
    elif failures[first].exit_code == 1:  # a child that exits before its first line
        fix = "write if __name__ == '__main__': before the lines of the script that call spawn."
    for summary, ranks in ranks_by_summary.items():
        same = "the same." if summary == failures[first].summary else summary
        lines.append(f"{'Rank' if len(ranks) == 1 else 'Ranks'} {format_ranks(ranks)}: {same}")
    return SpawnError(
        f"rank {first} failed first, with {failures[first].summary}",
        *lines,
        fix=fix,
        errors=errors,
        tracebacks=tracebacks,
    )


def _outcome(job: bytes) -> Outcome:
    """Run the job and return its outcome."""
    try:
        fn, args = pickle.loads(job)  # sent by our own parent
        return (fn(*args),)
    except BaseException as error:  # a KeyboardInterrupt is an outcome too
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return (None,)
        text, frames = traceback.format_exc(), ""
        if isinstance(error, MeshkitError):
            frames = format_frames(error)
        return Failure(sendable_error(error), text, time.monotonic(), frames=frames)


def format_frames(error: BaseException) -> str:
    """Return the lines of the user in the traceback of an error and of its causes.

    Frames of meshkit and the text of the error itself are left out. Empty if no line is left.
    """
    whole = traceback.TracebackException.from_exception(error)
    parts = [whole]
    for part in parts:
        part.stack[:] = [frame for frame in part.stack if not frame.filename.startswith(HIDDEN)]
        parts += filter(None, (part.__cause__, part.__context__))
    texts = [*whole.format()]
    return "".join(texts[: -len([*whole.format_exception_only()])]) if whole.stack else ""


def _serialize(outcome: Outcome) -> bytes:
    """Return the outcome as bytes, or a failure if the result cannot be sent."""
    try:
        data = pickle.dumps(outcome)
        pickle.loads(data)
        return data
    except Exception as error:  # a foreign __reduce__ may raise anything
        kind = type(cast(tuple[Any], outcome)[0]).__name__
        failed: Exception = TypeError(f"the result of fn, a {kind}, cannot be sent back: {error}")
        if isinstance(error, MeshkitError):
            line = f"the result of fn, a {kind}, cannot be sent back."
            failed = error.but(summary=line, evidence=(error.headline, *error.evidence_text))
        return pickle.dumps(Failure(failed, traceback.format_exc(), time.monotonic()))
