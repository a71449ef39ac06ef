"""Handle: a redistribution that has begun, and its result."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ...core.call import quotes_call


class Handle:
    """A redistribution in progress. Created by ``mesh.begin``.

    Example:
        ``handle = mesh.begin(kv, "two b s/cp d -> two b s d *cp"); ...; kv = handle.wait()``
    """

    def __init__(self, finish: Callable[[], Tensor]) -> None:
        self._finish = finish
        self._result: Tensor | None = None

    @quotes_call("handle.wait")
    def wait(self) -> Tensor:
        """Wait for the communication and return the result; later calls return it again."""
        if self._result is None:
            self._result = self._finish()
        return self._result
