"""The other side of ``spawn``: what a child process does from its first line to its last."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

from ..device.accelerators import ACCELERATORS
from ..launchers.table import LAUNCHERS, SPAWN

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True)
class Success:
    """A rank that returned."""

    result: Any


@dataclass(frozen=True)
class Failure:
    """A rank that did not: its error, the traceback as text, and when on the machine's clock."""

    error: BaseException
    traceback: str
    when: float

    @property
    def summary(self) -> str:
        """The kind and first line of the error."""
        line = str(self.error).partition("\n")[0]
        return f"{type(self.error).__name__}: {line}"


Outcome = Success | Failure


def environment(rank: int, world_size: int, meeting: str) -> dict[str, str]:
    """The variables of a child: this process' own, less its launcher's, and what a launcher sets.

    Args:
        rank: the rank of the child.
        world_size: how many there are.
        meeting: where they meet, as a URL.
    """
    before = LAUNCHERS[: LAUNCHERS.index(SPAWN)]  # these would answer in spawn's place
    hidden = {name for row in before for names in row.known_by for name in names}
    hidden |= {row.module for row in ACCELERATORS if row.module}  # each rank chooses its own
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    defaults = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK}
    return {
        **defaults,
        **inherited,
        "MESHKIT_SPAWN": meeting,
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
    }


def run(job: bytes, environ: dict[str, str], pipe: Connection, *inherited: Connection) -> None:
    """Run one rank of a spawned job and send its outcome.

    Args:
        job: the function and its arguments, pickled.
        environ: the variables to run with; those of the forkserver may be out of date.
        pipe: where the outcome goes.
        *inherited: the parent's ends of pipes, in a fork, which has to close them.
    """
    for end in inherited:
        end.close()
    # OpenMP's threads do not survive a fork: more than one would be waited for in vain.
    become(environ, "1" if inherited else environ["OMP_NUM_THREADS"])
    outcome = _outcome(job)
    pipe.send_bytes(_sendable(outcome))
    if isinstance(outcome, Success):  # a failure leaves at once, so that the others notice
        _wait_for_all(pipe)
        _leave_job()


def become(environ: dict[str, str], threads: str) -> None:
    """Let this process be a rank: it has these variables and threads, and ends with its parent."""
    threading.Thread(target=_follow_parent, name="meshkit-parent", daemon=True).start()
    os.environ.clear()
    os.environ.update(environ)
    _limit_threads(threads)


def _follow_parent() -> None:
    """End this process when the one that started it is gone, however it went."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _limit_threads(count: str) -> None:
    """Give torch its threads: the forkserver imported it under another OMP_NUM_THREADS."""
    if "torch" in sys.modules and count.isdigit() and int(count) > 0:
        sys.modules["torch"].set_num_threads(int(count))


def _outcome(job: bytes) -> Outcome:
    """Run the job."""
    try:
        fn, args = pickle.loads(job)  # our own parent's
        return Success(fn(*args))
    except SystemExit as error:
        if error.code in (None, 0):
            return Success(None)
        return Failure(error, traceback.format_exc(), time.monotonic())
    except BaseException as error:  # a KeyboardInterrupt is an outcome too
        return Failure(error, traceback.format_exc(), time.monotonic())


def _wait_for_all(pipe: Connection) -> None:
    """Stay until the parent hangs up: a rank that left early could leave another connecting."""
    try:
        pipe.recv_bytes()
    except (EOFError, OSError):
        pipe.close()


def _leave_job() -> None:
    if "meshkit.launch.join" in sys.modules:
        sys.modules["meshkit.launch.join"].shutdown()


def _sendable(outcome: Outcome) -> bytes:
    """The outcome as bytes that the parent can read, in words where it cannot be pickled."""
    try:
        data = pickle.dumps(outcome)
        pickle.loads(data)
        return data
    except Exception as error:  # a foreign __reduce__ may raise anything
        if isinstance(outcome, Failure):
            told = RuntimeError(f"{type(outcome.error).__name__}: {outcome.error}")
            return pickle.dumps(Failure(told, outcome.traceback, outcome.when))
        text = f"the result of fn, a {type(outcome.result).__name__}, cannot be sent back: {error}"
        return pickle.dumps(Failure(TypeError(text), traceback.format_exc(), time.monotonic()))
