"""Inject a fault into some ranks of a local job, and record the outcome of every rank.

Unlike :func:`meshkit.spawn`, :func:`play` never ends a rank because another one failed. A fault
records that it fired, so that no test passes without it::

    def job(strike, limit):
        mesh = meshkit.build_mesh(dp=-1, arrival_timeout=limit)
        if mesh.rank == 2:
            strike.kill()
        with mesh.guard(timeout=5):
            torch.distributed.all_reduce(torch.ones(1), group=mesh.group("dp"))

    played = play(job, 4, (20,), timeout=60)
    played.fired, played.ends[2], played.outcomes[0].kind     # 2, "SIGKILL", "CollectiveError"
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from ..call import quotes_call
from ..launch.process import process_stat
from ..launch.worker import Surroundings, Worker, context_for, end_workers, start_worker
from ..launch.world import free_port

POLL_INTERVAL = 0.05  # seconds between two checks of the processes


@dataclass(frozen=True)
class Outcome:
    """The outcome of a rank that ended by itself.

    Attributes:
        kind: the name of the error, or ``"returned"``.
        text: the text of the error, or the ``repr`` of the returned value.
        missing_ranks: those of the error; empty if it has none.
        at: the time of the end, on the machine's monotonic clock.
    """

    kind: str
    text: str
    missing_ranks: tuple[int, ...]
    at: float


@dataclass(frozen=True)
class Played:
    """The outcome of a job.

    Attributes:
        outcomes: rank to the outcome of its last process; a process that a fault killed or stopped
            leaves none.
        ends: rank to the last state of its process: ``"ended"``, the name of a signal,
            ``"stopped"``, or ``"running"`` if it was killed at the timeout.
        fired: the rank of the first fault; None if no fault fired.
        at: the time of the first fault, on the machine's monotonic clock.
    """

    outcomes: Mapping[int, Outcome]
    ends: Mapping[int, str]
    fired: int | None
    at: float

    def seconds(self, rank: int) -> float:
        """Return the seconds from the fault to the end of a rank."""
        return self.outcomes[rank].at - self.at


@dataclass(frozen=True)
class Strike:
    """The faults of one rank; each records that it fires before it takes effect.

    Attributes:
        folder: the folder of the records.
        rank: the rank.
        start: how often the rank was started anew, 0 for its first process.
    """

    folder: str
    rank: int
    start: int = 0

    def note(self) -> None:
        """Record that a fault of the caller fires now; the first one of a rank counts."""
        path = Path(self.folder, f"{self.rank}.firing")
        if not path.with_suffix(".fired").exists():
            path.write_text(str(time.monotonic()))
            path.rename(path.with_suffix(".fired"))

    def kill(self) -> None:
        """Kill this process with SIGKILL."""
        self.note()
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self) -> None:
        """Stop all threads of this process with SIGSTOP."""
        self.note()
        os.kill(os.getpid(), signal.SIGSTOP)

    def cut(self) -> None:
        """Cut this process off: shut its connections down, and let it open no file or socket."""
        self.note()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        for descriptor in descriptors:
            with suppress(OSError):  # no socket, or none that is connected
                connection = socket.socket(fileno=descriptor)
                try:
                    listens = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                    if connection.family in (socket.AF_INET, socket.AF_INET6) and not listens:
                        connection.shutdown(socket.SHUT_RDWR)
                finally:
                    connection.detach()

    def later(self, seconds: float, fault: Callable[[], None]) -> None:
        """Call a fault, for example ``strike.kill``, after some seconds from another thread."""
        timer = threading.Timer(seconds, fault)
        timer.daemon = True
        timer.start()


@quotes_call("play")
def play(
    fn: Callable[..., object],
    world_size: int,
    args: Sequence[object] = (),
    *,
    timeout: float,
    restarts: int = 0,
) -> Played:
    """Run ``fn(strike, *args)`` in local processes that form one job; each ends by itself.

    Args:
        fn: a function at the top level of a module; its first argument is the :class:`Strike` of
            its rank.
        world_size: the number of processes.
        args: the other arguments, the same on every rank; they are pickled.
        timeout: seconds after which processes that still run are killed.
        restarts: how often a rank that was killed is started anew, for :meth:`meshkit.Mesh.admit`.

    Returns:
        The outcome of each rank. No process is left.

    Raises:
        SpecError: if ``fn`` was typed into a session that cannot be forked.
    """
    folder, port = tempfile.mkdtemp(prefix="meshkit-faults-"), free_port()
    context, deadline = context_for(fn), time.monotonic() + timeout
    workers: dict[int, Worker] = {}
    starts = Counter[int]()

    def start(rank: int) -> None:
        own = Surroundings.of_rank(rank, world_size, f"file://{folder}/store", port)
        strike = Strike(folder, rank, starts[rank])
        workers[rank] = start_worker(context, own, _run_rank, fn, tuple(args), strike)
        starts[rank] += 1

    try:
        for rank in range(world_size):
            start(rank)
        while True:
            ends = {rank: _process_state(worker.process) for rank, worker in workers.items()}
            killed = [r for r, end in ends.items() if end[:3] == "SIG" and starts[r] <= restarts]
            if time.monotonic() > deadline or not (killed or "running" in ends.values()):
                return _read_outcomes(Path(folder), ends)
            for rank in killed:
                start(rank)
            time.sleep(POLL_INTERVAL)
    finally:
        end_workers([*workers.values()])
        shutil.rmtree(folder, ignore_errors=True)


def _run_rank(
    _pipe: Connection, fn: Callable[..., object], args: tuple[object, ...], strike: Strike
) -> None:
    """Run the function on one rank and write its outcome, since a fault may cut the pipe."""
    try:
        text, kind, missing = repr(fn(strike, *args)), "returned", ()
    except BaseException as error:
        text, kind = str(error), type(error).__name__
        missing = tuple(getattr(error, "missing_ranks", ()))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # after a cut
    path = Path(strike.folder, f"{strike.rank}.tmp")
    path.write_text(json.dumps([kind, text, missing, time.monotonic()]))
    path.rename(path.with_suffix(".json"))
    os._exit(0)  # threads of torch that a fault left behind must not keep the process


def _process_state(process: BaseProcess) -> str:
    if process.exitcode is not None:
        return signal.Signals(-process.exitcode).name if process.exitcode < 0 else "ended"
    return "stopped" if process_stat(process.pid or 0)[:1] == ["T"] else "running"


def _read_outcomes(folder: Path, ends: Mapping[int, str]) -> Played:
    """Return the outcome of the job, from the files that its ranks have written."""
    outcomes = {}
    for path in sorted(folder.glob("*.json"), key=lambda path: int(path.stem)):
        kind, text, missing, at = json.loads(path.read_text())
        outcomes[int(path.stem)] = Outcome(kind, text, tuple(missing), at)
    fired = [(float(path.read_text()), int(path.stem)) for path in folder.glob("*.fired")]
    at, first = min(fired, default=(0.0, None))
    return Played(outcomes, ends, first, at)
