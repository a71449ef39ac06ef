"""What the tests add to the seconds that a message is promised within."""

from __future__ import annotations

BUSY = 3.0  # seconds that a machine with other work to do may add to any promise
