"""Finding: the result of one check. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.errors import MeshkitError


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str  # unique in a checkup
    ok: bool  # whether a job can run with it
    found: str  # observed state, in one line or more
    advice: str = ""  # a command or step that repairs it; empty if ``ok``

    @classmethod
    def from_error(cls, name: str, error: MeshkitError) -> Finding:
        """Return an error as a failed check, with its fix as the advice."""
        return cls(name, False, "\n".join((error.summary, *error.evidence)), error.fix_text)
