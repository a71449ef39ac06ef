"""Play a fault on some ranks of a local job, and see what becomes of the others.

Unlike :func:`meshkit.spawn` this never ends a rank because another failed: what each rank raised,
and when, is what is asked for. A fault says that it fired, so that a test cannot pass without it::

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
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from ..core.call import public
from ..launch.spawn.start_method import context_for, start_process
from ..launch.spawn.worker import child_environment, set_up_worker
from ..launch.store.rank_lease import process_stat
from ..live.preload import preload_mesh

LOOK = 0.05  # seconds between two looks at the processes


@dataclass(frozen=True)
class Outcome:
    """What became of a rank that came to an end by itself.

    Attributes:
        kind: the name of the error, or ``"returned"``.
        text: the error's words, or the ``repr`` of what was returned.
        missing_ranks: of the error, where it has them.
        at: when, on the machine's monotonic clock.
    """

    kind: str
    text: str
    missing_ranks: tuple[int, ...]
    at: float


@dataclass(frozen=True)
class Played:
    """What became of a job.

    Attributes:
        outcomes: rank to its outcome; ranks that were struck have none.
        ends: rank to how its process was found: ``"ended"``, a signal's name, ``"stopped"``, or
            ``"running"`` where it had to be ended when the time was over.
        fired: the rank that was struck first; None where no fault fired.
        at: when it was, on the machine's monotonic clock.
    """

    outcomes: Mapping[int, Outcome]
    ends: Mapping[int, str]
    fired: int | None
    at: float

    def seconds(self, rank: int) -> float:
        """How long after the fault a rank came to its end."""
        return self.outcomes[rank].at - self.at


@dataclass(frozen=True)
class Strike:
    """The faults of one rank; each says that it fired before it does."""

    folder: str
    rank: int

    def note(self) -> None:
        """Say that a fault of one's own fires now."""
        path = Path(self.folder, f"{self.rank}.firing")
        path.write_text(str(time.monotonic()))
        path.rename(path.with_suffix(".fired"))

    def kill(self) -> None:
        """End this process at once, without a word."""
        self.note()
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self) -> None:
        """Stop this process, all its threads, as it stands."""
        self.note()
        os.kill(os.getpid(), signal.SIGSTOP)

    def later(self, seconds: float, fault: Callable[[], None]) -> None:
        """Let a fault fire in a while, whatever this rank is in then."""
        threading.Thread(target=_after, args=(seconds, fault), daemon=True).start()


@public("play")
def play(
    fn: Callable[..., object], world_size: int, args: Sequence[object] = (), *, timeout: float
) -> Played:
    """Run ``fn(strike, *args)`` in local processes that form one job, whatever becomes of any.

    Args:
        fn: at the top level of a module; it gets a :class:`Strike` of its rank first.
        world_size: how many processes.
        args: arguments for every rank alike; they are pickled.
        timeout: seconds after which whatever still runs is ended.

    Returns:
        What became of each rank. No process is left.

    Raises:
        SpecError: where ``fn`` was typed into a session that cannot be forked.
    """
    folder = tempfile.mkdtemp(prefix="meshkit-faults-")
    preload_mesh()
    context = context_for(fn)
    processes: list[BaseProcess] = []
    try:
        for rank in range(world_size):
            environ = child_environment(rank, world_size, f"file://{folder}/store")
            given = fn, tuple(args), environ, Strike(folder, rank)
            process: BaseProcess = context.Process(target=_rank, args=given)
            start_process(process)
            processes.append(process)
        ends = _ends(processes, time.monotonic() + timeout)
        return _played(Path(folder), ends)
    finally:
        for process in processes:
            process.kill()
            process.join()
        shutil.rmtree(folder, ignore_errors=True)


def _rank(
    fn: Callable[..., object], args: tuple[object, ...], environ: dict[str, str], strike: Strike
) -> None:
    """One rank: run the function and write down what became of it."""
    set_up_worker(environ, environ["OMP_NUM_THREADS"])
    try:
        text, kind, missing = repr(fn(strike, *args)), "returned", ()
    except BaseException as error:
        text, kind = str(error), type(error).__name__
        missing = tuple(getattr(error, "missing_ranks", ()))
    outcome = Outcome(kind, text, missing, time.monotonic())
    path = Path(strike.folder, f"{strike.rank}.tmp")
    path.write_text(json.dumps(asdict(outcome)))
    path.rename(path.with_suffix(".json"))
    os._exit(0)  # what a fault has left in torch's threads must not keep the process


def _after(seconds: float, fault: Callable[[], None]) -> None:
    time.sleep(seconds)
    fault()


def _ends(processes: Sequence[BaseProcess], deadline: float) -> dict[int, str]:
    """How each process was found, when all had come to an end or the time was over."""
    while True:
        ends = {rank: _end(process) for rank, process in enumerate(processes)}
        if "running" not in ends.values() or time.monotonic() > deadline:
            return ends
        time.sleep(LOOK)


def _end(process: BaseProcess) -> str:
    if process.exitcode is not None:
        return signal.Signals(-process.exitcode).name if process.exitcode < 0 else "ended"
    return "stopped" if process_stat(process.pid or 0)[:1] == ["T"] else "running"


def _played(folder: Path, ends: Mapping[int, str]) -> Played:
    said = {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}
    outcomes = {
        rank: Outcome(**{**one, "missing_ranks": tuple(one["missing_ranks"])})
        for rank, one in sorted(said.items())
    }
    fired = {int(path.stem): float(path.read_text()) for path in folder.glob("*.fired")}
    first = min(fired, key=lambda rank: fired[rank], default=None)
    return Played(outcomes, ends, first, fired[first] if first is not None else 0.0)
