"""Run a script of examples/ on a rank that has its library imported already."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path


def run_example(script: str, environ: dict[str, str]) -> str:
    """Return the output of a script on this rank. A non-zero exit code raises SystemExit."""
    os.environ.update(environ)
    sys.argv, sys.path = [script], [str(Path(script).parent), *sys.path]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as exit:
            if exit.code:
                raise
    return out.getvalue()
