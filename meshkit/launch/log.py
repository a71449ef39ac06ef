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
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..core.errors import MeshkitError, format_error
from .world import World

LOGGER = logging.getLogger("meshkit")
VARIABLE = "MESHKIT_LOG"
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


class Startup(NamedTuple):
    """The seconds of this rank's start by phase, in the order of the phases.

    Attributes:
        phases: phase to seconds. ``"store"`` reaches the store and takes the rank, ``"arrival"``
            waits for all ranks, ``"default group"`` creates it. ``"agreement"`` compares the
            requests of a mesh, ``"groups"`` creates its groups, and ``"end"`` waits until all
            ranks have done so. A phase that the mesh did not need is missing.

    Example:
        >>> print(Startup({"store": 0.25, "arrival": 1.5}))
        store 0.25 s, arrival 1.5 s
    """

    phases: Mapping[str, float] = {}

    @property
    def seconds(self) -> float:
        """The seconds of all phases together."""
        return sum(self.phases.values())

    def __str__(self) -> str:
        return ", ".join(f"{phase} {seconds:.3g} s" for phase, seconds in self.phases.items())


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
    # here, since the parent of spawned ranks does without torch
    from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

    try:
        raise error  # torch writes the traceback of the error that is handled
    except MeshkitError:
        with suppress(OSError):
            ErrorHandler().record_exception(error)
