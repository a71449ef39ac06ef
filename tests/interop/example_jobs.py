"""A script of examples/ as each rank of a launcher runs it, in ranks that have its library."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path


def printed(script: str, environ: dict[str, str]) -> str:
    """What the script prints on this rank; where it leaves with a code, that is raised."""
    os.environ.update(environ)
    sys.argv, sys.path = [script], [str(Path(script).parent), *sys.path]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as left:
            if left.code:
                raise
    return out.getvalue()
