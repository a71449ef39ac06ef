"""The time that tests add to each promised number of seconds."""

from __future__ import annotations

BUSY = 6.0  # seconds that other work on the machine may add to any promise
