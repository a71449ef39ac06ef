"""Entry point of ``python -m meshkit`` and of the console script ``meshkit``.

The function imports the commands, so that Ctrl-C during their import prints no traceback. Python
ends the process after it returns, and another Ctrl-C does not disturb that.
"""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main() -> int:
    """Run the command of ``sys.argv``; see :func:`meshkit.cli.main.main` for its exit code."""
    try:
        from .cli.main import main as run_command

        return run_command()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            sys.stderr.write("meshkit: interrupted.\n")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(main())
