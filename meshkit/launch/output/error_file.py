"""Write an uncaught error into torchrun's error file, which the summary of torchrun shows.

torch's format: ``message`` holds a ``message`` and ``extraInfo`` with ``py_callstack`` and
``timestamp`` (torch/distributed/elastic/multiprocessing/errors/error_handler.py). The file is
written when the interpreter ends, so an error that the program has caught is never in it.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path

from ...core.errors import MeshkitError

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


@cache
def report_uncaught_error() -> None:
    """Write the error file at the end of this process, if an error of meshkit ends it."""
    if os.environ.get(ERROR_FILE):
        atexit.register(_write_last_error, os.environ[ERROR_FILE], os.getpid())


def _write_last_error(path: str, pid: int) -> None:
    """Write the error that ended the program, unless torch's ``record`` has written it."""
    error = getattr(sys, "last_value", None)  # set by the interpreter for an uncaught error
    if not isinstance(error, MeshkitError) or pid != os.getpid() or Path(path).exists():
        return
    with suppress(OSError):
        Path(path).write_text(json.dumps(_record(error)))


def _record(error: MeshkitError) -> dict[str, object]:
    text = f"{type(error).__name__}: {error.text}"
    frames = "".join(traceback.format_tb(error.__traceback__))
    info = {"py_callstack": f"{frames}{text}", "timestamp": str(int(time.time()))}
    return {"message": {"message": text, "extraInfo": info}}
