"""Finding: what one check of a checkup found. Pure data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: what was looked at; no two findings of a checkup share it.
        ok: whether it is as a job needs it.
        found: what is there, in words, perhaps of several lines.
        advice: what to type or do; empty where ``ok``.
    """

    name: str
    ok: bool
    found: str
    advice: str = ""
