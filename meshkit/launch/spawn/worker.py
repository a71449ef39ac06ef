"""The child side of ``spawn``: run one rank and send its outcome to the parent."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

from ..device.accelerators import ACCELERATORS
from ..launchers.completed import LOOPBACK_HOST
from ..launchers.endpoint import LOOPBACK
from ..launchers.table import LAUNCHERS, SPAWN
from ..launchers.variables import COMPLETED


@dataclass(frozen=True)
class Success:
    """The outcome of a rank that returned."""

    result: Any


@dataclass(frozen=True)
class Failure:
    """The outcome of a rank that failed."""

    error: BaseException  # raised, or describes how the process ended
    traceback: str
    when: float  # seconds of the machine's monotonic clock

    @property
    def summary(self) -> str:
        """The type and the first line of the error."""
        line = str(self.error).partition("\n")[0]
        return f"{type(self.error).__name__}: {line}"


Outcome = Success | Failure


def child_environment(
    rank: int, world_size: int, init_method: str, master_port: int
) -> dict[str, str]:
    """Return the variables of a child: this process' own, with those of its launcher replaced.

    torch's own ``init_process_group()`` meets at the port, meshkit at the file of ``init_method``.
    """
    preceding = LAUNCHERS[: LAUNCHERS.index(SPAWN)]  # these would match before spawn
    hidden = {name for row in preceding for names in row.markers for name in names}
    hidden |= {COMPLETED} | {
        row.module for row in ACCELERATORS if row.module
    }  # each rank chooses its own
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    defaults = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK}
    return {
        **defaults,
        **inherited,
        "MESHKIT_SPAWN": init_method,
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": LOOPBACK_HOST,
        "MASTER_PORT": str(master_port),
    }


def run_rank(job: bytes, environ: dict[str, str], pipe: Connection, *inherited: Connection) -> None:
    """Run one rank of a spawned job and send its outcome."""
    for end in inherited:
        end.close()
    # OpenMP's threads do not survive a fork, so several threads would wait for them forever.
    set_up_worker(environ, "1" if inherited else environ["OMP_NUM_THREADS"])
    outcome = _outcome(job)
    pipe.send_bytes(_serialize(outcome))
    if isinstance(outcome, Success):  # a failed rank exits at once, so that the others notice
        _wait_for_parent(pipe)
        _leave_job()


def set_up_worker(environ: dict[str, str], threads: str) -> None:
    """Make this process a rank: set its variables and threads, and end it with its parent.

    Ctrl-C ends it at once: the parent gets the signal as well, and reports it.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_follow_parent, name="meshkit-parent", daemon=True).start()
    os.environ.clear()
    os.environ.update(environ)
    _limit_threads(threads)


def _follow_parent() -> None:
    """End this process when its parent has ended, for whatever reason."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _limit_threads(count: str) -> None:
    """Set torch's threads: the forkserver imported it under another OMP_NUM_THREADS."""
    if "torch" in sys.modules and count.isdigit() and int(count) > 0:
        sys.modules["torch"].set_num_threads(int(count))


def _outcome(job: bytes) -> Outcome:
    """Run the job and return its outcome."""
    try:
        fn, args = pickle.loads(job)  # sent by our own parent
        return Success(fn(*args))
    except SystemExit as error:
        if error.code in (None, 0):
            return Success(None)
        return Failure(error, traceback.format_exc(), time.monotonic())
    except BaseException as error:  # a KeyboardInterrupt is an outcome too
        return Failure(error, traceback.format_exc(), time.monotonic())


def _wait_for_parent(pipe: Connection) -> None:
    """Wait until the parent closes the pipe: an early exit could break a rank that connects."""
    try:
        pipe.recv_bytes()
    except (EOFError, OSError):
        pipe.close()


def _leave_job() -> None:
    """Shut down the job that this rank has joined, if any."""
    from ..job import current_job  # imports torch, which the parent may do without

    record = current_job()
    if record is not None and record.leave is not None:
        record.leave()


def _serialize(outcome: Outcome) -> bytes:
    """Return the outcome as bytes; if pickle fails, with a description in its place."""
    try:
        data = pickle.dumps(outcome)
        pickle.loads(data)
        return data
    except Exception as error:  # a foreign __reduce__ may raise anything
        if isinstance(outcome, Failure):
            description = RuntimeError(f"{type(outcome.error).__name__}: {outcome.error}")
            return pickle.dumps(Failure(description, outcome.traceback, outcome.when))
        text = f"the result of fn, a {type(outcome.result).__name__}, cannot be sent back: {error}"
        return pickle.dumps(Failure(TypeError(text), traceback.format_exc(), time.monotonic()))
