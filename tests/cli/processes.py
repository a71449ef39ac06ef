"""Commands run as processes of their own."""

from __future__ import annotations

import subprocess


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """The exit code of a command, and what it printed; it is killed after two minutes."""
    try:
        out, error = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, out, error
