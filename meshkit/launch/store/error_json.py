"""Errors as JSON, so that every rank raises the error that one rank has found.

Nothing read from a store is unpickled: a text can only become an error of meshkit.
"""

from __future__ import annotations

import json

from ...core.errors import (
    CollectiveError,
    DisagreementError,
    LaunchError,
    MeshkitError,
    RankTimeoutError,
    SpecError,
)

ERRORS: dict[str, type[MeshkitError]] = {
    error.__name__: error
    for error in (
        CollectiveError,
        DisagreementError,
        LaunchError,
        MeshkitError,
        RankTimeoutError,
        SpecError,
    )
}
RANK_ATTRIBUTES = ("missing_ranks", "behind")  # attributes that hold ranks


def error_to_json(error: MeshkitError) -> str:
    """Return an error as JSON, without the call that it quotes."""
    return json.dumps(
        {
            "error": type(error).__name__,
            "summary": error.summary,
            "evidence": list(error.evidence),
            "fix": error.fix_text,
            "requests": {str(rank): text for rank, text in getattr(error, "requests", {}).items()},
            **{name: list(getattr(error, name, ())) for name in RANK_ATTRIBUTES},
        }
    )


def error_from_json(text: str) -> MeshkitError:
    """Return the error that a rank wrote as JSON; a MeshkitError if its class is unknown."""
    record = json.loads(text)
    kind = ERRORS.get(str(record.get("error")), MeshkitError)
    requests = {int(rank): str(text) for rank, text in dict(record.get("requests", {})).items()}
    facts: dict[str, object] = {"requests": requests} if requests else {}
    for name in RANK_ATTRIBUTES:
        if record.get(name):
            facts[name] = tuple(int(rank) for rank in record[name])
    evidence = [str(line) for line in record.get("evidence", ())]
    return kind(str(record.get("summary")), *evidence, fix=str(record.get("fix", "")), **facts)
