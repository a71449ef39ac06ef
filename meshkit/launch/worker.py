"""Start processes of this machine with the surroundings of this one, receive from them, end them.

Children are forked from multiprocessing's forkserver with torch already imported, so eight of them
start within a second. Functions typed into a notebook need forks of the notebook. A child takes
over variables, working folder, import path and start method, and ends with its parent::

    parent  -- target, args, surroundings -->  child     enters the surroundings, runs the target
            <-- what the target sends --                 receive() raises if it ended before
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import current_process, forkserver, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, ForkServerContext, ForkServerProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..errors import SpecError
from .device import ACCELERATORS
from .endpoint import LOOPBACK
from .launchers import LAUNCHERS, SPAWN
from .world import COMPLETED, LOOPBACK_HOST

# Modules that the forkserver imports once, in this order. Otherwise all ranks import them at the
# same time, on a few cores. A module that is missing is skipped.
PRELOADED: tuple[str, ...] = (
    f"{__package__}.forkserver",
    "torch.distributed",
    f"{__package__}.spawn",
    "meshkit.mesh.build_mesh",
)
CHILD = "meshkit-child"  # the name of each child
LONGEST = 86400.0  # seconds of one wait; poll(2) overflows after 24.8 days
DEATH = 5.0  # seconds in which a process that has closed its pipe ends

Context = ForkContext | ForkServerContext


class Surroundings(NamedTuple):
    """The parts of a process that its children take over."""

    environ: dict[str, str]  # all variables
    folder: str  # the working folder; "" if it was deleted
    path: list[str]  # where Python looks for modules
    # How multiprocessing starts processes; None is Python's default. A child of the forkserver
    # would start another one, and each worker of its DataLoader would import torch anew.
    start_method: str | None

    @classmethod
    def of_rank(cls, rank: int, world_size: int, init_method: str, port: int) -> Surroundings:
        """Return those of this process, with the variables of a rank of a local job.

        torch's own ``init_process_group()`` meets at the port, meshkit at the file of
        ``init_method``.
        """
        folder = ""
        with suppress(FileNotFoundError):
            folder = os.getcwd()
        path = [entry or folder for entry in sys.path]
        environ = rank_environment(rank, world_size, init_method, port)
        return cls(environ, folder, path, multiprocessing.get_start_method(allow_none=True))

    def enter(self, threads: str) -> None:
        """Let this process have them, and torch use some threads."""
        replace_environment(self.environ)
        if self.folder:
            os.chdir(self.folder)
        sys.path[:] = self.path
        multiprocessing.set_start_method(self.start_method, force=True)
        if threads.isdecimal() and int(threads) > 0:  # the forkserver had another OMP_NUM_THREADS
            torch.set_num_threads(int(threads))


def rank_environment(
    rank: int, world_size: int, init_method: str, master_port: int
) -> dict[str, str]:
    """Return the variables of this process, with those of its launcher replaced."""
    preceding = LAUNCHERS[: LAUNCHERS.index(SPAWN)]  # these would match before spawn
    hidden = {name for row in preceding for names in row.markers for name in names}
    hidden |= {COMPLETED} | {row.module for row in ACCELERATORS if row.module}  # a rank's own
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


def replace_environment(environ: Mapping[str, str]) -> None:
    """Set the variables of this process, and remove all others."""
    os.environ.clear()
    os.environ.update(environ)


class EndedError(Exception):
    """A child ended before it sent what was expected.

    Attributes:
        code: its exit code; None if it still runs.
        noticed: when its pipe closed, in seconds of the machine's monotonic clock.
    """

    def __init__(self, code: int | None, noticed: float) -> None:
        cause = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        super().__init__(f"ended by itself, with {cause}")
        self.code, self.noticed = code, noticed


@dataclass(frozen=True)
class Worker:
    """A child, and the pipe to it."""

    process: BaseProcess
    pipe: Connection

    def receive(self) -> Any:  # noqa: ANN401  # whatever the target sends
        """Return the next object that the child sends; wait for it.

        Raises:
            EndedError: if the child has ended.
        """
        try:
            return pickle.loads(self.pipe.recv_bytes())  # by our own child
        except (EOFError, OSError):  # OSError: it died while sending
            noticed = time.monotonic()
            self.process.join(DEATH)
            raise EndedError(self.process.exitcode, noticed) from None


def start_worker(
    context: Context,
    surroundings: Surroundings,
    target: Callable[..., object],
    *args: object,
    siblings: Sequence[Worker] = (),
) -> Worker:
    """Start a child that runs ``target(pipe, *args)`` in its surroundings.

    Args:
        context: forks or the forkserver, see :func:`context_for`.
        surroundings: those of the child. A fork uses one thread of torch, whatever they say.
        target: a function at the top level of a module.
        args: its arguments after the pipe.
        siblings: the children that are not ended before this one. A fork that kept this end of
            their pipes would never let them see that this process has closed it.
    """
    pipe, child_end = context.Pipe()
    is_fork = isinstance(context, ForkContext)
    inherited = (pipe, *(worker.pipe for worker in siblings)) if is_fork else ()
    # OpenMP's threads do not survive a fork, so several threads would wait for them forever
    threads = "1" if is_fork else surroundings.environ.get("OMP_NUM_THREADS", "1")
    arguments = inherited, surroundings, threads, target, child_end, *args
    process = context.Process(target=_run_worker, args=arguments, name=CHILD)
    start_process(process)
    child_end.close()
    return Worker(process, pipe)


def _run_worker(
    inherited: Sequence[Connection],
    surroundings: Surroundings,
    threads: str,
    target: Callable[..., object],
    *args: object,
) -> None:
    """Run a target in this child, which ends with its parent, or on Ctrl-C."""
    for end in inherited:
        end.close()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_follow_parent, name="meshkit-parent", daemon=True).start()
    surroundings.enter(threads)
    target(*args)


def exit_if_imported_by_child() -> None:
    """End this process if it is a child that still imports the script of its parent.

    The script then calls ``spawn`` without ``if __name__ == '__main__':``, which the error of the
    parent says. Python would print a traceback of 60 lines on each rank.
    """
    script = sys.modules.get("__mp_main__")
    is_imported = script is None or script is sys.modules.get("__main__")
    if current_process().name == CHILD and not is_imported:
        raise SystemExit(1)


def _follow_parent() -> None:
    """End this process when its parent has ended, for whatever reason."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def end_workers(
    workers: Sequence[Worker], finished: Collection[int] = (), grace: float = 0.0
) -> None:
    """Close the pipes, kill all but the finished ones, and return when all processes have ended.

    Args:
        workers: the children.
        finished: the numbers of those that end by themselves when their pipe is closed.
        grace: seconds in which they do, before they are killed too.
    """
    for number, worker in enumerate(workers):
        worker.pipe.close()
        if number not in finished:
            worker.process.kill()
    deadline = time.monotonic() + grace
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        worker.process.kill()
        worker.process.join()


def start_process(process: BaseProcess) -> None:
    """Start a process without Python's warning about forks in threaded programs."""
    if isinstance(process, ForkServerProcess):
        resource_tracker.ensure_running()  # the forkserver would start it, and unblock the signal
        # the forkserver gets a Ctrl-C only after its first import can handle it
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            forkserver.ensure_running()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with warnings.catch_warnings():
        # Python 3.12 warns if a process with threads forks; our ranks use one torch thread.
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        process.start()


def context_for(fn: Callable[..., object]) -> Context:
    """Return a context whose processes find ``fn``: forks, if it was typed into this session."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if getattr(fn, "__module__", "") != "__main__" or (file and Path(file).exists()):
        return fresh_context()
    if reason := fork_obstacle():
        fix = "meshkit.shutdown() first."
        if used := used_accelerator():
            fix = "write fn into a file and import it; or restart, and spawn before "
            fix += f"{used} is used."
        line = f"fn was typed into this session, which cannot be forked: {reason}."
        raise SpecError(line, fix=fix)
    return multiprocessing.get_context("fork")


def fresh_context() -> ForkServerContext:
    """Return a context whose processes know nothing of this one, with torch imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    return context


def fork_obstacle() -> str:
    """Return why this process cannot be forked into ranks; "" if it can."""
    if used := used_accelerator():
        return f"it uses {used}, which does not work in a fork"
    return "it has joined a job" if dist.is_initialized() else ""


def used_accelerator() -> str:
    """Return the accelerator that this process uses; "" if it uses none."""
    modules = {row.device: getattr(torch, row.device, None) for row in ACCELERATORS}
    used = (kind for kind, m in modules.items() if getattr(m, "is_initialized", bool)())
    return next(used, "")


def sendable_error(error: BaseException) -> BaseException:
    """Return the error, or a description of it if pickle fails."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a foreign __reduce__ may raise anything
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
