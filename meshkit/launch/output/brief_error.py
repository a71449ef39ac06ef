"""Print one line, without a traceback, for an uncaught error that another rank prints in full."""

from __future__ import annotations

import sys
from functools import cache, partial
from types import TracebackType
from typing import TYPE_CHECKING

from ...core.errors import MeshkitError

if TYPE_CHECKING:
    from collections.abc import Callable

    Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


@cache
def print_repeated_errors_in_one_line() -> None:
    """Print one line if an error with ``printed_by`` ends this process. Local; harmless to repeat.

    The hook of other errors stays, such as torch's, which begins each line with the rank.
    """
    sys.excepthook = partial(_print_uncaught, sys.excepthook)


def _print_uncaught(
    others: Hook,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    if isinstance(error, MeshkitError) and error.printed_by is not None:
        sys.stderr.write(f"{kind.__module__}.{kind.__qualname__}: {error.printed_text}\n")
    else:
        others(kind, error, trace)
