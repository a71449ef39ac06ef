"""How local processes start: from a forkserver, or forked from a session that no file holds."""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from ...core.call import Call
from ...core.errors import SpecError, told
from ..device.accelerators import ACCELERATORS

# build_mesh and init too: else every child reads them again, all at once, on a few cores. In order.
PRELOADED = ["torch", "torch.distributed", "meshkit.live.build", "meshkit.launch.spawn.gc_freeze"]
Context = ForkContext | ForkServerContext


def context_for(call: Call, fn: Callable[..., object]) -> Context:
    """The way to start processes that can find ``fn``, with torch imported once for all.

    A function that was typed into a notebook or a prompt is in no file that another process could
    import: those are forked from this one.

    Raises:
        SpecError: where this process has to be forked and cannot be: its accelerator is in use,
            or it has joined a job.
    """
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    if getattr(fn, "__module__", "") != "__main__" or (file and Path(file).exists()):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        return context
    _check_forkable(call)
    import torch.distributed  # noqa: F401  (once for all the children)

    return multiprocessing.get_context("fork")


def begin(process: BaseProcess) -> None:
    """Start a process."""
    with warnings.catch_warnings():
        # Python 3.12 warns of every fork beside threads; our children run one thread of torch's.
        warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
        process.start()


def inherited(
    context: Context, started: Sequence[tuple[BaseProcess, Connection]], ours: Connection
) -> tuple[Connection, ...]:
    """The pipe ends of this process that a child inherits, for it to close; none but in a fork.

    A pipe that a child itself holds open would never tell it that the parent has hung up.
    """
    forked = isinstance(context, ForkContext)
    return (ours, *(pipe for _, pipe in started)) if forked else ()


def _check_forkable(call: Call) -> None:
    """Refuse a fork whose children could not use their accelerator, or would be in a job already.

    Raises:
        SpecError: in either case.
    """
    torch = sys.modules.get("torch")
    kinds = [row.device for row in ACCELERATORS]
    used = [kind for kind in kinds if _in_use(getattr(torch, kind, None))]
    joined = torch is not None and torch.distributed.is_initialized()
    if not used and not joined:
        return
    reason = f"{used[0]} is in use here, and would not work in a fork" if used else "it is in a job"
    text = told(
        f"{call}: fn was typed into this session, which cannot be forked: {reason}.",
        fix=(
            f"write fn into a file and import it; or restart, and spawn before {used[0]} is used."
            if used
            else "meshkit.shutdown() first."
        ),
    )
    raise SpecError(text)


def _in_use(module: object) -> bool:
    """Whether an accelerator's module of torch has been initialised."""
    asked = getattr(module, "is_initialized", None)
    return bool(asked and asked())
