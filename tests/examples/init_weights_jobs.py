"""What the ranks of test_init_weights.py run. No pytest here: every child imports this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from examples import init_weights


def drawn(rows: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What this rank has drawn for each row of arguments, each in a job and a mesh of its own."""
    return {row: init_weights.main(row.split()) for row in rows}
