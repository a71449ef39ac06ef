"""The log of meshkit: one line of rank 0 when a job is joined, and one when a mesh is built.

The logger is ``logging.getLogger("meshkit")``, and a program configures it as any other.
``init(verbose=True)`` or MESHKIT_LOG=info shows its lines on stderr without a configuration.

An uncaught error of meshkit is also written to the error file of torchrun, whose summary shows it.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

from ...core.errors import MeshkitError, format_error
from ..launchers.world import World

LOGGER = logging.getLogger("meshkit")
VARIABLE = "MESHKIT_LOG"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


def show_log(level: int = logging.INFO) -> None:
    """Show lines of a level and above, on stderr if the program has configured no logging."""
    LOGGER.setLevel(level)
    if not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        LOGGER.addHandler(handler)


def log_line(text: str, *values: object) -> None:
    """Log a line. Rank 0 of the job calls it. Local."""
    requested = os.environ.get(VARIABLE, "")
    if requested.lower() in LEVELS:
        show_log(LEVELS[requested.lower()])
    elif requested:
        line = format_error(f"{VARIABLE}={requested!r} is no level.", fix=f"export {VARIABLE}=info")
        warnings.warn(line, RuntimeWarning, stacklevel=2)
    LOGGER.info(text, *values)


def log_job(world: World, seconds: float) -> None:
    """Log that a job was joined."""
    log_line(
        "joined a job: world_size %d, launcher %s, backend %s, device %s, %.2f s",
        world.world_size,
        world.launcher,
        world.backend,
        world.device,
        seconds,
    )


@cache
def report_uncaught_error() -> None:
    """Write torchrun's error file at the end of this process, if an error of meshkit ends it."""
    if os.environ.get(ERROR_FILE):
        atexit.register(_write_last_error, os.environ[ERROR_FILE], os.getpid())


def _write_last_error(path: str, pid: int) -> None:
    """Write the error that ended the program, unless torch's ``record`` has written it."""
    error = getattr(sys, "last_value", None)  # set by the interpreter for an uncaught error
    if not isinstance(error, MeshkitError) or pid != os.getpid() or Path(path).exists():
        return
    try:
        raise error  # torch writes the traceback of the error that is handled
    except MeshkitError:
        with suppress(OSError):
            ErrorHandler().record_exception(error)
