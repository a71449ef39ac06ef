"""``python -m meshkit``, and the console script ``meshkit``.

A Ctrl-C while the commands are read and imported ends in silence as well, so they are imported
inside the function.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> int:
    """Run one command, with what was typed; its exit code is that of :mod:`meshkit.cli.main`."""
    try:
        from .cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
