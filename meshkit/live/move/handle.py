"""Handle: a redistribution that has begun, and its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ...core.call import public


class Handle:
    """A redistribution in progress. Created by ``mesh.begin``.

    Example:
        ``handle = mesh.begin(kv, "two b s/cp d -> two b s d *cp"); ...; kv = handle.wait()``
    """

    def __init__(self, work: Any, finish: Callable[[], Tensor]) -> None:  # noqa: ANN401
        self._work = work
        self._finish = finish
        self._result: Tensor | None = None

    @public("handle.wait")
    def wait(self) -> Tensor:
        """Wait for the communication and return the result; later calls return it again."""
        if self._result is None:
            if self._work is not None:
                self._work.wait()
            self._result = self._finish()
            self._work = None
        return self._result
