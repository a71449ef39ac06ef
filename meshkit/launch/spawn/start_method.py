"""The start method of local processes: forkserver, or fork for functions typed into a session."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkServerContext, ForkServerProcess
from multiprocessing.process import BaseProcess
from pathlib import Path

from ...core.errors import SpecError
from ..device.accelerators import ACCELERATORS

Context = ForkContext | ForkServerContext

# Modules that the forkserver imports once, in this order. Otherwise all ranks import them at the
# same time, on a few cores. Packages that import this one add modules with `preload`.
_preloaded: tuple[str, ...] = ("torch", "torch.distributed", f"{__package__}.worker")


def preload(*modules: str) -> None:
    """Let a forkserver that starts later import more modules before it forks ranks. Local."""
    global _preloaded
    _preloaded = tuple(dict.fromkeys((*_preloaded, *modules)))


def context_for(fn: Callable[..., object]) -> Context:
    """Return a multiprocessing context whose processes can find ``fn``, with torch imported once.

    No other process can import a function that was typed into a notebook or a prompt. For such a
    function the ranks are forked from this process.
    """
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if getattr(fn, "__module__", "") != "__main__" or (file and Path(file).exists()):
        context = multiprocessing.get_context("forkserver")
        # gc_freeze must be last: it freezes the objects of the modules before it
        first, last = f"{__package__}.end_on_interrupt", f"{__package__}.gc_freeze"
        context.set_forkserver_preload([first, *_preloaded, last])
        return context
    _check_forkable()
    import torch.distributed  # noqa: F401  (once for all ranks)

    return multiprocessing.get_context("fork")


def _start_forkserver() -> None:
    """Start the forkserver, which gets a Ctrl-C only after its first import can handle it."""
    resource_tracker.ensure_running()  # the forkserver would start it, and unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_process(process: BaseProcess) -> None:
    """Start a process without Python's warning about forks in threaded programs."""
    if isinstance(process, ForkServerProcess):
        _start_forkserver()
    with warnings.catch_warnings():
        # Python 3.12 warns if a process with threads forks; our ranks use one torch thread.
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        process.start()


def inherited_pipe_ends(
    context: Context, started: Sequence[tuple[BaseProcess, Connection]], own_end: Connection
) -> tuple[Connection, ...]:
    """Return the parent's pipe ends that a forked child must close; none with a forkserver.

    A child that keeps the parent's end of a pipe open never sees the parent close that end.
    """
    forked = isinstance(context, ForkContext)
    return (own_end, *(pipe for _, pipe in started)) if forked else ()


def _check_forkable() -> None:
    """Check that children forked from this process could use their accelerator and join a job."""
    torch = sys.modules.get("torch")
    devices = [row.device for row in ACCELERATORS]
    used = [name for name in devices if _in_use(getattr(torch, name, None))]
    joined = torch is not None and torch.distributed.is_initialized()
    if not used and not joined:
        return
    reason = f"it uses {used[0]}, which does not work in a fork" if used else "it has joined a job"
    raise SpecError(
        f"fn was typed into this session, which cannot be forked: {reason}.",
        fix=(
            f"write fn into a file and import it; or restart, and spawn before {used[0]} is used."
            if used
            else "meshkit.shutdown() first."
        ),
    )


def _in_use(module: object) -> bool:
    """Return whether an accelerator's torch module has been initialized."""
    is_initialized = getattr(module, "is_initialized", None)
    return bool(is_initialized and is_initialized())
